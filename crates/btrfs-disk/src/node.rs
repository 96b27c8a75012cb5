//! Tree nodes whose bytes have been through the gate.
//!
//! Layout: a header of 101 bytes; in a leaf, item headers of 25 bytes growing up and
//! item data growing down from the end; in an interior node, key pointers of 33 bytes.
//!
//! Invariants (established by [`crate::check`] or [`crate::build`]): keys strictly
//! ascend; every item's data lies inside the node, behind the item headers, without
//! overlap; a leaf's items are well-formed. Accessors rely on it.

use crate::buffers;
use crate::key::{KEY_SIZE, Key};
use crate::le::FixedSize;
use crate::le::index;
use crate::{Generation, Logical, TreeId};

/// Bytes of a node's [`Header`].
pub const HEADER_SIZE: usize = 101;
/// Bytes of an item header in a leaf: key, offset and length of the data.
pub const ITEM_SIZE: usize = 25;
/// Bytes of a pointer in an interior node: key, address and generation.
pub const KEY_PTR_SIZE: usize = 33;
/// No node has this level: the highest root has the one below.
pub const MAX_LEVEL: u8 = 8;

/// A bit of [`Header::flags`]: all nodes on a device have it.
pub const FLAG_WRITTEN: u64 = 1;
/// A bit of [`Header::flags`]: relocation made the node, so trees may share it that have no
/// snapshot since.
pub const FLAG_RELOC: u64 = 2;
/// Backref revision 1 ("mixed") in the top byte of the flags.
pub const BACKREF_REV_SHIFT: u32 = 56;

le_struct! {
    /// What each node begins with.
    pub struct Header[101] {
        /// Checksum of all that is behind this field, to the node's end; behind the digest zeros.
        csum: [u8; 32],
        /// The volume's: [`Geometry::metadata_uuid`](crate::Geometry).
        fsid: [u8; 16],
        /// The node's own logical address.
        bytenr: Logical,
        /// [`FLAG_WRITTEN`], [`FLAG_RELOC`], and in the top byte the revision of back-references.
        flags: u64,
        /// The same in all nodes of a volume.
        chunk_tree_uuid: [u8; 16],
        /// The commit that wrote the node.
        generation: Generation,
        /// The tree that the node was made for; others may share it.
        owner: TreeId,
        /// Items of a leaf, pointers of an interior node.
        nritems: u32,
        /// 0 for a leaf; for others one more than that of their children.
        level: u8,
    }
}

/// What an interior node says of one child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChildPtr {
    /// The child's first key.
    pub key: Key,
    /// Where the child lies.
    pub logical: Logical,
    /// The commit that wrote the child.
    pub generation: Generation,
}

/// A node of a tree whose bytes the gate let through, or the builder made.
pub struct Node {
    bytes: Box<[u8]>,
    header: Header,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("logical", &self.header.bytenr)
            .field("owner", &self.header.owner)
            .field("level", &self.header.level)
            .field("items", &self.header.nritems)
            .finish()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        buffers::done_with(std::mem::take(&mut self.bytes));
    }
}

impl Node {
    /// Only the gate and the builder may call this.
    pub(crate) fn trusted(bytes: Box<[u8]>) -> Node {
        let header = Header::read(&bytes).expect("a node is larger than its header");
        Node { bytes, header }
    }

    /// What the node says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// All of the node. The checksum of one that was built is still to be set.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where it lies.
    pub fn logical(&self) -> Logical {
        self.header.bytenr
    }

    /// The commit that wrote it.
    pub fn generation(&self) -> Generation {
        self.header.generation
    }

    /// The tree that it was made for; it may be another's, too.
    pub fn owner(&self) -> TreeId {
        self.header.owner
    }

    /// 0 for a leaf; for others one more than that of their children.
    pub fn level(&self) -> u8 {
        self.header.level
    }

    /// Whether it has items, not pointers.
    pub fn is_leaf(&self) -> bool {
        self.header.level == 0
    }

    /// Items of a leaf, pointers of an interior node.
    pub fn len(&self) -> usize {
        index(self.header.nritems)
    }

    /// Whether it has none: only the root of an empty tree.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn entry_at(&self, slot: usize) -> usize {
        assert!(slot < self.len(), "slot {slot} of {}", self.len());
        let stride = if self.is_leaf() { ITEM_SIZE } else { KEY_PTR_SIZE };
        HEADER_SIZE + slot * stride
    }

    /// The key of the item or pointer at `slot`; panics behind the last.
    pub fn key(&self, slot: usize) -> Key {
        let at = self.entry_at(slot);
        Key::read(self.bytes[at..at + KEY_SIZE].try_into().expect("sized"))
    }

    fn u32_at(&self, at: usize) -> usize {
        index(u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("sized")))
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("sized"))
    }

    /// Where in `bytes()` the data of the leaf item at `slot` lies.
    pub fn data_range(&self, slot: usize) -> std::ops::Range<usize> {
        assert!(self.is_leaf(), "interior nodes have no data");
        let at = self.entry_at(slot) + KEY_SIZE;
        let start = HEADER_SIZE + self.u32_at(at);
        start..start + self.u32_at(at + 4)
    }

    /// The data of the leaf item at `slot`.
    pub fn data(&self, slot: usize) -> &[u8] {
        &self.bytes[self.data_range(slot)]
    }

    /// The pointer at `slot` of an interior node.
    pub fn child(&self, slot: usize) -> ChildPtr {
        assert!(!self.is_leaf(), "leaves have no children");
        let at = self.entry_at(slot) + KEY_SIZE;
        ChildPtr {
            key: self.key(slot),
            logical: Logical(self.u64_at(at)),
            generation: Generation(self.u64_at(at + 8)),
        }
    }

    /// `Ok(slot)` of `key`, or `Err(slot)` of the first larger one.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.key(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The slot of the child of an interior node under which `key` belongs.
    pub fn child_slot(&self, key: &Key) -> usize {
        match self.search(key) {
            Ok(slot) => slot,
            Err(slot) => slot.saturating_sub(1),
        }
    }

    /// The keys of all items or pointers, ascending.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        (0..self.len()).map(|slot| self.key(slot))
    }

    /// All items of a leaf in order.
    pub fn items(&self) -> impl Iterator<Item = (Key, &[u8])> + '_ {
        (0..self.len()).map(|slot| (self.key(slot), self.data(slot)))
    }

    /// All pointers of an interior node in order; panics on a leaf that has items.
    pub fn children(&self) -> impl Iterator<Item = ChildPtr> + '_ {
        (0..self.len()).map(|slot| self.child(slot))
    }

    /// Bytes of a leaf that no item header and no data uses.
    pub fn free_space(&self) -> usize {
        let used: usize = (0..self.len()).map(|slot| self.data_range(slot).len() + ITEM_SIZE).sum();
        self.bytes.len() - HEADER_SIZE - used
    }
}
