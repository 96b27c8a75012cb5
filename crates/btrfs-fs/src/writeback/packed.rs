//! Storing what was compressed ahead (pack.rs): each piece in an extent of its own, or in the item
//! of a short file; what did not get smaller, or was changed meanwhile, as it is. What others
//! compressed enters the epoch in the same way (encoded.rs).
//!
//! Invariants: as in store.rs; the superblock says that there are such extents before the delta
//! has one (`Volume::announce`).

use super::Writeback;
use super::land::{flush_range, flush_run, may_inline, store_inline, way_for};
use super::pack::{Packed, Piece};
use super::store::{WriteMode, readable, through};
use super::unstored::Unstored;
use crate::error::{IntoFs, to_fs};
use crate::extents::{drop_range, map_near, put_extent};
use crate::ino::InodeId;
use crate::inode::{Dirty, ErrorSeen, State, change, put_inode};
use btrfs_disk::compress::MAX_UNCOMPRESSED;
use btrfs_disk::items::{Compression, FileExtentFields, FileExtentKind, inode_flags};
use btrfs_space::Extent;
use btrfs_txn::{Op, budget};
use vfs::Result;

/// Stores the pieces in their order, until one is no longer dirty as a whole: at least one, or what
/// is dirty first.
pub(super) fn flush_packed(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    dirty: &mut Box<Dirty>,
    packed: &Packed,
    way: WriteMode,
) -> Result<()> {
    if packed.incompressible {
        state.item.flags |= inode_flags::NOCOMPRESS;
        state.item_dirty = true;
    }
    let mut rest = &packed.pieces[..];
    while !rest.is_empty() {
        let size = state.item.size;
        let made = rest.iter().take_while(|p| packed.agrees(p, dirty, size)).count();
        let stored = match &rest[..made] {
            [] => 0,
            [piece] if piece.inline => store_inline_stream(writeback, id, state, dirty, packed)?,
            pieces => store_pieces(writeback, id, state, dirty, (pieces, packed, way))?,
        };
        if stored > 0 {
            rest = &rest[stored..];
            continue;
        }
        match flush_plain(writeback, id, state, dirty, (rest, way))? {
            0 if rest.len() < packed.pieces.len() => return Ok(()),
            // Changed meanwhile, or there is no room in one piece: it must get on all the same.
            0 => return flush_first(writeback, id, state, dirty, (packed, way)),
            plain => rest = &rest[plain..],
        }
    }
    Ok(())
}

/// What is dirty first of what was compressed, as it is; nothing where somebody else has stored it all: what comes
/// behind it is compressed before.
fn flush_first(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    dirty: &mut Box<Dirty>,
    (packed, way): (&Packed, WriteMode),
) -> Result<()> {
    let left = dirty.first_from(packed.start()).filter(|start| *start < packed.end());
    let Some(start) = left else { return Ok(()) };
    flush_run(writeback, id, state, dirty, start, (MAX_UNCOMPRESSED as u64, way))
}

/// Those in front that did not get smaller, as they are. Answers how many.
fn flush_plain(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    dirty: &mut Box<Dirty>,
    (pieces, way): (&[Piece], WriteMode),
) -> Result<usize> {
    let plain = pieces.iter().take_while(|p| p.stream.is_none() && is_dirty(p, dirty)).count();
    if let Some(last) = pieces[..plain].last() {
        let range = (pieces[0].start, last.start + last.len);
        flush_range(writeback, id, state, dirty, range, way)?;
    }
    Ok(plain)
}

fn is_dirty(piece: &Piece, dirty: &Dirty) -> bool {
    let end = piece.start + piece.len;
    dirty.run_end_until(piece.start, end) == end
}

fn store_inline_stream(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    dirty: &mut Box<Dirty>,
    packed: &Packed,
) -> Result<usize> {
    let piece = &packed.pieces[0];
    // Space may have been set aside since it was compressed.
    let Some(stream) = piece.stream.as_ref().filter(|_| may_inline(state)) else { return Ok(0) };
    let content = (packed.plan.method.kind, &stream.bytes[..]);
    writeback.core.volume.announce(packed.plan.method.incompat());
    store_inline(writeback, id, state, content)?;
    dirty.remove(piece.start, piece.start + piece.len);
    writeback.reservations.forget_landed(piece.len, 0);
    Ok(1)
}

/// What the pieces will stand between can be read.
fn look_ahead(writeback: &Writeback, id: InodeId, state: &State, pieces: &[Piece]) -> Result<()> {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(()) };
    let range = (first.start, last.start + last.len);
    readable(writeback, id, state, range).map(drop).map_err(Unstored::of_acknowledged)
}

