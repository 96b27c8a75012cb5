//! What the tree log needs to know of an object: which of its keys changed since they were
//! logged, and where its content became a hole.
//!
//! Invariant: once an object is watched, every key that changes is noted until it is taken
//! by `ItemDelta::freeze`. Objects that were never logged pay nothing.
//!
//! What it does not know: objects and their slots (`freeze`).

use super::slot::SubKey;
use btrfs_disk::key::kind;
use std::collections::{BTreeMap, BTreeSet};

/// What a changed key costs in its set, roughly.
/// Chosen, not measured.
const CHANGED_COST: u64 = 32;

/// Which changes are noted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
// Exhaustive: the levels are ordered, and what is synced hangs on each.
pub enum Level {
    /// Nothing changed since.
    #[default]
    Nothing,
    /// All but the entries of a directory.
    Inode,
    /// The entries, too, by index.
    Entries,
}

#[derive(Default)]
pub(super) struct Watch {
    pub(super) level: Level,
    /// The log took something.
    pub(super) logged: bool,
    pub(super) changed: BTreeSet<SubKey>,
    /// Ranges of content that may have become a hole in this epoch, where holes have no
    /// items of their own.
    pub gaps: Vec<(u64, u64)>,
    /// Objects that took a name of this one in a rename.
    pub followers: Vec<u64>,
    /// Objects that no commit has and that a rename took out of this directory.
    pub left: Vec<u64>,
    /// How many of `gaps` and of `left` were taken. They stay: a log on top of the next
    /// commit begins anew.
    gaps_taken: usize,
    left_taken: usize,
}

impl Watch {
    /// Memory that the notes take, about.
    pub(super) fn bytes(&self) -> u64 {
        let words = 2 * self.gaps.len() + self.followers.len() + self.left.len();
        words as u64 * 8 + self.changed.len() as u64 * CHANGED_COST
    }

    pub(super) fn note(&mut self, kind: u8, offset: u64) {
        let wanted = match kind {
            kind::DIR_ITEM => false,
            kind::DIR_INDEX => self.level == Level::Entries,
            _ => self.level != Level::Nothing,
        };
        if wanted {
            self.changed.insert((kind, offset));
        }
    }

    /// Gaps that were not taken yet, or all.
    pub(super) fn take_gaps(&mut self, all: bool) -> Vec<(u64, u64)> {
        let from = if all { 0 } else { self.gaps_taken };
        self.gaps_taken = self.gaps.len();
        self.gaps[from..].to_vec()
    }

    pub(super) fn take_left(&mut self, all: bool) -> Vec<u64> {
        let from = if all { 0 } else { self.left_taken };
        self.left_taken = self.left.len();
        self.left[from..].to_vec()
    }
}

/// True for an item that says which names an inode has.
pub fn is_ref(kind: u8) -> bool {
    matches!(kind, kind::INODE_REF | kind::INODE_EXTREF)
}

/// What the epoch says of one object at one moment.
#[derive(Clone, Default, Debug)]
pub struct Frozen {
    /// The object was made in this epoch.
    pub born: bool,
    /// `slots` are all slots; else those that changed since the last freeze, all names if
    /// one of them changed, and the inode item.
    pub whole: bool,
    /// The inode item changed since the last freeze.
    pub item_changed: bool,
    /// `None`: deleted.
    pub slots: BTreeMap<SubKey, Option<Box<[u8]>>>,
    /// Where extents begin that changed since the last freeze: of all that were asked for, those
    /// that the log does not have.
    pub extents: BTreeSet<u64>,
    /// Ranges of indexes, both ends included, whose names may be gone.
    pub gaps: Vec<(u64, u64)>,
    /// Objects that took a name of this one: the log must say both or neither.
    pub followers: Vec<u64>,
    /// Objects of this epoch that a rename took out of this directory, if entries matter.
    pub left: Vec<u64>,
}

impl Frozen {
    /// True if names of the inode changed.
    pub fn has_refs(&self) -> bool {
        self.slots.keys().any(|(kind, _)| is_ref(*kind))
    }

    /// Adds what a later freeze took.
    pub fn absorb(&mut self, newer: Frozen) {
        self.slots.extend(newer.slots);
        self.extents.extend(newer.extents);
        if newer.whole {
            self.gaps.clear();
        }
        self.gaps.extend(newer.gaps);
        self.item_changed |= newer.item_changed;
        self.followers = newer.followers;
        self.left.extend(newer.left);
    }

    /// Puts what the delta above says of the object over this.
    pub fn under(mut self, above: Frozen) -> Frozen {
        self.born |= above.born;
        self.whole = above.whole;
        self.item_changed |= above.item_changed;
        self.slots.extend(above.slots);
        self.extents.extend(above.extents);
        self.gaps.extend(above.gaps);
        self.followers.extend(above.followers);
        self.left.extend(above.left);
        self
    }
}

/// What `ItemDelta::freeze` is to take of an object.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// What is noted from now on.
    pub level: Level,
    /// All slots but entries, whether noted as changed or not.
    pub whole: bool,
    /// All entries of the directory.
    pub entries: bool,
    /// All extents.
    pub content: bool,
    /// All names.
    pub names: bool,
}

impl Ask {
    /// What there is to take of a delta that was watched so far as `watched` says: of one
    /// that was not, nobody noted what changed.
    pub(super) fn of(mut self, watched: Level) -> Ask {
        self.whole |= watched == Level::Nothing;
        self.entries |= self.level == Level::Entries && watched < Level::Entries;
        self
    }

    /// Whether all items of a kind are taken, changed or not.
    pub(super) fn wants_all(&self, kind: u8) -> bool {
        match kind {
            kind::DIR_ITEM => false,
            kind::DIR_INDEX => self.entries,
            kind::INODE_ITEM => true,
            kind::EXTENT_DATA => self.whole || self.content,
            kind if is_ref(kind) => self.whole || self.names,
            _ => self.whole,
        }
    }

    /// Whether those of a kind are taken that changed. One name that changed takes all of them along.
    pub(super) fn wants_changed(&self, kind: u8) -> bool {
        kind != kind::DIR_ITEM && !is_ref(kind)
    }
}
