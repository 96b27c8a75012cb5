//! Putting content into extents: allocate, checksum, write; then, in one operation, the
//! file extent items, references, checksums and the inode.
//!
//! Invariants: data has reached the device (its write returned) before the delta names
//! it; a failure before that gives every new extent back, so nothing ever names what the device
//! refused. A refusal is told to the caller, who has the content still; the volume goes on
//! (writeback_errors.rs).

use super::Writeback;
use super::place::{EXTENT_MAX, Target, cut, place, place_in_own};
use super::unstored::Unstored;
use crate::error::{IntoFs, from_corrupt, to_fs};
use crate::extents::sums;
use crate::extents::{Mapped, MappedKind, drop_range, map_near, put_extent};
use crate::ino::InodeId;
use crate::inode::{State, change, put_inode};
use btrfs_disk::items::{Compression, FileExtentFields, FileExtentKind, inode_flags};
use btrfs_disk::key::kind::EXTENT_DATA;
use btrfs_disk::{Corrupt, Key, Logical, TreeId};
use btrfs_space::Extent;
use btrfs_txn::{Op, budget};
use vfs::Result;

/// Direct writes grow an extent until it is so many times their length: who writes directly
/// overwrites parts, which gives nothing back before all of an extent is gone, and each write
/// passes over the items that the extent in front has taken the place of.
/// Chosen, not measured.
const GROWTH: u64 = 32;

/// How far content has come when `store` returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteMode {
    /// The host may have it in its cache; if the device refuses it later, the volume ends.
    Buffered,
    /// It will not be refused later.
    Through,
    /// The device has taken it, and its writer will overwrite parts of it.
    Direct,
}

/// A piece of content that is in its extent.
struct StoredPiece {
    start: u64,
    len: u64,
    place: Target,
    sums: Option<Box<[u8]>>,
}

impl StoredPiece {
    /// What it took of the reservation.
    fn paid(&self) -> u64 {
        match &self.place {
            Target::New(extent) => extent.len,
            Target::Existing { .. } => 0,
        }
    }
}

/// Stores `slices` (whole sectors) at file offset `start`. The caller holds the inode, has
/// set its size, and owns a reservation of data space of that length. What new extents took of
/// the reservation is settled here; the answer is how much that was.
pub(crate) fn store(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    start: u64,
    slices: &[&[u8]],
    way: WriteMode,
) -> std::result::Result<u64, Unstored> {
    // Metadata for it was reserved with the content (`cost::content`).
    budget::suspended(|| store_at(writeback, id, state, (start, slices, way), false))
}

/// As `store`, into extents that the file has, for which no space is reserved; metadata is, for the operation.
/// ENOSPC: that is not possible, and nothing has changed.
pub(crate) fn store_in_own(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    start: u64,
    slices: &[&[u8]],
    way: WriteMode,
) -> std::result::Result<u64, Unstored> {
    store_at(writeback, id, state, (start, slices, way), true)
}

fn store_at(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    (start, slices, way): (u64, &[&[u8]], WriteMode),
    in_own: bool,
) -> std::result::Result<u64, Unstored> {
    let len: u64 = slices.iter().map(|s| s.len() as u64).sum();
    let end = start + len;
    let mapped = readable(writeback, id, state, (start, end))?;
    let piece = (start, end, slices, way);
    // All of it before anything is written.
    let own = match in_own {
        true => place_in_own(writeback, id, state, (start, end), &mapped)?,
        false => Vec::new(),
    };
    let landed = land(writeback, id, state, piece, (&mapped, own))?;
    let new = landed.iter().filter(|piece| piece.paid() > 0).count();
    let mut paid = 0;
    let most = if way == WriteMode::Direct { GROWTH * len } else { EXTENT_MAX };
    let enter_all = |op: &Op<'_>| {
        op.run(|| {
            landed.into_iter().try_for_each(|piece| {
                paid += piece.paid();
                enter(op, id, state, most.min(EXTENT_MAX), piece)
            })
        })?;
        put_inode(op, id, state);
        Ok(())
    };
    change(&writeback.core, enter_all)?;
    writeback.stats.data_extents.add(new as u64);
    writeback.stats.data_written_bytes.add(len);
    Ok(paid)
}

