//! How many trees the changes of an epoch lie in.
//!
//! Invariant: each counts once, whoever changes something there. The first ones are found without a lock.
//!
//! What it does not know: which trees exist.

use btrfs_disk::TreeId;
use locks::{Mutex, Rank};
use rustc_hash::FxHashSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Trees that are found without a lock: all threads read this, and write it once for each.
/// Chosen, not measured.
const KNOWN: usize = 32;

pub(super) struct TouchedTrees {
    /// 0, which is no tree: none yet, nor behind it.
    known: [AtomicU64; KNOWN],
    beyond: Mutex<FxHashSet<u64>>,
    count: AtomicU64,
}

impl Default for TouchedTrees {
    fn default() -> TouchedTrees {
        let beyond = Mutex::new(Rank::Leaf, FxHashSet::default());
        TouchedTrees { known: Default::default(), beyond, count: AtomicU64::new(0) }
    }
}

impl TouchedTrees {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Something changes there.
    pub(super) fn add(&self, tree: TreeId) {
        for known in &self.known {
            let now = match known.load(Ordering::Relaxed) {
                0 => known
                    .compare_exchange(0, tree.0, Ordering::Relaxed, Ordering::Relaxed)
                    .unwrap_or_else(|other| other),
                now => now,
            };
            if now == tree.0 {
                return;
            }
            if now == 0 {
                self.count.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        if self.beyond.lock().insert(tree.0) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Those of both.
    pub(super) fn joined(below: &TouchedTrees, above: &TouchedTrees) -> TouchedTrees {
        let joined = TouchedTrees::default();
        for one in [below, above] {
            let known = one.known.iter().map(|known| known.load(Ordering::Relaxed));
            known.filter(|known| *known != 0).for_each(|tree| joined.add(TreeId(tree)));
            let beyond: Vec<u64> = one.beyond.lock().iter().copied().collect();
            beyond.into_iter().for_each(|tree| joined.add(TreeId(tree)));
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(trees: impl IntoIterator<Item = u64>) -> TouchedTrees {
        let touched = TouchedTrees::default();
        trees.into_iter().for_each(|tree| touched.add(TreeId(tree)));
        touched
    }

    #[test]
    fn each_tree_counts_once() {
        assert_eq!(of([]).count(), 0);
        assert_eq!(of([5, 256, 5, 257, 256, 5]).count(), 3);
        let most = KNOWN as u64;
        assert_eq!(of((1..=most).chain(1..=most)).count(), most);
        assert_eq!(of((1..=most + 2).chain([most + 1])).count(), most + 2);
    }

    #[test]
    fn two_epochs_in_one_have_the_trees_of_both() {
        let joined = |a: &TouchedTrees, b: &TouchedTrees| TouchedTrees::joined(a, b).count();
        assert_eq!(joined(&of([5, 256]), &of([256, 257])), 3);
        let many = of(1..=KNOWN as u64 + 4);
        assert_eq!(joined(&many, &of([1])), KNOWN as u64 + 4);
        assert_eq!(joined(&of([1]), &many), KNOWN as u64 + 4);
    }
}
