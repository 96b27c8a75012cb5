//! The thread that erases large inodes without a name, behind everybody's back.
//!
//! Invariants: nothing is held between its steps, so operations wait for one step at most; and a commit
//! has no more of them to merge than [`PER_EPOCH`] items, so who waits for a commit does not wait for a whole
//! inode. It holds the orphans weakly, so that it never keeps a volume open.
//!
//! What it does not know: what a step is, and what took the name.

use super::Orphans;
use crate::erasures::Erasure;
use btrfs_space::Priority;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use vfs::Result;

/// Items that are erased in one epoch. Behind them it asks for a commit, and waits for that.
/// Chosen, not measured.
const PER_EPOCH: u64 = 8 << 10;

/// What was erased in an epoch.
#[derive(Clone, Copy, Default)]
struct Pace {
    epoch: u64,
    items: u64,
    /// A step made larger what has no room as it is: before the next one that is tried anew.
    grows: bool,
}

impl Orphans {
    /// Takes steps until nothing is left, or one fails; `None`: it is to rest.
    fn erase_behind(&self, erasure: &mut Erasure, pace: &mut Pace) -> Option<Result<bool>> {
        loop {
            if self.must_rest(pace) {
                return None;
            }
            let _step = self.erasures.begin_step();
            if self.core.health.may_go_on().is_err() {
                return None;
            }
            let items = erasure.steps.most as u64;
            let before = self.reservations.need(Priority::Commit);
            let erased = self.step_behind(erasure);
            // What no commit has leaves nothing, whatever others do meanwhile.
            let id = erasure.inode.id;
            let is_born = self.core.layers().current.items.is_born(id.tree, id.objectid);
            pace.grows = !is_born && self.reservations.need(Priority::Commit) > before;
            // Not that before the step, which may have looked for room by commits that found none.
            let epoch = self.core.layers().current.generation.0;
            if pace.grows && pace.epoch != epoch {
                (pace.epoch, pace.items) = (epoch, 0);
            }
            if erased.is_ok() {
                pace.items += items;
                self.erasures.stepped();
            }
            if !matches!(erased, Ok(false)) {
                return Some(erased);
            }
        }
    }

    /// No step may be taken, or this epoch has enough of them: then a commit is asked for.
    fn must_rest(&self, pace: &mut Pace) -> bool {
        if self.core.health.may_go_on().is_err() || self.reserver.commits_are_held() {
            return true;
        }
        let epoch = self.core.layers().current.generation.0;
        if pace.epoch != epoch {
            *pace = Pace { epoch, items: 0, grows: false };
        }
        if pace.grows && self.reservations.is_short() {
            return true;
        }
        let enough = pace.items >= PER_EPOCH;
        if enough {
            self.core.requests.wake_for_chunks();
        }
        enough
    }
}

/// The thread.
pub(crate) struct Eraser {
    orphans: Weak<Orphans>,
    thread: Option<JoinHandle<()>>,
}

impl Eraser {
    pub(crate) fn start(orphans: &Arc<Orphans>) -> std::io::Result<Eraser> {
        let weak = Arc::downgrade(orphans);
        let for_thread = weak.clone();
        let thread = std::thread::Builder::new()
            .name("spinney-eraser".into())
            .spawn(move || run(&for_thread))?;
        orphans.erasures.serve(true);
        Ok(Eraser { orphans: weak, thread: Some(thread) })
    }
}

/// Behind the thread, be it that it panicked: nobody waits for it.
struct Ends<'o>(&'o Weak<Orphans>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if let Some(orphans) = self.0.upgrade() {
            orphans.erasures.serve(false);
            orphans.erasures.is_left();
        }
    }
}

fn run(orphans: &Weak<Orphans>) {
    let _ends = Ends(orphans);
    let mut pace = Pace::default();
    while let Some(orphans) = orphans.upgrade() {
        let Some(mut erasure) = orphans.erasures.next() else { return };
        if orphans.core.health.writable().is_err() {
            // The next mount erases it.
            return;
        }
        match orphans.erase_behind(&mut erasure, &mut pace) {
            Some(ended) => {
                // Where it found no room it has looked for it.
                let full = ended.as_ref().is_err_and(|error| error.errno() == libc::ENOSPC);
                erasure.looks_for_room &= !full;
                orphans.settle(erasure, ended);
            }
            None => orphans.erasures.rest(erasure, || !orphans.must_rest(&mut pace.clone())),
        }
    }
}

impl Drop for Eraser {
    fn drop(&mut self) {
        if let Some(orphans) = self.orphans.upgrade() {
            orphans.erasures.serve(false);
            orphans.erasures.stop();
        }
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::tests::{new_file, volume};
    use vfs::{Context, FileSystem};

    /// One step is found out by: behind it a commit has to find room.
    #[test]
    fn what_has_no_room_is_made_larger_by_one_step_alone() {
        let fs = volume(256, 4096);
        let (cx, engine) = (Context { umask: 0o022, ..Context::default() }, &fs.engine);
        let (space, erasures) = (fs.space(), &engine.orphans.erasures);
        let ino = new_file(&fs);
        for extent in 0..500 {
            fs.write(&cx, ino, extent * 8192, &[7; 4096], Default::default()).expect("write");
        }
        fs.sync().expect("sync");
        fs.unlink(&cx, fs.root(), b"file").expect("unlink");
        engine.core.health.refuse_changes(true);
        fs.forget(ino, 1);
        engine.core.health.refuse_changes(false);
        let mut erasure = erasures.take_set_aside().pop().expect("it waits");
        space.fail_allocations(space.allocations()..u64::MAX);
        fs.sync().expect_err("there is no room");
        space.fail_allocations(0..0);
        let (before, mut pace) = (erasures.steps(), Pace::default());
        for _ in 0..3 {
            assert!(engine.orphans.erase_behind(&mut erasure, &mut pace).is_none(), "it rests");
            assert_eq!(erasures.steps(), before + 1);
        }
        fs.sync().expect("there is room again");
        let erased = engine.orphans.erase_behind(&mut erasure, &mut pace).expect("to its end");
        assert!(matches!(erased, Ok(true)));
        engine.orphans.settle(erasure, erased);
        fs.sync().expect("sync");
        fs.destroy().expect("close");
    }
}
