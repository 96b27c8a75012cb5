//! What a commit merged and nobody needs any more is given back by commits, never by who reads.
//!
//! Whoever lets go of a delta last frees it, and to free a large one takes as long as half of its merge: an
//! operation that began before the commit was published and ended behind it took a tenth of a
//! second. So it is kept here until no reader has it.
//!
//! Invariant: what was given here is freed by a caller of `free`, or with the committer. It does not know
//! who reads.

use btrfs_txn::delta::Delta;
use locks::{Mutex, Rank};
use std::sync::Arc;
use std::time::Duration;

/// Readers of a moment are waited for, and no others: somebody waits for the commit. What those
/// that stay longer have is the next commit's to free.
const TRIES: u32 = 20;
const BETWEEN: Duration = Duration::from_micros(100);

pub(super) struct Retired {
    deltas: Mutex<Vec<Arc<Delta>>>,
}

impl Default for Retired {
    fn default() -> Retired {
        Retired { deltas: Mutex::new(Rank::Leaf, Vec::new()) }
    }
}

impl Retired {
    /// `new` is no longer needed. Frees it, and what was left before, where no reader has it,
    /// calling `rest` now and then.
    pub(super) fn free(&self, new: Option<Arc<Delta>>, mut rest: impl FnMut()) {
        let mut all = std::mem::take(&mut *self.deltas.lock());
        all.extend(new);
        for delta in all {
            match alone(delta) {
                Ok(delta) => delta.free(&mut rest),
                Err(read) => self.deltas.lock().push(read),
            }
        }
    }
}

/// What nobody else has, or will not have in a moment.
fn alone<T>(mut shared: Arc<T>) -> Result<T, Arc<T>> {
    for _ in 0..TRIES {
        match Arc::try_unwrap(shared) {
            Ok(own) => return Ok(own),
            Err(again) => shared = again,
        }
        std::thread::sleep(BETWEEN);
    }
    Err(shared)
}

#[cfg(test)]
mod tests {
    use crate::reserve::tests::volume;
    use std::sync::Arc;
    use vfs::{Context, FileKind, FileSystem};

    /// A reader of before the seal, and one of behind it.
    #[test]
    fn who_reads_a_delta_that_is_committed_does_not_free_it() {
        let fs = volume(128, 16384);
        let cx = Context { umask: 0o022, ..Context::default() };
        let made = fs.mknod(&cx, fs.root(), b"file", FileKind::File, 0o644, 0).expect("create");
        fs.forget(made.attr.ino, 1);
        let view = fs.engine.core.view();
        let layers = Arc::clone(&view.layers);
        let delta = Arc::downgrade(&layers.current);
        fs.sync().expect("sync");
        assert!(!Arc::ptr_eq(&layers, &fs.engine.core.view().layers));
        drop((view, layers));
        assert_eq!(delta.strong_count(), 1, "to free it is the commits' business");
        fs.sync().expect("sync");
        assert_eq!(delta.strong_count(), 0, "also of one that has nothing to commit");
        fs.destroy().expect("close");
    }

    #[test]
    fn what_nobody_reads_is_freed_at_once() {
        let fs = volume(128, 16384);
        let cx = Context { umask: 0o022, ..Context::default() };
        let made = fs.mknod(&cx, fs.root(), b"file", FileKind::File, 0o644, 0).expect("create");
        fs.forget(made.attr.ino, 1);
        let delta = Arc::downgrade(&fs.engine.core.view().layers.current);
        fs.sync().expect("sync");
        assert_eq!(delta.strong_count(), 0);
        fs.destroy().expect("close");
    }
}
