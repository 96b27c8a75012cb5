//! Subvolumes that change by what no caller of the file system does: a stream is received into them
//! here. Callers who remember answers are not to remember any of them meanwhile.
//!
//! Invariants:
//! * from before anybody can find the subvolume nothing lasts, of any (`Unsettled::begin`), until it is
//!   known which one it is;
//! * an answer that was had before the end and is judged behind it does not last: ends are counted, and
//!   counted before the subvolume is let go.
//!
//! What it does not know: who remembers, and what changes.

use btrfs_disk::TreeId;
use locks::{Rank, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) struct Unsettled {
    /// How many are in the list or about to be.
    busy: AtomicUsize,
    ends: AtomicU64,
    list: RwLock<List>,
}

#[derive(Default)]
struct List {
    /// It is not known yet which.
    begun: usize,
    trees: Vec<TreeId>,
}

impl Default for Unsettled {
    fn default() -> Unsettled {
        let (busy, ends) = Default::default();
        Unsettled { busy, ends, list: RwLock::new(Rank::Leaf, List::default()) }
    }
}

impl Unsettled {
    pub(crate) fn moment(&self) -> u64 {
        self.ends.load(Ordering::SeqCst)
    }

    pub(crate) fn lasts(&self, tree: TreeId, moment: u64) -> bool {
        if self.busy.load(Ordering::SeqCst) > 0 {
            let list = self.list.read();
            if list.begun > 0 || list.trees.contains(&tree) {
                return false;
            }
        }
        self.moment() == moment
    }

    /// Calls `then` if all have ended; none begins meanwhile.
    pub(crate) fn if_none(&self, then: impl FnOnce()) {
        let list = self.list.write();
        if list.begun == 0 && list.trees.is_empty() {
            then();
        }
    }

    fn begin(self: &Arc<Unsettled>) -> Beginning {
        self.busy.fetch_add(1, Ordering::SeqCst);
        self.list.write().begun += 1;
        Beginning(self.clone())
    }
}

/// One is about to be made.
#[must_use = "it ends when it is dropped"]
pub struct Beginning(Arc<Unsettled>);

impl Beginning {
    pub(crate) fn of(all: &Arc<Unsettled>) -> Beginning {
        all.begin()
    }

    /// It is this one.
    pub fn is(self, id: crate::SubvolId) -> Receiving {
        let all = self.0.clone();
        all.busy.fetch_add(1, Ordering::SeqCst);
        all.list.write().trees.push(TreeId(id.0));
        Receiving { all, tree: TreeId(id.0) }
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        self.0.list.write().begun -= 1;
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// It changes until this is dropped.
#[must_use = "it ends when it is dropped"]
pub struct Receiving {
    all: Arc<Unsettled>,
    tree: TreeId,
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.all.ends.fetch_add(1, Ordering::SeqCst);
        let mut list = self.all.list.write();
        if let Some(at) = list.trees.iter().position(|tree| *tree == self.tree) {
            list.trees.swap_remove(at);
        }
        drop(list);
        self.all.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SubvolId;

    #[test]
    fn nothing_lasts_from_before_the_beginning_to_the_end() {
        let all = Arc::new(Unsettled::default());
        let (one, other) = (TreeId(300), TreeId(301));
        let first = all.moment();
        assert!(all.lasts(one, first));
        let beginning = Beginning::of(&all);
        assert!(!all.lasts(one, first) && !all.lasts(other, first), "which one is not known");
        let receiving = beginning.is(SubvolId(300));
        all.if_none(|| panic!("one is there"));
        assert!(!all.lasts(one, first) && all.lasts(other, first));
        let before = all.moment();
        drop(receiving);
        assert!(!all.lasts(one, before), "answered before the end");
        assert!(all.lasts(one, all.moment()));
        let mut none = false;
        all.if_none(|| none = true);
        assert!(none);
        drop(Beginning::of(&all));
        assert!(all.lasts(one, all.moment()), "nothing came of it");
    }
}
