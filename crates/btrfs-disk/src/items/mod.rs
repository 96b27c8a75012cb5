//! The items of the trees, one file a family.

mod balance;
mod chunk;
mod dir;
mod extent;
mod file_extent;
mod free_space;
mod inode;
mod qgroup;
mod root;

pub use balance::{BalanceFilter, BalanceItem, balance_filter, balance_flags};
pub use chunk::{
    BlockGroupItem, Chunk, ChunkFields, DevExtent, DevItem, DevReplace, Stripe, dev_replace,
};
pub use dir::{DirEntries, DirFields, DirItem, MAX_NAME, dir_type};
pub use extent::{
    ExtentDataRef, ExtentItem, ExtentItemFields, InlineRef, SharedDataRef, extent_flags,
};
pub use file_extent::{
    Compression, FILE_EXTENT_INLINE_HEADER, FileExtent, FileExtentFields, FileExtentKind,
};
pub use free_space::{FREE_SPACE_USING_BITMAPS, FreeSpaceInfo};
pub use inode::{InodeExtRef, InodeItem, InodeRef, Timespec, VerityItem, inode_flags, mode};
pub use qgroup::{
    QGROUP_LEVEL_SHIFT, QgroupInfo, QgroupLimit, QgroupStatus, qgroup_limit, qgroup_status,
    simple_quotas_since,
};
pub use root::{ROOT_SUBVOL_DEAD, ROOT_SUBVOL_RDONLY, RootItem, RootRef};

#[cfg(test)]
mod tests;
