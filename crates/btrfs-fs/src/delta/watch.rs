//! What the tree log needs to know of an object: which of its keys changed since they were
//! logged, and where its content became a hole.
//!
//! Invariant: once an object is watched, every key that changes is noted until it is taken
//! by `ItemDelta::freeze`. Objects that were never logged pay nothing.

use super::items::ItemDelta;
use btrfs_disk::TreeId;
use btrfs_disk::key::kind;
use std::collections::{BTreeMap, BTreeSet};

/// Kind and offset of an item of one object.
pub type SubKey = (u8, u64);

/// Which changes are noted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Level {
    #[default]
    Nothing,
    /// All but the entries of a directory.
    Inode,
    /// The entries, too, by index.
    Entries,
}

#[derive(Default)]
pub(super) struct Watch {
    level: Level,
    changed: BTreeSet<SubKey>,
    /// Ranges of content that may have become a hole in this epoch, where holes have no
    /// items of their own.
    pub gaps: Vec<(u64, u64)>,
    /// Objects that took a name of this one in a rename.
    pub followers: Vec<u64>,
    /// Objects of this epoch that a rename took out of this directory.
    pub left: Vec<u64>,
}

impl Watch {
    pub fn note(&mut self, kind: u8, offset: u64) {
        let wanted = match kind {
            kind::DIR_ITEM => false,
            kind::DIR_INDEX => self.level == Level::Entries,
            _ => self.level != Level::Nothing,
        };
        if wanted {
            self.changed.insert((kind, offset));
        }
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
    pub gaps: Vec<(u64, u64)>,
    /// Objects that took a name of this one: the log must say both or neither.
    pub followers: Vec<u64>,
    /// Objects of this epoch that a rename took out of this directory, if entries matter.
    pub left: Vec<u64>,
}

impl Frozen {
    pub fn has_refs(&self) -> bool {
        self.slots.keys().any(|(kind, _)| is_ref(*kind))
    }

    /// Adds what a later freeze took.
    pub fn absorb(&mut self, newer: Frozen) {
        self.slots.extend(newer.slots);
        self.gaps.extend(newer.gaps);
        self.item_changed |= newer.item_changed;
        self.followers = newer.followers;
        self.left.extend(newer.left);
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
}

impl Ask {
    fn wants(&self, key: &SubKey, changed: &BTreeSet<SubKey>, names: bool) -> bool {
        match key.0 {
            kind::DIR_ITEM => false,
            kind::DIR_INDEX => self.entries || changed.contains(key),
            kind::INODE_ITEM => true,
            kind::EXTENT_DATA => self.whole || self.content || changed.contains(key),
            kind if is_ref(kind) => self.whole || names,
            _ => self.whole || changed.contains(key),
        }
    }
}

impl ItemDelta {
    /// Takes what there is to log of an object, and watches it from now on. Nobody changes
    /// the delta meanwhile.
    pub fn freeze(&self, tree: TreeId, objectid: u64, ask: Ask) -> Frozen {
        self.watched.store(true, std::sync::atomic::Ordering::Relaxed);
        self.with_object(tree, objectid, |object| {
            let watch = object.watch.get_or_insert_default();
            watch.level = watch.level.max(ask.level);
            let changed = std::mem::take(&mut watch.changed);
            let gaps = std::mem::take(&mut watch.gaps);
            let names = changed.iter().any(|(kind, _)| is_ref(*kind));
            // A key that was born and is gone has no slot, but the log may have it.
            let gone = changed.iter().filter(|key| !object.items.contains_key(key));
            let mut slots: BTreeMap<SubKey, Option<Box<[u8]>>> =
                gone.map(|key| (*key, None)).collect();
            let taken = object.items.iter().filter(|(key, _)| ask.wants(key, &changed, names));
            slots.extend(taken.map(|(key, slot)| (*key, slot.value.clone())));
            let item_changed = ask.whole || changed.contains(&(kind::INODE_ITEM, 0));
            let followers = watch.followers.clone();
            let left = match watch.level {
                Level::Entries => std::mem::take(&mut watch.left),
                _ => Vec::new(),
            };
            let (born, whole) = (object.born, ask.whole);
            Frozen { born, whole, item_changed, slots, gaps, followers, left }
        })
    }

    /// True if names of the object changed in this epoch.
    pub fn renames(&self, tree: TreeId, objectid: u64) -> bool {
        self.with_object_if(tree, objectid, |object| {
            let refs = (kind::INODE_REF, 0)..(kind::INODE_EXTREF + 1, 0);
            object.items.range(refs).next().is_some()
        })
    }
}
