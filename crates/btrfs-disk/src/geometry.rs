//! The sizes that rule a volume, and what follows from them for nodes and items.
//!
//! It does not know where they come from (the superblock).

use crate::checksum::ChecksumType;
use crate::items::FILE_EXTENT_INLINE_HEADER;
use crate::le::index;
use crate::node::{HEADER_SIZE, ITEM_SIZE, KEY_PTR_SIZE};

/// Sizes that rule a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of a sector: content, its checksums and free space are counted in them.
    pub sector_size: u32,
    /// Bytes of a node of any tree.
    pub node_size: u32,
    /// Type of all checksums.
    pub csum: ChecksumType,
    /// The UUID that node headers carry (metadata_uuid where it is set).
    pub metadata_uuid: [u8; 16],
    /// The UUID of the chunk tree, which every node header repeats.
    pub chunk_tree_uuid: [u8; 16],
}

impl Geometry {
    /// Bytes of a leaf for item headers and data together.
    pub fn leaf_space(&self) -> usize {
        index(self.node_size) - HEADER_SIZE
    }

    /// Key pointers of an interior node.
    pub fn max_pointers(&self) -> usize {
        self.leaf_space() / KEY_PTR_SIZE
    }

    /// Largest data of one item.
    pub fn max_item_size(&self) -> usize {
        self.leaf_space() - ITEM_SIZE
    }

    /// Largest inline file extent content that the kernel's defaults would make.
    pub fn max_inline(&self) -> usize {
        let room = self.max_item_size() - FILE_EXTENT_INLINE_HEADER;
        room.min(2048).min(index(self.sector_size) - 1)
    }
}
