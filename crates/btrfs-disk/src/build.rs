//! New nodes from items and pointers: the only way that bytes of a tree are made.
//!
//! Invariant: what is built here passes the gate (`check`); a debug build and every
//! commit of the tests assert it. The checksum is set last, by `seal`.

use crate::buffers;
use crate::checksum::CSUM_FIELD;
use crate::items::FileExtent;
use crate::key::{Key, kind};
use crate::le::FixedSize;
use crate::le::{index, len32};
use crate::node::{
    BACKREF_REV_SHIFT, ChildPtr, FLAG_WRITTEN, HEADER_SIZE, Header, ITEM_SIZE, KEY_PTR_SIZE, Node,
};
use crate::{Generation, Geometry, Logical, TreeId};

/// What a header says beside its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeIdentity {
    /// Where the node is to lie.
    pub logical: Logical,
    /// The commit that makes it.
    pub generation: Generation,
    /// The tree that it is made for.
    pub owner: TreeId,
}

/// One item on its way into a leaf.
#[derive(Clone, Copy, Debug)]
pub struct LeafItem<'a> {
    /// Its key, larger than that of the item in front of it.
    pub key: Key,
    /// Its data; with an item header it has to fit the leaf.
    pub data: &'a [u8],
}

impl LeafItem<'_> {
    /// Bytes of a leaf that this item takes.
    pub fn cost(&self) -> usize {
        ITEM_SIZE + self.data.len()
    }
}

fn start(geometry: &Geometry, id: &NodeIdentity, level: u8, count: usize) -> Box<[u8]> {
    let mut bytes = buffers::zeroed(index(geometry.node_size));
    let header = Header {
        csum: [0; 32],
        fsid: geometry.metadata_uuid,
        bytenr: id.logical,
        flags: FLAG_WRITTEN | 1 << BACKREF_REV_SHIFT,
        chunk_tree_uuid: geometry.chunk_tree_uuid,
        generation: id.generation,
        owner: id.owner,
        nritems: len32(count),
        level,
    };
    header.write(&mut bytes);
    bytes
}

/// A leaf of `items`, which ascend and fit (the caller's invariant, asserted).
pub fn leaf(geometry: &Geometry, id: &NodeIdentity, items: &[LeafItem<'_>]) -> Node {
    let cost: usize = items.iter().map(LeafItem::cost).sum();
    assert!(cost <= geometry.leaf_space(), "{cost} bytes do not fit a leaf");
    debug_assert!(items.windows(2).all(|w| w[0].key < w[1].key), "items ascend");
    let mut bytes = start(geometry, id, 0, items.len());
    let mut end = geometry.leaf_space();
    for (slot, item) in items.iter().enumerate() {
        end -= item.data.len();
        let at = HEADER_SIZE + slot * ITEM_SIZE;
        bytes[at..at + 17].copy_from_slice(&item.key.to_bytes());
        bytes[at + 17..at + 21].copy_from_slice(&len32(end).to_le_bytes());
        bytes[at + 21..at + 25].copy_from_slice(&len32(item.data.len()).to_le_bytes());
        let data_at = HEADER_SIZE + end;
        bytes[data_at..data_at + item.data.len()].copy_from_slice(item.data);
    }
    Node::trusted(bytes)
}

/// An interior node of `children`, which ascend and fit (asserted).
pub fn interior(geometry: &Geometry, id: &NodeIdentity, level: u8, children: &[ChildPtr]) -> Node {
    assert!(level > 0 && !children.is_empty() && children.len() <= geometry.max_pointers());
    debug_assert!(children.windows(2).all(|w| w[0].key < w[1].key), "children ascend");
    let mut bytes = start(geometry, id, level, children.len());
    for (slot, child) in children.iter().enumerate() {
        let at = HEADER_SIZE + slot * KEY_PTR_SIZE;
        bytes[at..at + 17].copy_from_slice(&child.key.to_bytes());
        bytes[at + 17..at + 25].copy_from_slice(&child.logical.0.to_le_bytes());
        bytes[at + 25..at + 33].copy_from_slice(&child.generation.0.to_le_bytes());
    }
    Node::trusted(bytes)
}

/// `node` at another address, or with other pointers in it: `id` says where and when (its owner is
/// not asked: whose the pointers are does not change), `flags` are set beside those that it
/// has, and `children` (of an interior node) have the keys of the old ones.
pub fn moved(node: &Node, id: &NodeIdentity, flags: u64, children: Option<&[ChildPtr]>) -> Node {
    let mut bytes = buffers::of(node.bytes());
    let header = Header {
        csum: [0; 32],
        bytenr: id.logical,
        generation: id.generation,
        flags: node.header().flags | flags,
        ..*node.header()
    };
    bytes[..HEADER_SIZE].copy_from_slice(&header.to_vec());
    for (slot, child) in children.unwrap_or_default().iter().enumerate() {
        assert_eq!(node.key(slot), child.key, "the same children elsewhere");
        let at = HEADER_SIZE + slot * KEY_PTR_SIZE;
        bytes[at + 17..at + 25].copy_from_slice(&child.logical.0.to_le_bytes());
        bytes[at + 25..at + 33].copy_from_slice(&child.generation.0.to_le_bytes());
    }
    Node::trusted(bytes)
}

/// A leaf of a commit, with content that `now` answers for at another address.
pub fn renamed(leaf: Node, now: impl Fn(Logical) -> Option<Logical>) -> Node {
    /// Of `disk_bytenr` in a file extent item.
    const ADDRESS: usize = 21;
    let mut changed = Vec::new();
    for slot in 0..leaf.len() {
        if leaf.key(slot).kind != kind::EXTENT_DATA {
            continue;
        }
        if let Ok(FileExtent::Extent { fields, .. }) = FileExtent::parse(leaf.data(slot))
            && let Some(to) = now(fields.disk_bytenr)
        {
            changed.push((leaf.data_range(slot).start + ADDRESS, to));
        }
    }
    let mut bytes = buffers::of(leaf.bytes());
    for (at, to) in changed {
        bytes[at..at + 8].copy_from_slice(&to.0.to_le_bytes());
    }
    Node::trusted(bytes)
}

/// The node's bytes with their checksum, ready to be written.
pub fn seal(geometry: &Geometry, node: &Node) -> Vec<u8> {
    [&checksum(geometry, node), behind_checksum(node)].concat()
}

/// What the first bytes of the node are to be, before `behind_checksum`: neighbours are written
/// at once, without a copy of them.
pub fn checksum(geometry: &Geometry, node: &Node) -> [u8; CSUM_FIELD] {
    geometry.csum.digest(behind_checksum(node))
}

/// All of the node but for the checksum's field.
pub fn behind_checksum(node: &Node) -> &[u8] {
    &node.bytes()[CSUM_FIELD..]
}
