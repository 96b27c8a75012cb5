//! What is counted of the items that changed: memory, bytes in leaves, places and trees.
//!
//! Invariant: each count is an upper bound of what a commit will find, whoever changes something meanwhile.
//!
//! What it does not know: which items.

use super::items::{ItemDelta, SLOT_COST};
use btrfs_disk::TreeId;
use btrfs_disk::node::ITEM_SIZE;
use std::sync::atomic::Ordering;

impl ItemDelta {
    /// Memory that the changes take, about.
    pub fn bytes(&self) -> u64 {
        let notes = self.notes.load(Ordering::Relaxed);
        self.bytes.load(Ordering::Relaxed) + notes + self.slots() * SLOT_COST
    }

    /// The log's notes take so many bytes more, or fewer.
    pub(super) fn count_notes(&self, bytes: i64) {
        // All threads share the line: what does not change is left alone.
        if bytes != 0 {
            self.notes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Keys that the delta changes.
    pub fn slots(&self) -> u64 {
        self.slots.load(Ordering::Relaxed) + self.owed.load(Ordering::Relaxed)
    }

    /// The commit will put or delete a key more: whoever keeps it in a place of his own puts
    /// it here when the epoch is sealed, and says so ([`ItemDelta::pay`]). Until then it counts as
    /// if it were here.
    pub fn owe(&self, tree: TreeId) {
        self.touched.add(tree);
        self.owed.fetch_add(1, Ordering::Relaxed);
    }

    /// So many keys that were owed are here, or there is no need of them any more.
    pub fn pay(&self, keys: u64) {
        let before = self.owed.fetch_sub(keys, Ordering::Relaxed);
        debug_assert!(before >= keys, "{keys} keys of {before} are paid");
    }

    /// Keys that are still to come.
    pub fn owed(&self) -> u64 {
        self.owed.load(Ordering::Relaxed)
    }

    /// Places in the trees that the changes lie in, at most: keys with no key of the tree between
    /// them are one place. Objects that are born get numbers behind all that there are, so all of
    /// a tree are one place, and so are the new names of a directory by index. Nothing else is
    /// taken to lie close: attributes, names by hash and references lie anywhere.
    pub fn spread(&self) -> u64 {
        self.spread.load(Ordering::Relaxed) + self.owed()
    }

    /// Trees that the changes lie in, at most.
    pub fn trees(&self) -> u64 {
        self.touched.count()
    }

    /// Whether objects were born.
    pub fn has_births(&self) -> bool {
        self.birthplace.load(Ordering::Relaxed) != 0
    }

    /// Bytes that the changed items take in leaves, with their headers. (A deleted one counts
    /// as a header.)
    pub fn growth(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) + self.slots() * ITEM_SIZE as u64
    }
}
