//! Which ranges of which extents a file's content is: what copies share can be told by it.

use super::map::{Mapped, MappedKind, map_parts};
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
    let mut ranges = Vec::new();
    let take = |mapped: &[Mapped]| {
        ranges.extend(mapped.iter().filter_map(stored_range));
        true
    };
    map_parts(&core.view(), inode.id, core.sector(), (0, u64::MAX), take).fs()?;
    Ok(ranges)
}

fn stored_range(mapped: &Mapped) -> Option<Stored> {
    let MappedKind::Extent { fields, .. } = &mapped.kind else { return None };
    let (start, len) = (fields.offset, fields.num_bytes);
    (!mapped.is_hole()).then_some(Stored { extent: fields.disk_bytenr.0, start, len })
}
