//! Which ranges of which extents a file's content is: what copies share can be told by it.

use super::map::{MappedKind, map_range};
use crate::error::IntoFs;
use crate::inode::Inode;
use btrfs_txn::Core;
use vfs::Result;

/// A range of an extent as it is when decompressed; preallocated ranges are there, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stored {
    /// The extent's address.
    pub extent: u64,
    /// Where in the file it begins.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// In the file's order; content that is inline or not written back has none.
pub(crate) fn stored(core: &Core, inode: &Inode) -> Result<Vec<Stored>> {
    let state = inode.read()?;
    if state.item.mode & vfs::mode::S_IFMT != vfs::mode::S_IFREG {
        return Ok(Vec::new());
    }
    let mapped = map_range(&core.view(), inode.id, core.sector(), 0, u64::MAX).fs()?;
    let ranges = mapped.into_iter().filter_map(|mapped| match mapped.kind {
        MappedKind::Extent { fields, .. } if fields.disk_bytenr.0 != 0 => Some(Stored {
            extent: fields.disk_bytenr.0,
            start: fields.offset,
            len: fields.num_bytes,
        }),
        _ => None,
    });
    Ok(ranges.collect())
}
