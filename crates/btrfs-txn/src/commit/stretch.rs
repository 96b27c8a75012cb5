//! Edits of one tree on their way from a sealed delta into it, a stretch at a time.
//!
//! Their bytes lie one behind the other in memory that is used again for the next stretch: a commit
//! of a million items would else take and give back a million pieces of it.
//!
//! Invariant: ascending keys, since the delta is asked in that order.
//!
//! What it does not know: what the items mean, whose tree it is.

use crate::delta::ItemDelta;
use btrfs_disk::{Key, TreeId};
use btrfs_tree::EditRef;
use std::ops::Range;

/// Edits that go into a tree before the commit looks up: a millisecond of work or two.
/// Chosen, not measured.
const STRETCH: usize = 1024;

/// Keys with what becomes of them; `None`: deleted.
#[derive(Default)]
pub(super) struct Stretch {
    keys: Vec<(Key, Option<Range<usize>>)>,
    bytes: Vec<u8>,
}

impl Stretch {
    /// Takes edits of an object from `from` on while there is room; answers where to go on with it.
    pub(super) fn take(&mut self, items: &ItemDelta, tree: TreeId, from: &Key) -> Option<Key> {
        let room = STRETCH - self.keys.len();
        items.visit(tree, from, room, |key, value| {
            let data = value.map(|data| {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(data);
                start..self.bytes.len()
            });
            self.keys.push((key, data));
        })
    }

    pub(super) fn is_full(&self) -> bool {
        self.keys.len() >= STRETCH
    }

    pub(super) fn edits(&self) -> Vec<(Key, EditRef<'_>)> {
        let edit = |data: &Option<Range<usize>>| match data {
            Some(data) => EditRef::Put(&self.bytes[data.clone()]),
            None => EditRef::Delete,
        };
        self.keys.iter().map(|(key, data)| (*key, edit(data))).collect()
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.bytes.clear();
    }
}