/// Answers how many of the pieces are stored: those for which there was room in one piece.
fn store_pieces(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    dirty: &mut Box<Dirty>,
    (pieces, packed, way): (&[Piece], &Packed, WriteMode),
) -> Result<usize> {
    let len: u64 = pieces.iter().map(|p| p.len).sum();
    look_ahead(writeback, id, state, pieces)?;
    let extents = match land(writeback, id, pieces, way_for(len, way)) {
        Err(Unstored::Refused(error)) => {
            ErrorSeen::refused(&mut state.refused);
            writeback.errors.keep(id, &error);
            return Err(error);
        }
        other => other?,
    };
    let pieces = &pieces[..extents.len()];
    let Some(last) = pieces.last() else { return Ok(0) };
    let (start, end) = (pieces[0].start, last.start + last.len);
    state.pending_from = dirty.first_beside(state.landed_size, start..end);
    let kind = packed.plan.method.kind;
    writeback.core.volume.announce(packed.plan.method.incompat());
    let entered = budget::suspended(|| {
        change(&writeback.core, |op| {
            let all = pieces.iter().zip(&extents);
            op.run(|| {
                all.into_iter().try_for_each(|(p, e)| enter_piece(op, id, state, (kind, p), e))
            })?;
            put_inode(op, id, state);
            Ok(())
        })
    });
    state.pending_from = None;
    entered?;
    dirty.remove(start, end);
    let paid = extents.iter().map(|extent| extent.len).sum();
    writeback.reservations.forget_landed(end - start, paid);
    count(writeback, extents.len() as u64, end - start, paid);
    Ok(extents.len())
}

pub(super) fn count(writeback: &Writeback, extents: u64, content: u64, stored: u64) {
    let stats = &writeback.stats;
    stats.data_extents.add(extents);
    stats.data_written_bytes.add(content);
    stats.compressed_extents.add(extents);
    stats.compressed_content_bytes.add(content);
    stats.compressed_stored_bytes.add(stored);
}

/// Writes the streams of the first pieces, each into a new extent; on an error nothing stays
/// allocated.
fn land(
    writeback: &Writeback,
    id: InodeId,
    pieces: &[Piece],
    way: WriteMode,
) -> std::result::Result<Vec<Extent>, Unstored> {
    let through = through(writeback, way);
    let mut extents: Vec<Extent> = Vec::new();
    let give_back = |extents: &[Extent]| {
        extents.iter().for_each(|extent| writeback.reservations.unallocate(*extent));
    };
    for stream in pieces.iter().filter_map(|piece| piece.stream.as_ref()) {
        let len = stream.bytes.len() as u64;
        let extent = match writeback.reservations.allocate_whole(len) {
            Ok(Some(extent)) => extent,
            Ok(None) => break,
            Err(error) => {
                give_back(&extents);
                return Err(error.into());
            }
        };
        extents.push(extent);
        let written =
            writeback.core.volume.write_content(extent.logical, &[&stream.bytes], through);
        if let Err(error) = written {
            writeback.errors.note(id, &error);
            give_back(&extents);
            return Err(Unstored::Refused(to_fs(error)));
        }
    }
    Ok(extents)
}

fn enter_piece(
    op: &Op<'_>,
    id: InodeId,
    state: &mut State,
    (kind, piece): (Compression, &Piece),
    extent: &Extent,
) -> Result<()> {
    let place = CompressedRange { start: piece.start, len: piece.len, whole: piece.len, within: 0 };
    let sums = piece.stream.as_ref().map(|stream| stream.sums.clone());
    enter(op, id, state, (kind, &place), (extent, sums))
}

/// What of a file is in a compressed extent, in whole sectors.
pub(super) struct CompressedRange {
    pub(super) start: u64,
    pub(super) len: u64,
    /// How much is in the extent, and where in that the file's part begins.
    pub(super) whole: u64,
    pub(super) within: u64,
}

/// What has landed in `extent` enters the epoch, with the checksums of what was stored.
pub(super) fn enter(
    op: &Op<'_>,
    id: InodeId,
    state: &mut State,
    (kind, place): (Compression, &CompressedRange),
    (extent, sums): (&Extent, Option<Box<[u8]>>),
) -> Result<()> {
    let (start, end) = (place.start, place.start + place.len);
    let now = map_near(&op.view, id, op.core.sector(), (start, end), state.near).fs()?;
    drop_range(op, id, state, &now, start, end)?;
    let fields = FileExtentFields {
        ram_bytes: place.whole,
        compression: kind as u8,
        offset: place.within,
        num_bytes: place.len,
        ..FileExtentFields::stored(
            op.generation(),
            FileExtentKind::Regular,
            extent.logical,
            extent.len,
        )
    };
    op.core.contents.forget(extent.logical.0);
    let origin = start.wrapping_sub(place.within);
    op.allocate(*extent, (id.tree, id.objectid, origin)).fs()?;
    state.near = Some(start);
    put_extent(op, id, state, start, &fields);
    if let Some(sums) = sums {
        op.put_sums(extent.logical, extent.logical, sums);
    }
    Ok(())
}
