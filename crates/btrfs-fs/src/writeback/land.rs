//! A range of unwritten content lands: in extents, or in the file's item where it is short.
//!
//! What it does not know: which ranges are due, and what was compressed ahead.

use super::Writeback;
use super::store::{WriteMode, store};
use super::unstored::Unstored;
use crate::error::IntoFs;
use crate::extents::{drop_range, map_range};
use crate::ino::InodeId;
use crate::inode::{Dirty, ErrorSeen, State, put_inode};
use btrfs_disk::items::{Compression, FileExtent, inode_flags};
use btrfs_disk::key::kind::EXTENT_DATA;
use btrfs_txn::BATCH;
use vfs::Result;

/// What nobody asks for is written by `WriteMode::Through` from this length on: to wait for each of many
/// small files would take a multiple of the time.
/// Chosen, not measured.
const WRITE_THROUGH_FROM: u64 = 64 << 10;

/// Stores what is dirty from `start` on, as it is: one run of it, and no more than `most` bytes.
pub(super) fn flush_run(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    dirty: &mut Box<Dirty>,
    start: u64,
    (most, way): (u64, WriteMode),
) -> Result<()> {
    let end = dirty.run_end_until(start, start + most);
    flush_range(writeback, id, state, dirty, (start, end), way)
}

/// Stores [start, end), which is dirty, as it is.
pub(super) fn flush_range(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    dirty: &mut Box<Dirty>,
    (start, end): (u64, u64),
    way: WriteMode,
) -> Result<()> {
    if can_inline(writeback, state, dirty) {
        let content = &dirty.slices(0, writeback.core.sector())[0][..state.item.size as usize];
        store_inline(writeback, id, state, (Compression::None, content))?;
        dirty.remove(start, end);
        writeback.reservations.forget_landed(end - start, 0);
        return Ok(());
    }
    let landed = land_range(writeback, id, state, dirty, (start, end), way);
    if let Err(Unstored::Refused(error)) = &landed {
        ErrorSeen::refused(&mut state.refused);
        writeback.errors.keep(id, error);
    }
    landed.map_err(Unstored::of_acknowledged)
}

/// Stores [start, end), which is dirty, in extents. Who hears of a refusal is the caller's affair.
fn land_range(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    dirty: &mut Box<Dirty>,
    (start, end): (u64, u64),
    way: WriteMode,
) -> std::result::Result<(), Unstored> {
    // `store` derives the size for the volume from what is still dirty beside it.
    let size = state.item.size;
    state.pending_from = dirty.first_beside(state.landed_size, start..end);
    let slices = dirty.slices(start, end);
    let stored = store(writeback, id, state, start, &slices, way_for(end - start, way));
    state.pending_from = None;
    debug_assert_eq!(size, state.item.size);
    let paid = stored?;
    dirty.remove(start, end);
    writeback.reservations.forget_landed(end - start, paid);
    Ok(())
}

/// Stores what is dirty in front of the sector of `before` from the end of the file on the volume on, for who is about
/// to store that sector anew and more behind it, and hears it where that is refused: it stays in memory then. What he
/// stores anew keeps what it has on the volume: preallocated space takes content once. The caller holds addresses still.
pub(crate) fn land_in_front(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    before: u64,
) -> Result<()> {
    let Some(mut dirty) = state.dirty.take() else { return Ok(()) };
    let sector = writeback.core.sector();
    let before = before / sector * sector;
    let mut landed = Ok(());
    while landed.is_ok()
        && let Some(first) = dirty.first_from(state.landed_size).filter(|first| *first < before)
    {
        let start = first / sector * sector;
        let end = dirty.run_end_until(start, before.min(start + BATCH));
        let range = (start, end);
        landed = land_range(writeback, id, state, &mut dirty, range, WriteMode::Through);
    }
    if !dirty.is_empty() {
        state.dirty = Some(dirty);
    }
    Ok(landed?)
}

pub(super) fn way_for(len: u64, way: WriteMode) -> WriteMode {
    if len < WRITE_THROUGH_FROM { way } else { WriteMode::Through }
}

/// Content may be in the file's item. Of one that has space of its own all lies in extents: behind an item nothing could be
/// written into that space.
pub(super) fn may_inline(state: &State) -> bool {
    let has_space = inode_flags::NODATACOW | inode_flags::PREALLOC;
    !state.no_inline && state.item.flags & has_space == 0
}

/// The whole file is one short dirty sector: its content fits into its item.
fn can_inline(writeback: &Writeback, state: &State, dirty: &Dirty) -> bool {
    let size = state.item.size;
    size > 0
        && may_inline(state)
        && size <= writeback.core.geometry.max_inline() as u64
        && dirty.bytes() == writeback.core.sector()
        && dirty.covers(0)
}

/// All of the file goes into its item: `content`, or a stream of it.
pub(super) fn store_inline(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    (compression, content): (Compression, &[u8]),
) -> Result<()> {
    let sector = writeback.core.sector();
    let op = writeback.core.begin();
    let mapped = map_range(&op.view, id, sector, 0, sector).fs();
    let mapped = mapped.map_err(|error| Unstored::Unread(error).of_acknowledged())?;
    op.run(|| drop_range(&op, id, state, &mapped, 0, sector))?;
    let ram_bytes = state.item.size;
    let generation = op.generation().0;
    let extent = FileExtent::Inline { generation, ram_bytes, compression, content };
    op.put(id, EXTENT_DATA, 0, extent.to_vec().into());
    state.item.nbytes = state.item.nbytes.saturating_add(ram_bytes);
    state.inline_end = Some(sector);
    put_inode(&op, id, state);
    drop(op);
    writeback.stats.inline_extents.add(1);
    Ok(())
}
