//! Inodes with something that the delta does not have yet: unwritten content, or times.
//!
//! Invariants: an inode with the mark is in the list, or with somebody who took it out and has
//! not begun with it. Who changes an inode adds it behind the change; who writes one back
//! begins before it looks. So what is changed is in the list behind every writeback that
//! did not see it (tests/lockfree). The list is in parts, a thread's own as far as they go: who looks
//! for what has a mark looks into all.
//!
//! What it does not know: what there is to write, and whether it could be written.

use super::Inode;
use crate::sync::{
    DIRTY_LISTS, Mutex, Ordering, Rank, Ref, RwLock, RwLockReadGuard, thread_number,
};

/// A part of the list, in a cache line of its own.
#[repr(align(128))]
struct Part(Mutex<Vec<Ref<Inode>>>);

pub(crate) struct DirtyQueue {
    list: [Part; DIRTY_LISTS],
    /// Held shared by who took inodes out of the list and is not done with them, but for a
    /// commit, of which there is one at a time. Comes before inodes in the lock order, and
    /// behind a running commit.
    turns: RwLock<()>,
}

impl Default for DirtyQueue {
    fn default() -> DirtyQueue {
        DirtyQueue {
            list: std::array::from_fn(|_| Part(Mutex::new(Rank::DirtyList, Vec::new()))),
            turns: RwLock::new(Rank::WritebackTurn, ()),
        }
    }
}

impl DirtyQueue {
    /// `inode` was changed. It may be in the list already: then this is one load.
    pub(crate) fn add(&self, inode: &Ref<Inode>) {
        if inode.queued.load(Ordering::Acquire) {
            return;
        }
        // Under the lock: who sees the mark finds the inode in the list, too.
        let mut list = self.mine().lock();
        if !inode.queued.swap(true, Ordering::AcqRel) {
            list.push(inode.clone());
        }
    }

    /// For who is about to change `inode`, perhaps in several steps of which a later one may
    /// fail: taken before the inode is locked, it adds it when all is done.
    pub(crate) fn add_at_end<'q>(&'q self, inode: &'q Ref<Inode>) -> AddAtEnd<'q> {
        AddAtEnd { queue: self, inode }
    }

    /// Takes all, for a commit. What others took out has landed by then, or is in the list
    /// again, and so among it.
    pub(crate) fn take_all(&self) -> Vec<Ref<Inode>> {
        let _others = self.turns.write();
        self.take()
    }

    /// Takes what nobody else is at work on; the turn ends when all of it has landed or is in
    /// the list again.
    pub(crate) fn take_some(&self) -> (RwLockReadGuard<'_, ()>, Vec<Ref<Inode>>) {
        let turn = self.turns.read();
        (turn, self.take())
    }

    /// Puts one back that nobody has begun with: it still has its mark.
    pub(crate) fn put_back(&self, inode: Ref<Inode>) {
        self.mine().lock().push(inode);
    }

    fn mine(&self) -> &Mutex<Vec<Ref<Inode>>> {
        &self.list[thread_number() % DIRTY_LISTS].0
    }

    fn take(&self) -> Vec<Ref<Inode>> {
        let mut all = Vec::new();
        for part in &self.list {
            let mut part = part.0.lock();
            match all.is_empty() {
                true => all = std::mem::take(&mut *part),
                false => all.append(&mut part),
            }
        }
        all
    }

    /// Before one of those that were taken is looked at: who changes it from now on adds it
    /// to the list again.
    pub(crate) fn begin(&self, inode: &Inode) {
        inode.queued.store(false, Ordering::Release);
    }
}

#[must_use]
pub(crate) struct AddAtEnd<'q> {
    queue: &'q DirtyQueue,
    inode: &'q Ref<Inode>,
}

impl Drop for AddAtEnd<'_> {
    fn drop(&mut self) {
        self.queue.add(self.inode);
    }
}
