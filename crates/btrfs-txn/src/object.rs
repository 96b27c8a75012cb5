//! The address of an object: all items of one tree that share an object id.

use btrfs_disk::TreeId;

/// An inode's items have one, an orphan list's, a directory's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ObjectId {
    pub tree: TreeId,
    pub objectid: u64,
}

impl ObjectId {
    pub fn new(tree: TreeId, objectid: u64) -> ObjectId {
        ObjectId { tree, objectid }
    }
}
