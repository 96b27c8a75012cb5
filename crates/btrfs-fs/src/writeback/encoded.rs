//! Storing what somebody else compressed, as it is: a stream that was decompressed to see what is in
//! it, with the part of it that the file gets.
//!
//! Invariants: as in packed.rs. What the format does not allow as it is is left to the caller, who
//! has the content; nothing has changed then.

use super::Writeback;
use super::land::{may_inline, store_inline};
use super::packed::{CompressedRange, count, enter};
use super::store::{WriteMode, readable, through};
use super::unstored::Unstored;
use crate::error::to_fs;
use crate::extents::sums;
use crate::ino::InodeId;
use crate::inode::{State, change, put_inode};
use crate::options::compression::incompat_of;
use btrfs_disk::compress::Encoded;
use btrfs_disk::items::{Compression, inode_flags};
use btrfs_space::Extent;
use btrfs_txn::budget;
use std::borrow::Cow;
use vfs::{Errno, FsError};

/// How a file may have it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fit<'e> {
    /// In its item, for it is all that the file has.
    Item(&'e [u8]),
    /// In an extent of its own.
    Extent(&'e [u8]),
}

impl Writeback {
    /// How the file may have `encoded` at `offset` as it is, if at all: content without checksums is
    /// never compressed, extents begin and end with sectors unless the file ends there.
    pub(crate) fn fits<'e>(
        &self,
        state: &State,
        offset: u64,
        encoded: &Encoded<'e>,
    ) -> Option<Fit<'e>> {
        let never = inode_flags::NODATACOW | inode_flags::NODATASUM;
        let sector = self.core.sector();
        let end = offset + encoded.content().len() as u64;
        let whole = end.is_multiple_of(sector) || end >= state.item.size;
        if state.item.flags & never != 0 || !offset.is_multiple_of(sector) || !whole {
            return None;
        }
        let inline = encoded.for_item(sector as usize).filter(|stream| {
            let most = self.core.geometry.max_inline();
            let alone = offset == 0 && state.item.size <= end;
            alone && stream.len() <= most && may_inline(state)
        });
        let extent = || encoded.for_extent(sector as usize).map(Fit::Extent);
        inline.map(Fit::Item).or_else(extent)
    }

    /// Space that content takes until it has landed: of the file, or of the stream where that is
    /// more than the file's part of it.
    pub(crate) fn room_for(&self, encoded: &Encoded<'_>) -> u64 {
        let stream = encoded.for_extent(self.core.geometry.sector_size as usize).unwrap_or(&[]);
        let longer = encoded.content().len().max(stream.len()) as u64;
        longer.next_multiple_of(self.core.sector())
    }
}

/// Stores it in the file's item. The caller holds the inode, has set its size and owns the
/// content that was dirty.
pub(crate) fn store_item(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    (kind, stream): (Compression, &[u8]),
) -> std::result::Result<(), Unstored> {
    writeback.core.volume.announce(incompat_of(kind));
    budget::suspended(|| store_inline(writeback, id, state, (kind, stream)))?;
    Ok(())
}

/// Stores `stream`, which `encoded` is a part of, in an extent at `offset`. The caller holds the
/// inode, has set its size, and owns a reservation of [`Writeback::room_for`]. Answers what of
/// that the extent took. ENOSPC: there is no room in one piece.
pub(crate) fn store_extent(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    (offset, encoded, stream): (u64, &Encoded<'_>, &[u8]),
) -> std::result::Result<u64, Unstored> {
    let sector = writeback.core.sector();
    let sectors = |len: usize| (len as u64).next_multiple_of(sector);
    let mut padded = Cow::Borrowed(stream);
    if !stream.len().is_multiple_of(sector as usize) {
        padded.to_mut().resize(sectors(stream.len()) as usize, 0);
    }
    let len = sectors(encoded.content().len());
    readable(writeback, id, state, (offset, offset + len))?;
    let extent = land(writeback, id, &padded)?;
    let kind = encoded.compression();
    writeback.core.volume.announce(incompat_of(kind));
    let sums = sums::compute(&writeback.core, &[&padded]);
    let place = CompressedRange {
        start: offset,
        len,
        whole: encoded.whole_len().next_multiple_of(sector),
        within: encoded.within(),
    };
    // Metadata for it was reserved with the content (`cost::content`).
    budget::suspended(|| {
        change(&writeback.core, |op| {
            op.run(|| enter(op, id, state, (kind, &place), (&extent, Some(sums))))?;
            put_inode(op, id, state);
            Ok(())
        })
    })?;
    count(writeback, 1, place.len, extent.len);
    Ok(extent.len)
}

/// Writes it into a new extent; on an error nothing stays allocated.
fn land(
    writeback: &Writeback,
    id: InodeId,
    stream: &[u8],
) -> std::result::Result<Extent, Unstored> {
    let whole = writeback.reservations.allocate_whole(stream.len() as u64)?;
    let extent = whole.ok_or(FsError::Posix(Errno::ENOSPC))?;
    let through = through(writeback, WriteMode::Through);
    if let Err(error) = writeback.core.volume.write_content(extent.logical, &[stream], through) {
        writeback.errors.note(id, &error);
        writeback.reservations.unallocate(extent);
        return Err(Unstored::Refused(to_fs(error)));
    }
    Ok(extent)
}