/// What lies in [start, end). That and what is in front of it will be read again halfway through an
/// operation, where an error would end the volume.
pub(super) fn readable(
    writeback: &Writeback,
    id: InodeId,
    state: &State,
    (start, end): (u64, u64),
) -> std::result::Result<Vec<Mapped>, Unstored> {
    let (view, sector) = (writeback.core.view(), writeback.core.sector());
    let map = |range| map_near(&view, id, sector, range, state.near).fs().map_err(Unstored::Unread);
    if start > 0 {
        map((start - 1, start))?;
    }
    let mapped = map((start, end))?;
    // An item that could not be read when this was written: it would go with content that is nowhere else.
    let all = state.item.size.next_multiple_of(sector);
    let cut = |m: &&Mapped| m.is_inline() && (start > m.start || end < m.end.min(all));
    if let Some(item) = mapped.iter().find(cut) {
        let why = format!("content from {start} to {end} in an inline item up to {}", item.end);
        let key = Key::new(id.objectid, EXTENT_DATA, item.start);
        return Err(Unstored::Unread(from_corrupt(Corrupt::new(why).key(key))));
    }
    Ok(mapped)
}

/// Writes everything, first to the places that are known; on an error nothing stays allocated.
fn land(
    writeback: &Writeback,
    id: InodeId,
    state: &State,
    (start, end, slices, way): (u64, u64, &[&[u8]], WriteMode),
    (mapped, places): (&[Mapped], Vec<(u64, Target)>),
) -> std::result::Result<Vec<StoredPiece>, Unstored> {
    let with_sums = state.item.flags & inode_flags::NODATASUM == 0;
    let mut landed = Vec::new();
    let (mut at, mut places) = (start, places.into_iter());
    while at < end {
        let placed = places.next().map_or_else(|| place(writeback, id, state, at, end, mapped), Ok);
        let result = placed.and_then(|(len, place)| {
            let part = cut(slices, at - start, len);
            let logical = match &place {
                Target::New(extent) => extent.logical,
                Target::Existing { logical, .. } => *logical,
            };
            let through = through(writeback, way);
            if let Err(error) = writeback.core.volume.write_content(logical, &part, through) {
                writeback.errors.note(id, &error);
                if let Target::New(extent) = &place {
                    writeback.reservations.unallocate(*extent);
                }
                return Err(Unstored::Refused(to_fs(error)));
            }
            let sums = with_sums.then(|| sums::compute(&writeback.core, &part));
            Ok(StoredPiece { start: at, len, place, sums })
        });
        match result {
            Ok(piece) => {
                at += piece.len;
                landed.push(piece);
            }
            Err(error) => {
                give_back(writeback, &landed);
                return Err(error);
            }
        }
    }
    Ok(landed)
}

pub(super) fn through(writeback: &Writeback, way: WriteMode) -> bool {
    match way {
        WriteMode::Buffered => false,
        WriteMode::Through => writeback.core.volume.tells_late(),
        WriteMode::Direct => true,
    }
}

fn give_back(writeback: &Writeback, landed: &[StoredPiece]) {
    for piece in landed {
        if let Target::New(extent) = &piece.place {
            writeback.reservations.unallocate(*extent);
        }
    }
}

