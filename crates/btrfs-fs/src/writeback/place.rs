//! Where content goes: a new extent, or one that the file has already.
//!
//! What it does not know: what is written there, and when the delta names it.

use super::Writeback;
use super::unstored::Unstored;
use crate::error::IntoFs;
use crate::extents::{Mapped, MappedKind, map_range};
use crate::ino::InodeId;
use crate::inode::State;
use btrfs_disk::Logical;
use btrfs_disk::items::{Compression, FileExtentKind, inode_flags};
use btrfs_space::Extent;
use std::ops::Range;
use vfs::{Errno, FsError, Result};

/// Largest data extent, as the kernel's btrfs.
pub(super) const EXTENT_MAX: u64 = 128 << 20;

pub(super) enum Target {
    New(Extent),
    /// Into an extent that the file has: preallocated, or without copy-on-write.
    Existing {
        logical: Logical,
        of: Mapped,
    },
}

/// The bytes [skip, skip + len) of the concatenation of `slices`.
pub(super) fn cut<'a>(slices: &[&'a [u8]], mut skip: u64, mut len: u64) -> Vec<&'a [u8]> {
    let mut out = Vec::new();
    for slice in slices {
        let size = slice.len() as u64;
        if skip >= size {
            skip -= size;
            continue;
        }
        let take = (size - skip).min(len);
        if take == 0 {
            break;
        }
        out.push(&slice[skip as usize..(skip + take) as usize]);
        len -= take;
        skip = 0;
    }
    out
}

/// Where the content from `at` on goes, and how much of it. Whether others have what lies there says the extent
/// tree: where that cannot be read it is as where the file's own items cannot.
pub(super) fn place(
    writeback: &Writeback,
    id: InodeId,
    state: &State,
    at: u64,
    end: u64,
    mapped: &[Mapped],
) -> std::result::Result<(u64, Target), Unstored> {
    let mut limit = end;
    for extent in mapped.iter().filter(|m| m.end > at) {
        if !may_reuse(writeback, id, state, extent).map_err(Unstored::Unread)? {
            continue;
        }
        if extent.start > at {
            limit = limit.min(extent.start);
            break;
        }
        let Some(placed) = within(extent, at, end) else { continue };
        return Ok(placed);
    }
    let want = (limit - at).min(EXTENT_MAX);
    let extent = writeback.reservations.allocate(want)?;
    Ok((extent.len, Target::New(extent)))
}

/// Content from `at` on, which `extent` covers, in itself.
fn within(extent: &Mapped, at: u64, end: u64) -> Option<(u64, Target)> {
    let MappedKind::Extent { fields, .. } = &extent.kind else { return None };
    let logical = fields.disk_bytenr.offset(fields.offset + (at - extent.start));
    Some((extent.end.min(end) - at, Target::Existing { logical, of: extent.clone() }))
}

/// Where all content of [start, end) goes in extents that the file has; ENOSPC: there is not so much of them.
pub(super) fn place_in_own(
    writeback: &Writeback,
    id: InodeId,
    state: &State,
    (start, end): (u64, u64),
    mapped: &[Mapped],
) -> std::result::Result<Vec<(u64, Target)>, Unstored> {
    let (mut places, mut at) = (Vec::new(), start);
    for extent in mapped.iter().filter(|m| m.end > start && m.start < end) {
        let goes_on = extent.start <= at
            && may_reuse(writeback, id, state, extent).map_err(Unstored::Unread)?;
        let Some(place) = within(extent, at, end).filter(|_| goes_on) else { break };
        at += place.0;
        places.push(place);
    }
    if at < end {
        return Err(FsError::from(Errno::ENOSPC).into());
    }
    Ok(places)
}

/// What of a range of a file content may go into in place.
pub(crate) struct Own {
    /// Ascending, none begins where one ends.
    pub(crate) runs: Vec<Range<u64>>,
    /// Extent items that these are in.
    pub(crate) items: usize,
}

/// What of [start, end) is of extents that take content themselves. The caller holds the inode.
pub(super) fn own(
    writeback: &Writeback,
    id: InodeId,
    state: &State,
    (start, end): (u64, u64),
) -> Result<Own> {
    let (view, sector) = (writeback.core.view(), writeback.core.sector());
    let mut own = Own { runs: Vec::new(), items: 0 };
    for extent in map_range(&view, id, sector, start, end).fs()? {
        if !may_reuse(writeback, id, state, &extent)? {
            continue;
        }
        let part = extent.start.max(start)..extent.end.min(end);
        match own.runs.last_mut() {
            Some(run) if run.end == part.start => run.end = part.end,
            _ => own.runs.push(part),
        }
        own.items += 1;
    }
    Ok(own)
}

/// True if content may go into `extent` itself: it is preallocated or the file is not
/// copied on write, and nobody else refers to it.
fn may_reuse(writeback: &Writeback, id: InodeId, state: &State, extent: &Mapped) -> Result<bool> {
    let MappedKind::Extent { kind, compression, fields } = &extent.kind else { return Ok(false) };
    // What has checksums is copied on write whatever its flags say: between the write and a commit
    // they would be those of the old content.
    let in_place = inode_flags::NODATACOW | inode_flags::NODATASUM;
    let nocow = state.item.flags & in_place == in_place;
    let reusable = fields.disk_bytenr.0 != 0
        && *compression == Compression::None
        && (*kind == FileExtentKind::Prealloc || nocow && *kind == FileExtentKind::Regular);
    if !reusable {
        return Ok(false);
    }
    is_sole(writeback, id, extent)
}

/// False where another file, another place of this one or a snapshot has the extent, too.
pub(super) fn is_sole(writeback: &Writeback, id: InodeId, extent: &Mapped) -> Result<bool> {
    let MappedKind::Extent { fields, .. } = &extent.kind else { return Ok(false) };
    // Of one that is being deleted, too: who began before does not end before his write.
    let last_snapshot = writeback.subvols.known(id.tree).map(|subvolume| subvolume.last_snapshot());
    if last_snapshot.is_none_or(|last| fields.generation <= last.0) {
        return Ok(false);
    }
    let origin = extent.start.wrapping_sub(fields.offset);
    writeback.core.only_referrer(fields.disk_bytenr, (id.tree, id.objectid, origin)).fs()
}
