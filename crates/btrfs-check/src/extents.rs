//! What the extent tree says: extents, their references, and block groups.

use crate::kind::Owner;
use crate::refs::RefRecord;
use crate::source::Context;
use crate::walk::Leaf;
use crate::{Finding, FindingKind};
use btrfs_disk::checksum::data_ref_hash;
use btrfs_disk::items::{
    BlockGroupItem, ExtentDataRef, ExtentItem, InlineRef, SharedDataRef, extent_flags,
};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, FixedSize, Key, TreeId};
use std::collections::HashSet;

/// One extent item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredExtent {
    pub start: u64,
    pub len: u64,
    pub refs: u64,
    pub flags: u64,
    pub generation: u64,
    /// Tree blocks only.
    pub level: u8,
}

impl StoredExtent {
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    pub fn is_block(&self) -> bool {
        self.flags & extent_flags::TREE_BLOCK != 0
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredBlockGroup {
    pub start: u64,
    pub len: u64,
    pub item: BlockGroupItem,
}

impl StoredBlockGroup {
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

#[derive(Default)]
pub(crate) struct ExtentTree {
    /// By address.
    pub extents: Vec<StoredExtent>,
    pub refs: Vec<RefRecord>,
    pub full: HashSet<u64>,
    /// By address.
    pub block_groups: Vec<StoredBlockGroup>,
}

impl ExtentTree {
    pub fn leaf(&mut self, cx: &mut Context<'_>, leaf: &Leaf<'_>) {
        for (key, data) in leaf.node.items() {
            if let Err(kind) = self.item(cx, key, data) {
                cx.add(Finding::new(kind).tree(leaf.tree).key(key));
            }
        }
    }

    fn item(&mut self, cx: &mut Context<'_>, key: Key, data: &[u8]) -> Result<(), FindingKind> {
        let malformed = |c: Corrupt| FindingKind::ItemMalformed { why: c.what };
        match key.kind {
            kind::EXTENT_ITEM | kind::METADATA_ITEM => self.extent(cx, key, data),
            kind::BLOCK_GROUP_ITEM => self.block_group(key, data).map_err(malformed),
            kind::TREE_BLOCK_REF => {
                self.separate(cx, key, Owner::Tree { root: TreeId(key.offset) }, 1)
            }
            kind::SHARED_BLOCK_REF => {
                self.separate(cx, key, Owner::SharedTree { parent: key.offset }, 1)
            }
            kind::SHARED_DATA_REF => {
                let count = SharedDataRef::read(data).map_err(malformed)?.count;
                self.separate(cx, key, Owner::SharedData { parent: key.offset }, count.into())
            }
            kind::EXTENT_DATA_REF => {
                let data = ExtentDataRef::read(data).map_err(malformed)?;
                self.separate(cx, key, data_owner(&data), data.count.into())
            }
            _ => Err(FindingKind::ItemUnknown),
        }
    }

    pub fn block_group(&mut self, key: Key, data: &[u8]) -> Result<(), Corrupt> {
        let item = BlockGroupItem::read(data)?;
        if key.offset == 0 || key.objectid.checked_add(key.offset).is_none() {
            return Err(Corrupt::new(format!("block group of {} bytes", key.offset)));
        }
        self.block_groups.push(StoredBlockGroup { start: key.objectid, len: key.offset, item });
        Ok(())
    }

    fn extent(&mut self, cx: &mut Context<'_>, key: Key, data: &[u8]) -> Result<(), FindingKind> {
        let malformed = |why: String| FindingKind::ItemMalformed { why };
        let item = ExtentItem::parse(key.kind, data).map_err(|c| malformed(c.what))?;
        let skinny = key.kind == kind::METADATA_ITEM;
        let level = match item.block_info {
            Some((_, level)) => level,
            None if skinny => u8::try_from(key.offset)
                .map_err(|_| malformed(format!("tree block of level {}", key.offset)))?,
            None => 0,
        };
        let len = if skinny { u64::from(cx.geometry.node_size) } else { key.offset };
        let mask = u64::from(cx.geometry.sector_size) - 1;
        if len == 0 || (key.objectid | len) & mask != 0 || key.objectid.checked_add(len).is_none() {
            return Err(malformed(format!("extent of {len} bytes is not aligned")));
        }
        let extent = StoredExtent {
            start: key.objectid,
            len,
            refs: item.fields.refs,
            flags: item.fields.flags,
            generation: item.fields.generation,
            level,
        };
        let flags = self.flags(&extent, skinny);
        self.inline(&item, &extent)?;
        self.extents.push(extent);
        flags
    }

    /// Judges and remembers the flags; a wrong set does not hide the extent.
    fn flags(&mut self, extent: &StoredExtent, skinny: bool) -> Result<(), FindingKind> {
        let flags = extent.flags;
        let wrong = |why: &str| Err(FindingKind::ExtentFlags { flags, why: why.into() });
        if flags & extent_flags::FULL_BACKREF != 0 {
            self.full.insert(extent.start);
        }
        match flags & !extent_flags::FULL_BACKREF {
            extent_flags::DATA if skinny => wrong("a metadata item that says data"),
            extent_flags::DATA if flags & extent_flags::FULL_BACKREF != 0 => {
                wrong("data cannot have full back-references")
            }
            extent_flags::DATA | extent_flags::TREE_BLOCK => Ok(()),
            _ => wrong("neither data nor a tree block"),
        }
    }

    fn inline(&mut self, item: &ExtentItem, extent: &StoredExtent) -> Result<(), FindingKind> {
        for reference in &item.inline {
            let Some((owner, data)) = inline_owner(reference) else { continue };
            if data == extent.is_block() {
                let why = format!("back-reference of type {} in it", reference.kind());
                return Err(FindingKind::ItemMalformed { why });
            }
            self.push(extent.start, owner, reference.count());
        }
        let order = |r: &InlineRef| (r.kind(), std::cmp::Reverse(inline_rank(r)));
        if item.inline.is_sorted_by_key(order) {
            return Ok(());
        }
        Err(FindingKind::ReferencesUnsorted)
    }

    /// A back-reference with an item of its own belongs to the extent in front of it.
    fn separate(
        &mut self,
        cx: &mut Context<'_>,
        key: Key,
        owner: Owner,
        count: u64,
    ) -> Result<(), FindingKind> {
        if self.extents.last().is_none_or(|extent| extent.start != key.objectid) {
            return Err(FindingKind::ReferenceWithoutExtent);
        }
        self.push(key.objectid, owner, count);
        if let Owner::Data { root, ino, offset } = owner {
            // Colliding hashes take the next free offsets.
            let hash = data_ref_hash(root.0, ino, offset);
            if key.offset.wrapping_sub(hash) > 1024 {
                let why = format!("its hash is {hash}, its key has another");
                cx.add(Finding::new(FindingKind::ItemMalformed { why }).key(key));
            }
        }
        Ok(())
    }

    fn push(&mut self, start: u64, owner: Owner, count: u64) {
        self.refs.push(RefRecord { start, owner, count, len: 0, written: false });
    }
}

fn data_owner(data: &ExtentDataRef) -> Owner {
    Owner::Data { root: data.root, ino: data.objectid, offset: data.offset }
}

/// The owner, and whether it is one of data. `None`: who first owned it (simple quotas).
fn inline_owner(reference: &InlineRef) -> Option<(Owner, bool)> {
    Some(match reference {
        InlineRef::TreeBlock { root } => (Owner::Tree { root: *root }, false),
        InlineRef::SharedBlock { parent } => (Owner::SharedTree { parent: *parent }, false),
        InlineRef::Data(data) => (data_owner(data), true),
        InlineRef::SharedData { parent, .. } => (Owner::SharedData { parent: *parent }, true),
        InlineRef::Owner { .. } => return None,
    })
}

/// Inline references of one type descend by this.
fn inline_rank(reference: &InlineRef) -> u64 {
    match reference {
        InlineRef::TreeBlock { root } | InlineRef::Owner { root } => root.0,
        InlineRef::SharedBlock { parent } | InlineRef::SharedData { parent, .. } => *parent,
        InlineRef::Data(data) => data_ref_hash(data.root.0, data.objectid, data.offset),
    }
}