/// One landed piece enters the epoch, in an extent of `most` bytes at most if it makes one grow.
fn enter(op: &Op<'_>, id: InodeId, state: &mut State, most: u64, piece: StoredPiece) -> Result<()> {
    let end = piece.start + piece.len;
    // Items change with each piece, so read them anew through the operation's own view.
    let sector = op.core.sector();
    let now = map_near(&op.view, id, sector, (piece.start, end), state.near).fs()?;
    match piece.place {
        Target::New(extent) => {
            drop_range(op, id, state, &now, piece.start, end)?;
            let start = match grow_previous(op, id, state, most, piece.start, &extent)? {
                Some(start) => start,
                None => insert_new(op, id, state, piece.start, &extent)?,
            };
            if let Some(sums) = piece.sums {
                op.put_sums(start, extent.logical, sums);
            }
        }
        Target::Existing { logical, of } => {
            rewrite(op, id, state, &now, piece.start, end, &of)?;
            if let (Some(sums), MappedKind::Extent { fields, .. }) = (piece.sums, &of.kind) {
                op.put_sums(fields.disk_bytenr, logical, sums);
            }
        }
    }
    Ok(())
}

fn insert_new(
    op: &Op<'_>,
    id: InodeId,
    state: &mut State,
    start: u64,
    extent: &Extent,
) -> Result<Logical> {
    let (kind, place) = (FileExtentKind::Regular, extent.logical);
    let fields = FileExtentFields::stored(op.generation(), kind, place, extent.len);
    op.allocate(*extent, (id.tree, id.objectid, start)).fs()?;
    state.near = Some(start);
    put_extent(op, id, state, start, &fields);
    Ok(extent.logical)
}

/// Makes the extent in front longer where content and space go on without a gap, so that
/// a file written bit by bit still has few extents. Returns where that extent begins.
fn grow_previous(
    op: &Op<'_>,
    id: InodeId,
    state: &mut State,
    most: u64,
    start: u64,
    extent: &Extent,
) -> Result<Option<Logical>> {
    if start == 0 {
        return Ok(None);
    }
    let sector = op.core.sector();
    let before = map_near(&op.view, id, sector, (start - 1, start), state.near).fs()?;
    let Some(previous) = before.last().filter(|m| m.end == start) else { return Ok(None) };
    let MappedKind::Extent {
        kind: FileExtentKind::Regular,
        compression: Compression::None,
        fields,
    } = &previous.kind
    else {
        return Ok(None);
    };
    let joins = fields.disk_bytenr.0 != 0
        && fields.offset == 0
        && fields.num_bytes == fields.disk_num_bytes
        && fields.disk_bytenr.0 + fields.disk_num_bytes == extent.logical.0
        && fields.disk_num_bytes + extent.len <= most
        && op.core.same_chunk(fields.disk_bytenr, extent.logical);
    let who: (TreeId, u64, u64) = (id.tree, id.objectid, previous.start);
    if !joins || !op.extend(fields.disk_bytenr, fields.disk_num_bytes, extent.len, who) {
        return Ok(None);
    }
    state.near = Some(previous.start);
    let len = fields.disk_num_bytes + extent.len;
    let grown = FileExtentFields { ram_bytes: len, disk_num_bytes: len, num_bytes: len, ..*fields };
    state.item.nbytes = state.item.nbytes.saturating_sub(fields.num_bytes);
    put_extent(op, id, state, previous.start, &grown);
    Ok(Some(fields.disk_bytenr))
}

/// Content landed inside an extent that the file has: the part becomes a regular item of
/// its own, cut out of the preallocated one.
fn rewrite(
    op: &Op<'_>,
    id: InodeId,
    state: &mut State,
    now: &[Mapped],
    start: u64,
    end: u64,
    of: &Mapped,
) -> Result<()> {
    let MappedKind::Extent { kind, fields, .. } = &of.kind else { return Ok(()) };
    if *kind == FileExtentKind::Regular {
        return Ok(());
    }
    // The new reference first: dropping the only one would give the extent back.
    let origin = of.start.wrapping_sub(fields.offset);
    let who = (id.tree, id.objectid, origin);
    op.reference(fields.disk_bytenr, fields.disk_num_bytes, who, 1).fs()?;
    drop_range(op, id, state, now, start, end)?;
    let part = FileExtentFields {
        generation: op.generation().0,
        kind: FileExtentKind::Regular as u8,
        offset: fields.offset + (start - of.start),
        num_bytes: end - start,
        ..*fields
    };
    put_extent(op, id, state, start, &part);
    Ok(())
}
