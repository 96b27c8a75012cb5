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
    /// Tree blocks only.
    pub level: u8,
    pub generation: u64,
    /// Content that says who wrote it first (simple quotas).
    pub first_owner: Option<TreeId>,
}

impl StoredExtent {
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    pub(crate) fn is_block(&self) -> bool {
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
    pub(crate) fn end(&self) -> u64 {
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
    pub(crate) fn leaf(&mut self, cx: &mut Context<'_>, leaf: &Leaf<'_>) {
        for (key, data) in leaf.node.items() {
            if let Err(kind) = self.item(cx, key, data) {
                cx.add(Finding::new(kind).tree(leaf.tree).key(key));
            }
        }
    }

    fn item(&mut self, cx: &mut Context<'_>, key: Key, data: &[u8]) -> Result<(), FindingKind> {
        let malformed = |c: Corrupt| FindingKind::ItemMalformed { why: c.what };
        match key.kind {
            kind::EXTENT_ITEM | kind::METADATA_ITEM => {
                self.extent(cx, key, data).map_err(malformed)
            }
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

    pub(crate) fn block_group(&mut self, key: Key, data: &[u8]) -> Result<(), Corrupt> {
        let item = BlockGroupItem::read(data)?;
        self.block_groups.push(StoredBlockGroup { start: key.objectid, len: key.offset, item });
        Ok(())
    }

    fn extent(&mut self, cx: &mut Context<'_>, key: Key, data: &[u8]) -> Result<(), Corrupt> {
        let item = ExtentItem::parse(key.kind, data)?;
        let skinny = key.kind == kind::METADATA_ITEM;
        let level = match item.block_info {
            Some((_, level)) => level,
            None if skinny => key.offset as u8,
            None => 0,
        };
        let extent = StoredExtent {
            start: key.objectid,
            len: if skinny { u64::from(cx.geometry.node_size) } else { key.offset },
            refs: item.fields.refs,
            flags: item.fields.flags,
            level,
            generation: item.fields.generation,
            first_owner: item.first_owner(),
        };
        if extent.flags & extent_flags::FULL_BACKREF != 0 {
            self.full.insert(extent.start);
        }
        for reference in &item.inline {
            if let Some(owner) = inline_owner(reference) {
                self.push(extent.start, owner, reference.count());
            }
        }
        self.extents.push(extent);
        Ok(())
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

/// `None`: a note of who first owned the extent (simple quotas).
fn inline_owner(reference: &InlineRef) -> Option<Owner> {
    Some(match reference {
        InlineRef::TreeBlock { root } => Owner::Tree { root: *root },
        InlineRef::SharedBlock { parent } => Owner::SharedTree { parent: *parent },
        InlineRef::Data(data) => data_owner(data),
        InlineRef::SharedData { parent, .. } => Owner::SharedData { parent: *parent },
        InlineRef::Owner { .. } => return None,
    })
}
