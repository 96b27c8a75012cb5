//! Reading what the last commit says, without the deltas: that is what a replay starts from.

use crate::extents::Mapped;
use crate::ino::InodeId;
use btrfs_disk::items::{DirItem, InodeExtRef, InodeItem, InodeRef};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, Result};
use btrfs_tree::{Cursor, NodeStore};
use btrfs_txn::Counter;
use btrfs_txn::Roots;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// One name of an inode, as its reference item says it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Name {
    pub parent: u64,
    pub index: u64,
    pub name: Vec<u8>,
}

pub(crate) struct Committed<'a> {
    pub store: &'a NodeStore,
    pub roots: &'a Roots,
    /// Counts every search.
    pub reads: &'a Counter,
}

impl Committed<'_> {
    pub(crate) fn get(&self, id: InodeId, kind: u8, offset: u64) -> Result<Option<Vec<u8>>> {
        let Some(root) = self.roots.get(id.tree) else { return Ok(None) };
        let key = Key::new(id.objectid, kind, offset);
        self.reads.add(1);
        Ok(btrfs_tree::get(self.store, &root.root, &key)?.map(|item| item.data().to_vec()))
    }

    pub(crate) fn inode(&self, id: InodeId) -> Result<Option<InodeItem>> {
        match self.get(id, kind::INODE_ITEM, 0)? {
            Some(bytes) => Ok(Some(InodeItem::read(&bytes)?)),
            None => Ok(None),
        }
    }

    /// The items of an object whose kinds lie in the range, from `offset` of the first kind on.
    pub(crate) fn scan(
        &self,
        id: InodeId,
        kinds: RangeInclusive<u8>,
        offset: u64,
        mut each: impl FnMut(Key, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let Some(root) = self.roots.get(id.tree) else { return Ok(()) };
        self.reads.add(1);
        let last = Key::new(id.objectid, *kinds.end(), u64::MAX);
        let mut cursor = Cursor::new(self.store, &root.root).below(last.successor());
        cursor.seek(&Key::new(id.objectid, *kinds.start(), offset))?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != id.objectid || !kinds.contains(&key.kind) || !each(key, data)? {
                break;
            }
            cursor.next()?;
        }
        Ok(())
    }

    /// All extents of a file that overlap [start, end).
    pub(crate) fn extents(
        &self,
        id: InodeId,
        sector: u64,
        start: u64,
        end: u64,
        mut each: impl FnMut(&Key, &Mapped, &[u8]),
    ) -> Result<()> {
        let Some(root) = self.roots.get(id.tree) else { return Ok(()) };
        let from = Key::new(id.objectid, kind::EXTENT_DATA, start);
        self.reads.add(1);
        let stop = Key { offset: end, ..from };
        let mut cursor = Cursor::new(self.store, &root.root).below(Some(stop));
        cursor.seek_back(&from)?;
        let mine = |key: &Key| key.objectid == id.objectid && key.kind == kind::EXTENT_DATA;
        if !cursor.key().is_some_and(|key| mine(&key)) {
            cursor.seek(&from)?;
        }
        while let Some((key, data)) = cursor.item() {
            if !mine(&key) || key.offset >= end {
                break;
            }
            let mapped = Mapped::parse(&key, data, sector)?;
            if mapped.end > start {
                each(&key, &mapped, data);
            }
            cursor.next()?;
        }
        Ok(())
    }

    /// Whether a file has content in one of the ranges.
    pub(crate) fn has_content(
        &self,
        id: InodeId,
        sector: u64,
        ranges: &[(u64, u64)],
    ) -> Result<bool> {
        let mut found = false;
        for (start, end) in ranges {
            self.extents(id, sector, *start, *end, |_, mapped, _| found |= !mapped.is_hole())?;
        }
        Ok(found)
    }

    pub(crate) fn names(&self, id: InodeId) -> Result<BTreeSet<Name>> {
        let mut names = BTreeSet::new();
        self.scan(id, kind::INODE_REF..=kind::INODE_EXTREF, 0, |key, data| {
            collect(key.kind, key.offset, data, &mut names)?;
            Ok(true)
        })?;
        Ok(names)
    }

    /// What is in a directory, by the keys of the targets; of more than `most` some.
    pub(crate) fn entries(&self, dir: InodeId, most: usize) -> Result<Vec<Key>> {
        let mut entries = Vec::new();
        self.scan(dir, kind::DIR_INDEX..=kind::DIR_INDEX, 0, |_, data| {
            entries.extend(entry_of(data)?.map(|(target, _)| target));
            Ok(entries.len() <= most)
        })?;
        Ok(entries)
    }

    /// The entry with this index: its target and its name.
    pub(crate) fn entry_at(&self, dir: InodeId, index: u64) -> Result<Option<(Key, Vec<u8>)>> {
        let Some(bytes) = self.get(dir, kind::DIR_INDEX, index)? else { return Ok(None) };
        entry_of(&bytes)
    }
}

/// What `name` stands for by a DIR_ITEM: the key of its INODE_ITEM or ROOT_ITEM.
pub(crate) fn target_in(bytes: &[u8], name: &[u8]) -> Result<Option<Key>> {
    for entry in DirItem::iter(bytes) {
        let entry = entry?;
        if entry.name == name {
            return Ok(Some(entry.location));
        }
    }
    Ok(None)
}

/// Target and name of a DIR_INDEX item.
pub(crate) fn entry_of(bytes: &[u8]) -> Result<Option<(Key, Vec<u8>)>> {
    match DirItem::iter(bytes).next() {
        Some(entry) => {
            let entry = entry?;
            Ok(Some((entry.location, entry.name.to_vec())))
        }
        None => Ok(None),
    }
}

/// The names that a reference item holds.
pub(crate) fn collect(
    kind: u8,
    offset: u64,
    data: &[u8],
    names: &mut BTreeSet<Name>,
) -> Result<()> {
    if kind == kind::INODE_REF {
        for item in InodeRef::iter(data) {
            let item = item?;
            let name = item.name.to_vec();
            names.insert(Name { parent: offset, index: item.index, name });
        }
    } else {
        for item in InodeExtRef::iter(data) {
            let item = item?;
            let name = item.name.to_vec();
            names.insert(Name { parent: item.parent, index: item.index, name });
        }
    }
    Ok(())
}
