//! What no commit has: the current delta over the one that a commit is at work on.
//!
//! Invariant: who asks holds the tree log's lock, so no delta is sealed and none is
//! published meanwhile.

use super::watch::{Ask, Frozen};
use super::{Delta, ExtentDelta};
use btrfs_disk::{Key, Logical, TreeId};
use std::sync::atomic::Ordering;

/// What the last commit on the medium does not have, of both epochs.
#[derive(Clone, Copy)]
pub struct Pending<'a> {
    /// Of the epoch that operations are in.
    pub current: &'a Delta,
    /// Of the one that a commit is at work on, below the current.
    pub sealed: Option<&'a Delta>,
}

impl<'a> Pending<'a> {
    fn both(&self) -> impl Iterator<Item = &'a Delta> {
        std::iter::once(self.current).chain(self.sealed)
    }

    /// As `ItemDelta::get`.
    pub fn get(&self, tree: TreeId, key: &Key) -> Option<Option<Box<[u8]>>> {
        self.both().find_map(|delta| delta.items.get(tree, key))
    }

    /// True if the last commit has nothing of the object.
    pub fn is_born(&self, tree: TreeId, objectid: u64) -> bool {
        self.both().any(|delta| delta.items.is_born(tree, objectid))
    }

    /// True if names of the object changed since the last commit.
    pub fn renames(&self, tree: TreeId, objectid: u64) -> bool {
        self.both().any(|delta| delta.items.renames(tree, objectid))
    }

    /// As `ItemDelta::was_moved`.
    pub fn was_moved(&self, tree: TreeId, objectid: u64) -> bool {
        self.both().any(|delta| delta.items.was_moved(tree, objectid))
    }

    /// True if a subvolume got another name since the last commit.
    pub fn renamed_subvolume(&self) -> bool {
        self.both().any(|delta| delta.renamed_subvolume.load(Ordering::Relaxed))
    }

    /// True if an inline item of more than one sector went since the last commit.
    pub fn lost_long_item(&self) -> bool {
        self.both().any(|delta| delta.lost_long_item.load(Ordering::Relaxed))
    }

    /// As `ItemDelta::take_renamed`.
    pub fn take_renamed(&self) -> Vec<(TreeId, u64)> {
        self.both().flat_map(|delta| delta.items.take_renamed()).collect()
    }

    /// As `ItemDelta::take_left`.
    pub fn take_left(&self) -> Vec<(TreeId, u64)> {
        self.both().flat_map(|delta| delta.items.take_left()).collect()
    }

    /// As `ItemDelta::freeze`; the current delta is held still.
    pub fn freeze(&self, tree: TreeId, objectid: u64, mut ask: Ask) -> Frozen {
        let Some(sealed) = self.sealed else {
            return self.current.items.freeze(tree, objectid, ask);
        };
        // Names are taken all or none: what changed in one delta may be in the other.
        ask.names = self.both().any(|delta| delta.items.renames_since(tree, objectid));
        let below = sealed.items.freeze_sealed(tree, objectid, ask);
        below.under(self.current.items.freeze(tree, objectid, ask))
    }

    /// As `ExtentDelta::mark_logged`. What was allocated before the seal is the commit's.
    pub fn mark_logged(&self, extent: Logical) {
        let extents: &ExtentDelta = &self.current.extents;
        extents.mark_logged(extent);
    }
}
