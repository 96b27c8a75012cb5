//! The roots of one commit: an immutable forest, and the promise that its nodes stay.
//!
//! Invariant: the space of a node or extent that commit N freed is not used again while
//! anybody holds the roots of a commit before N. Each `Roots` owns what its successor
//! freed and keeps its successor alive, so a reader of old roots keeps everything that was
//! freed since.

mod trees;

pub use trees::{Trees, TreesSum};

use btrfs_disk::items::RootItem;
use btrfs_disk::{Generation, TreeId};
use btrfs_space::{Extent, Space};
use btrfs_tree::TreeRoot;
use std::sync::{Arc, OnceLock};

/// A tree of one commit.
#[derive(Clone, Debug)]
pub struct Root {
    /// Its highest node.
    pub root: TreeRoot,
    /// Its item in the root tree.
    pub item: RootItem,
}

/// The trees of one commit.
pub struct Roots {
    /// The commit's.
    pub generation: Generation,
    /// By their numbers; the root tree and the chunk tree among them.
    pub trees: Trees,
    retired: OnceLock<Retired>,
}

struct Retired {
    space: Arc<Space>,
    extents: Vec<Extent>,
    /// Tell the device, too.
    discard: bool,
    /// See the invariant.
    next: Arc<Roots>,
}

impl Retired {
    fn give_back(&self) {
        if self.discard {
            for extent in &self.extents {
                // A device that cannot discard is no worse off.
                let _ = self.space.volume().discard(extent.logical, extent.len);
            }
        }
        if let Err(error) = self.space.unpin(&self.extents) {
            tracing::error!(%error, "freed space could not be given back");
        }
    }
}

impl Roots {
    /// Of a commit that is published with them.
    pub fn new(generation: Generation, trees: Trees) -> Roots {
        Roots { generation, trees, retired: OnceLock::new() }
    }

    /// The tree of this number, if there is one.
    pub fn get(&self, tree: TreeId) -> Option<&Root> {
        self.trees.get(tree)
    }

    /// The tree that has the block group items.
    pub fn of_block_groups(&self) -> TreeId {
        match self.get(TreeId::BLOCK_GROUP) {
            Some(_) => TreeId::BLOCK_GROUP,
            None => TreeId::EXTENT,
        }
    }

    /// Called once, when `next` is durable: `freed` becomes free when the last reader of
    /// these roots (and of older ones) is gone.
    pub fn retire(&self, space: Arc<Space>, freed: Vec<Extent>, discard: bool, next: Arc<Roots>) {
        let retired = Retired { space, extents: freed, discard, next };
        assert!(self.retired.set(retired).is_ok(), "roots retire once");
    }
}

/// All that nobody else holds go one after the other, oldest first: a reader may have held thousands, which
/// would not fit on a stack within each other.
impl Drop for Roots {
    fn drop(&mut self) {
        let mut retired = self.retired.take();
        while let Some(of_these) = retired {
            of_these.give_back();
            retired = Arc::into_inner(of_these.next).and_then(|mut next| next.retired.take());
        }
    }
}
