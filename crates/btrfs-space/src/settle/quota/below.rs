//! What lies below a node that a tree comes to share, or leaves to others: who reaches it changes, and no reference of it.
//!
//! Invariant: a commit follows a bounded number of pointers; behind that a rescan begins.
//!
//! What it does not know: how much of it each group counts.

use crate::refs::RefDeltas;
use crate::settle::Settle;
use crate::shared::{Holder, pointers};
use btrfs_disk::{Expect, Node, Result, TreeId};
use btrfs_tree::NodeReader;

/// Pointers that one commit follows: each is remembered until it ends (but for those that a rescan under way comes to),
/// in a word of eight bytes (all in 128 MiB), and asked about then. A node two levels above leaves (of 16 KiB) leads to 493 * 493 leaves at most; two thirds full it is
/// 108,000, with some 25 pointers each where files are small (2.7 million) and up to 150 where they are in pieces (16
/// million). Beyond the bound a rescan begins; the kernel, too, leaves the numbers to one where a subtree is high
/// (`drop_subtree_threshold`). Each visit counts, and each node: nodes that contradict themselves may lead to one of
/// them often.
pub(crate) const MOST_BELOW: usize = 1 << 24;

impl<R: NodeReader> Settle<'_, R> {
    /// Numbers are kept of what `tree` reaches, and not only the status; that of a relocation is in
    /// no group. Where a rescan begins there are none yet.
    pub(crate) fn counts(&self, tree: TreeId) -> bool {
        self.counted_of(tree) > 0
    }

    /// Numbers are kept of what lies before this and `tree` reaches.
    fn counted_of(&self, tree: TreeId) -> u64 {
        let quota = self.quota.as_ref().filter(|quota| quota.keeps && tree.is_subvolume());
        quota.map_or(0, |quota| quota.counted)
    }

    /// A tree that reached `node` does not do so any more, and no reference of what is below
    /// changes with that. Answers how many nodes were read.
    pub(crate) fn touch_below(&mut self, tree: TreeId, node: &Node) -> Result<usize> {
        let counted = self.counted_of(tree);
        if counted == 0 {
            return Ok(0);
        }
        let (mut touched, mut words) = (Vec::new(), 1);
        // Whose the references are does not matter here.
        let any = Holder::Shared(node.logical());
        pointers(node, any, |p| {
            // What a rescan has not come to costs no memory; but it is read, and may lead to as much.
            words += RefDeltas::words(p.extent, p.len, p.kind);
            if p.extent.0 < counted {
                touched.push((p.extent, p.len, p.kind));
            }
        })?;
        let Some(left) = self.left_below.checked_sub(words) else {
            tracing::warn!(%tree, "quotas are counted anew: it shares too much to count on");
            self.count_anew();
            return Ok(1);
        };
        self.left_below = left;
        for (extent, len, kind) in touched {
            self.deltas.touch(extent, len, kind);
        }
        let mut read = 1;
        let children = if node.is_leaf() { 0 } else { node.len() };
        for slot in 0..children {
            if !self.counts(tree) {
                break;
            }
            let expect = Expect::of_child(&node.child(slot), node.level() - 1, tree);
            let child = self.reader().node(&expect);
            match child {
                Ok(child) => read += self.touch_below(tree, &child)?,
                Err(error) if error.is_damage() => self.lose_count(),
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// What this commit changes of the numbers cannot be known; the status will say so.
    pub(crate) fn lose_count(&mut self) {
        if let Some(quota) = &mut self.quota {
            quota.keeps = false;
            self.deltas.forget_touched();
        }
    }

    /// Nor is it looked for: a rescan begins with this commit.
    fn count_anew(&mut self) {
        self.lose_count();
        if let Some(quota) = &mut self.quota {
            quota.recount = true;
        }
    }

    /// So many pointers are followed below what is shared, as [`MOST_BELOW`].
    #[cfg(feature = "fault-injection")]
    pub fn follow_at_most(&mut self, pointers: usize) {
        self.left_below = pointers;
    }
}
