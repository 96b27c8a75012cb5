//! The references that the trees really hold, computed anew while they are walked.
//!
//! The format's rule: the children of a block without FULL_BACKREF are referenced by
//! the tree that owns the block (its header); those of a block with it by the block
//! itself. Every block says so once, however many trees share it.
//!
//! Whether a block has FULL_BACKREF is known from the extent tree only, which is
//! therefore read first (`Usage::full`).

use crate::kind::Owner;
use crate::reach::Reached;
use btrfs_disk::items::{FileExtent, FileExtentKind};
use btrfs_disk::key::kind;
use btrfs_disk::node::{HEADER_SIZE, KEY_PTR_SIZE};
use btrfs_disk::{Expect, Generation, Key, Logical, Node, TreeId};
use std::collections::{HashMap, HashSet};

/// Where a tree begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TreeStart {
    pub id: TreeId,
    pub logical: Logical,
    pub generation: Generation,
    pub level: u8,
    /// Of an interrupted deletion: everything in front of this key, at this level, is gone; more may be,
    /// which the extent tree knows.
    pub drop: Option<(Key, u8)>,
}

impl TreeStart {
    /// What its root must be.
    pub(crate) fn expect(&self) -> Expect {
        Expect {
            logical: self.logical,
            level: self.level,
            generation: Some(self.generation),
            owner: Some(self.id),
            first_key: None,
        }
    }
}

/// So and so many references of one owner on one extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RefRecord {
    pub start: u64,
    pub owner: Owner,
    pub count: u64,
    /// Bytes on disk of a data extent; 0 for a tree block.
    pub len: u64,
    /// Data: at least one of the references is to written content.
    pub written: bool,
}

/// A tree block as its own header describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockUse {
    pub level: u8,
    pub owner: TreeId,
    pub generation: u64,
}

#[derive(Default)]
pub(crate) struct Usage {
    /// Blocks that the extent tree marks as FULL_BACKREF.
    pub full: HashSet<u64>,
    pub blocks: HashMap<u64, BlockUse>,
    /// References of blocks as the extent tree has them; only where a tree is half deleted.
    pub stored: Option<HashSet<(u64, Owner)>>,
    refs: Vec<RefRecord>,
    compact_at: usize,
    pub referenced_bytes: u64,
    pub allocated_bytes: u64,
    pub waste_bytes: u64,
    /// What each tree reaches, for quotas; only while it is asked for.
    pub reached: Option<Reached>,
}

/// Sorts by extent and owner and adds up what belongs together.
pub(crate) fn merge(refs: &mut Vec<RefRecord>) {
    refs.sort_unstable_by_key(|r| (r.start, r.owner, r.len));
    refs.dedup_by(|next, kept| {
        let same = (next.start, next.owner, next.len) == (kept.start, kept.owner, kept.len);
        if same {
            kept.count = kept.count.saturating_add(next.count);
            kept.written |= next.written;
        }
        same
    });
}

/// Bytes that nothing stands in, as whole items or pointers.
fn unused(node: &Node) -> usize {
    match node.is_leaf() {
        true => node.free_space(),
        false => {
            let places = (node.bytes().len() - HEADER_SIZE) / KEY_PTR_SIZE;
            places.saturating_sub(node.len()) * KEY_PTR_SIZE
        }
    }
}

impl Usage {
    pub(crate) fn seen(&self, logical: u64) -> bool {
        self.blocks.contains_key(&logical)
    }

    /// The root block of a tree is referenced by the tree; that of a relocation tree by
    /// itself.
    pub(crate) fn tree_root(&mut self, start: &TreeStart) {
        let owner = if start.id == TreeId::RELOC {
            Owner::SharedTree { parent: start.logical.0 }
        } else {
            Owner::Tree { root: start.id }
        };
        self.block_ref(start.logical.0, owner);
    }

    /// A block on the way through a tree, whether seen before or not.
    pub(crate) fn pass(&mut self, tree: TreeId, node: &Node) {
        let Some(reached) = &mut self.reached else { return };
        reached.add(tree.0, node.logical().0, node.bytes().len() as u64);
        if !node.is_leaf() {
            return;
        }
        for (_, data) in node.items().filter(|(key, _)| key.kind == kind::EXTENT_DATA) {
            if let Ok(FileExtent::Extent { fields, .. }) = FileExtent::parse(data)
                && fields.disk_bytenr.0 != 0
            {
                reached.add(tree.0, fields.disk_bytenr.0, fields.disk_num_bytes);
            }
        }
    }

    /// A block that was read for the first time, with the data it refers to.
    pub(crate) fn node(&mut self, node: &Node) {
        let seen =
            BlockUse { level: node.level(), owner: node.owner(), generation: node.generation().0 };
        self.blocks.insert(node.logical().0, seen);
        self.waste_bytes += unused(node) as u64;
        if !node.is_leaf() || !(node.owner().holds_files() || node.owner() == TreeId::ROOT) {
            return;
        }
        for (key, data) in node.items().filter(|(key, _)| key.kind == kind::EXTENT_DATA) {
            // Malformed items are reported where the file is judged.
            if let Ok(FileExtent::Extent { kind, fields, .. }) = FileExtent::parse(data)
                && fields.disk_bytenr.0 != 0
            {
                let offset = key.offset.wrapping_sub(fields.offset);
                self.referenced_bytes = self.referenced_bytes.saturating_add(fields.num_bytes);
                self.allocated_bytes = self.allocated_bytes.saturating_add(fields.disk_num_bytes);
                self.push(RefRecord {
                    start: fields.disk_bytenr.0,
                    owner: self.data_owner(node, key.objectid, offset),
                    count: 1,
                    len: fields.disk_num_bytes,
                    written: kind == FileExtentKind::Regular,
                });
            }
        }
    }

    fn data_owner(&self, leaf: &Node, ino: u64, offset: u64) -> Owner {
        if self.full.contains(&leaf.logical().0) {
            Owner::SharedData { parent: leaf.logical().0 }
        } else {
            Owner::Data { root: leaf.owner(), ino, offset }
        }
    }

    /// A pointer of a block that was read for the first time.
    pub(crate) fn child(&mut self, parent: &Node, child: u64) {
        self.block_ref(child, self.holder(parent));
    }

    fn holder(&self, parent: &Node) -> Owner {
        if self.full.contains(&parent.logical().0) {
            Owner::SharedTree { parent: parent.logical().0 }
        } else {
            Owner::Tree { root: parent.owner() }
        }
    }

    /// In a half deleted tree: the reference of this pointer went already.
    pub(crate) fn is_dropped(&self, parent: &Node, child: u64) -> bool {
        let stored = self.stored.as_ref();
        stored.is_some_and(|stored| !stored.contains(&(child, self.holder(parent))))
    }

    fn block_ref(&mut self, start: u64, owner: Owner) {
        self.push(RefRecord { start, owner, count: 1, len: 0, written: true });
    }

    /// Keeps memory at the number of different references, not of items.
    fn push(&mut self, record: RefRecord) {
        if self.refs.len() >= self.compact_at.max(1 << 20) {
            merge(&mut self.refs);
            self.compact_at = self.refs.len() * 2;
        }
        self.refs.push(record);
    }

    /// All references, merged, in order of extents.
    pub(crate) fn take_refs(&mut self) -> Vec<RefRecord> {
        let mut refs = std::mem::take(&mut self.refs);
        merge(&mut refs);
        refs
    }
}
