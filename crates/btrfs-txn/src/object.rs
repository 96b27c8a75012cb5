//! The address of an object: all items of one tree that share an object id.

use btrfs_disk::TreeId;

/// An inode's items have one, an orphan list's, a directory's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ObjectId {
    /// The tree that its items are in.
    pub tree: TreeId,
    /// The first part of their keys.
    pub objectid: u64,
}

impl ObjectId {
    /// Of this tree, by this number.
    pub fn new(tree: TreeId, objectid: u64) -> ObjectId {
        ObjectId { tree, objectid }
    }

    /// Which of `parts` of a table it is in; a power of two.
    pub fn shard(&self, parts: usize) -> usize {
        spread(self.objectid ^ self.tree.0.rotate_left(32), parts)
    }
}

/// Neighbours far apart: Fibonacci hashing, of whose product the top bits are the best mixed.
pub(crate) fn spread(number: u64, parts: usize) -> usize {
    debug_assert!(parts.is_power_of_two() && parts > 1);
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - parts.trailing_zeros())) as usize
}
