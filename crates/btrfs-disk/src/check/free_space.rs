//! The free-space tree's items, and the header items of the v1 cache.

use super::ensure;
use super::item::{Item, Rules, Verdict, end_of, sized};
use crate::ids::{FREE_INO_OBJECTID, FREE_SPACE_OBJECTID};
use crate::items::{FREE_SPACE_USING_BITMAPS, FreeSpaceInfo};
use crate::key::kind;
use crate::le::FixedSize;
use crate::le::wide;

pub(super) fn free_space(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    let (start, len) = (item.key.objectid, item.key.offset);
    rules.aligned("free space at", start)?;
    ensure!(len > 0, "empty range of free space");
    rules.aligned("free space of", len)?;
    end_of("free space", start, len)?;
    match item.key.kind {
        kind::FREE_SPACE_INFO => {
            sized(item, FreeSpaceInfo::SIZE)?;
            let flags = FreeSpaceInfo::read(item.data)?.flags;
            ensure!(flags & !FREE_SPACE_USING_BITMAPS == 0, "free space flags {flags:#x}");
        }
        kind::FREE_SPACE_EXTENT => sized(item, 0)?,
        _ => {
            let bits = len / rules.sector();
            ensure!(
                wide(item.data.len()) == bits.div_ceil(8),
                "{} bytes of bitmap for {bits} sectors",
                item.data.len()
            );
        }
    }
    apart_from_previous(item)
}

/// Ranges do not overlap; the summary of a block group covers those behind it.
fn apart_from_previous(item: &Item<'_>) -> Verdict {
    let previous = match item.key.kind {
        kind::FREE_SPACE_INFO => {
            &[kind::FREE_SPACE_INFO, kind::FREE_SPACE_EXTENT, kind::FREE_SPACE_BITMAP][..]
        }
        _ => &[kind::FREE_SPACE_EXTENT, kind::FREE_SPACE_BITMAP][..],
    };
    let Some((key, _)) = item.previous_of(previous) else { return Ok(()) };
    let end = end_of("free space", key.objectid, key.offset)?;
    ensure!(end <= item.key.objectid, "the range in front ends at {end}");
    Ok(())
}

/// The v1 cache: key of its inode (17), generation, entries, bitmaps (8 each).
pub(super) fn v1_header(item: &Item<'_>) -> Verdict {
    match item.key.objectid {
        FREE_SPACE_OBJECTID | FREE_INO_OBJECTID => sized(item, 41),
        _ => Ok(()),
    }
}
