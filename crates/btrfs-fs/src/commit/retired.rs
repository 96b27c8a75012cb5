//! What a commit merged and nobody needs any more is given back by commits, never by who reads.
//!
//! Whoever lets go of a delta last frees it, and to free a large one takes as long as half of its merge: an
//! operation that began before the commit was published and ended behind it took a tenth of a
//! second. So it is kept here until no reader has it.
//!
//! Invariants: what was given here is freed by who calls here, or with the committer; what somebody reads for long
//! is waited for once, and never by who has the turn to commit; what is here is in an account of the memory.
//!
//! It does not know who reads.

use btrfs_txn::Memory;
use btrfs_txn::delta::Delta;
use locks::{Mutex, Rank};
use std::sync::Arc;
use std::time::Duration;

/// Readers of a moment are waited for, and no others: somebody waits for the commit. What those
/// that stay longer have is the next commit's to free, or the driver's.
const TRIES: u32 = 20;
const BETWEEN: Duration = Duration::from_micros(100);

pub(super) struct Retired {
    deltas: Mutex<Deltas>,
}

#[derive(Default)]
struct Deltas {
    /// Nobody has waited for their readers yet.
    new: Vec<Kept>,
    old: Vec<Kept>,
}

/// With the bytes that it counts as.
type Kept = (Arc<Delta>, u64);

impl Default for Retired {
    fn default() -> Retired {
        Retired { deltas: Mutex::new(Rank::Leaf, Deltas::default()) }
    }
}

impl Retired {
    /// `new` is no longer needed. Frees what no reader has, calling `rest` now and then; waits for nobody.
    pub(super) fn free(&self, memory: &Memory, new: Option<Arc<Delta>>, mut rest: impl FnMut()) {
        let Deltas { new: mut all, old } = std::mem::take(&mut *self.deltas.lock());
        all.extend(new.map(|delta| {
            let bytes = delta.bytes();
            memory.add_retired(bytes);
            (delta, bytes)
        }));
        let (new, old) = (unread(memory, all, &mut rest), unread(memory, old, &mut rest));
        self.keep(Deltas { new, old });
    }

    /// Frees what came since the last time, waiting a moment for readers. The caller has no turn to commit.
    pub(super) fn wait(&self, memory: &Memory, rest: impl FnMut()) {
        self.wait_by(memory, rest, || std::thread::sleep(BETWEEN));
    }

    fn wait_by(&self, memory: &Memory, mut rest: impl FnMut(), mut pause: impl FnMut()) {
        let mut new = std::mem::take(&mut self.deltas.lock().new);
        for _ in 0..TRIES {
            new = unread(memory, new, &mut rest);
            if new.is_empty() {
                return;
            }
            pause();
        }
        self.keep(Deltas { new: Vec::new(), old: unread(memory, new, &mut rest) });
    }

    /// Nobody frees anything here any more: who reads still may do so.
    pub(super) fn let_go(&self, memory: &Memory) {
        let Deltas { new, old } = std::mem::take(&mut *self.deltas.lock());
        for (delta, bytes) in new.into_iter().chain(old) {
            drop(delta);
            memory.sub_retired(bytes);
        }
    }

    fn keep(&self, read: Deltas) {
        let mut deltas = self.deltas.lock();
        deltas.new.extend(read.new);
        deltas.old.extend(read.old);
    }
}

/// Frees what nobody else has; answers the rest.
fn unread(memory: &Memory, all: Vec<Kept>, mut rest: impl FnMut()) -> Vec<Kept> {
    let free = |(delta, bytes): Kept| match Arc::try_unwrap(delta) {
        Ok(own) => {
            own.free(&mut rest);
            memory.sub_retired(bytes);
            None
        }
        Err(read) => Some((read, bytes)),
    };
    all.into_iter().filter_map(free).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::tests::{new_file, volume, volume_with};
    use crate::{BtrfsFs, Options};
    use btrfs_disk::Generation;
    use std::sync::Weak;
    use std::time::Instant;
    use vfs::FileSystem;

    /// A reader of before the seal, and one of behind it.
    #[test]
    fn who_reads_a_delta_that_is_committed_does_not_free_it() {
        let fs = volume(128, 16384);
        fs.forget(new_file(&fs), 1);
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
        fs.forget(new_file(&fs), 1);
        let delta = Arc::downgrade(&fs.engine.core.view().layers.current);
        fs.sync().expect("sync");
        assert_eq!(delta.strong_count(), 0);
        fs.destroy().expect("close");
    }

    #[test]
    fn a_long_reader_is_waited_for_once() {
        let (retired, memory) = (Retired::default(), Memory::new(Options::default().memory()));
        let pauses = |retired: &Retired| {
            let mut pauses = 0;
            retired.wait_by(&memory, || (), || pauses += 1);
            pauses
        };
        let (mut read, mut left) = (Vec::new(), Vec::new());
        let mut retire = || {
            let delta = Arc::new(Delta::new(Generation(7)));
            left.push(Arc::downgrade(&delta));
            read.push(delta.clone());
            retired.free(&memory, Some(delta), || ());
        };
        retire();
        assert_eq!([pauses(&retired), pauses(&retired)], [TRIES, 0]);
        retire();
        retire();
        assert_eq!([pauses(&retired), pauses(&retired)], [TRIES, 0], "for all together");
        retired.free(&memory, None, || ());
        assert_eq!(pauses(&retired), 0);
        drop(read);
        assert!(left.iter().all(|delta| delta.strong_count() == 1));
        retired.free(&memory, None, || ());
        assert!(left.iter().all(|delta| delta.strong_count() == 0));
    }

    /// Who reads a delta with something in it, and that delta.
    fn reader(fs: &BtrfsFs) -> (impl Sized + use<>, Weak<Delta>) {
        let layers = Arc::clone(&fs.engine.core.view().layers);
        let delta = Arc::downgrade(&layers.current);
        fs.forget(new_file(fs), 1);
        (layers, delta)
    }

    fn kept(fs: &BtrfsFs) -> u64 {
        let stats = fs.engine.all_stats();
        stats.iter().find(|stat| stat.name == "memory.retired").expect("an account").value
    }

    /// Nor does it need another commit.
    #[test]
    fn what_a_still_mount_kept_for_a_reader_goes_behind_him() {
        let commit_interval = Duration::from_millis(20);
        let fs = volume_with(Options { commit_interval, ..Options::default() });
        let (reads, delta) = reader(&fs);
        fs.still().expect("still");
        assert!(delta.strong_count() > 0);
        assert!(kept(&fs) > 0, "it is in an account");
        drop(reads);
        let start = Instant::now();
        while delta.strong_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it stays");
            std::thread::sleep(Duration::from_millis(10));
        }
        while kept(&fs) > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it counts");
            std::thread::sleep(Duration::from_millis(10));
        }
        fs.destroy().expect("close");
    }

    #[test]
    fn what_is_closed_keeps_nothing() {
        let fs = volume(128, 16384);
        let (reads, delta) = reader(&fs);
        fs.destroy().expect("close");
        drop(reads);
        assert_eq!(delta.strong_count(), 0);
    }
}
