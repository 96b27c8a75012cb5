//! Writes into space that a file has already: what was preallocated, and what is not copied on write. For those
//! there is room on a full volume and beyond a limit, as posix_fallocate promises; and of what comes out of the
//! kernel's cache nothing is dropped that has its place.
//!
//! Invariants: no space is allocated, and nothing gathers in memory: what was written is in its extent.
//!
//! What it does not know: why there is no other room.

use super::append;
use super::io::{
    check_file, hole_to, land_before, prepare, replace, take_privileges, whole_sectors,
};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::map_range;
use crate::inode::{Inode, State};
use crate::reserve::cost;
use crate::writeback::{Own, WriteMode, is_inline, store_in_own};
use btrfs_disk::items::inode_flags;
use inode_index::Ref;
use std::ops::Range;
use vfs::{Errno, Result, WriteFlags};

/// Files without these have no such space, as for the kernel.
const HAVE_SPACE: u64 = inode_flags::PREALLOC | inode_flags::NODATACOW;

/// What came of a try.
enum Tried {
    /// It is written; true: the file's own flags want each write to be durable.
    Written(bool),
    /// Not all of it has space; with `parts` what has is written.
    Lacks,
    /// The file has more items there than there was room for.
    Outgrown,
}

/// Writes `data` to `offset` if the file has the space, or else those `parts` of it that have. `None`: not all of
/// it is written; true: the file's own flags want each write to be durable.
pub(super) fn write(
    engine: &Engine,
    inode: &Ref<Inode>,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
    parts: bool,
) -> Result<Option<bool>> {
    let range = sectors_of(engine, offset, data);
    loop {
        let items = {
            let state = inode.read()?;
            if state.item.flags & HAVE_SPACE == 0 {
                return Ok(None);
            }
            let (view, sector) = (engine.core.view(), engine.core.sector());
            map_range(&view, inode.id, sector, range.start, range.end).fs()?.len()
        };
        let sectors = (range.end - range.start) / engine.core.sector();
        let cost = cost::write_in_place(&engine.core.geometry, sectors, items as u64);
        let _room = engine.reserver.reserve(cost)?;
        match write_locked(engine, inode, (offset, data), flags, (parts, items))? {
            Tried::Written(wants_sync) => return Ok(Some(wants_sync)),
            Tried::Lacks => return Ok(None),
            Tried::Outgrown => {}
        }
    }
}

fn sectors_of(engine: &Engine, offset: u64, data: &[u8]) -> Range<u64> {
    let sector = engine.core.sector();
    offset / sector * sector..(offset + data.len() as u64).next_multiple_of(sector)
}

fn write_locked(
    engine: &Engine,
    inode: &Ref<Inode>,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
    (parts, items): (bool, usize),
) -> Result<Tried> {
    let _queued = engine.writeback.queue().add_at_end(inode);
    let _still = engine.core.addresses.hold_still();
    let mut state = engine.write(inode)?;
    let state = &mut *state;
    check_file(state)?;
    let range = sectors_of(engine, offset, data);
    let Own { runs, items: own } =
        engine.writeback.own(inode.id, state, (range.start, range.end))?;
    if own > items {
        return Ok(Tried::Outgrown);
    }
    let whole = runs.first() == Some(&range);
    if !(whole || parts) || runs.is_empty() || gathers_before(engine, inode, state, offset)? {
        return Ok(Tried::Lacks);
    }
    let mut nothing = engine.reservations.hold_dirty(0, None);
    let size = state.item.size;
    prepare(engine, inode, state, (offset, data, flags), &mut nothing)?;
    take_privileges(engine, inode, state, flags)?;
    let mut written = Vec::new();
    let stored = runs.into_iter().try_for_each(|run| {
        let (from, to) = (run.start.max(offset), run.end.min(offset + data.len() as u64));
        let part = &data[(from - offset) as usize..(to - offset) as usize];
        write_run(engine, inode, state, (from, part), flags)?;
        written.push(from..to);
        Ok(())
    });
    state.item_dirty = true;
    append::wrote(state, size, &written, flags);
    engine.writeback.note_written(inode, state, data.len() as u64);
    let wants_sync = state.item.flags & inode_flags::SYNC != 0;
    stored.map(|()| if whole { Tried::Written(wants_sync) } else { Tried::Lacks })
}

/// Whether something else of the file has to gather in memory first, for which there is no space: content
/// of its item, or the rest of its last sector.
fn gathers_before(engine: &Engine, inode: &Inode, state: &mut State, offset: u64) -> Result<bool> {
    let size = state.item.size;
    let leaves_a_gap = offset > size && !size.is_multiple_of(engine.core.sector());
    Ok(leaves_a_gap || is_inline(&engine.writeback, inode.id, state)?)
}

/// Before a run that lies behind the end: what is in front of it, and was refused, becomes a hole.
fn leave_gap(engine: &Engine, inode: &Ref<Inode>, state: &mut State, from: u64) -> Result<()> {
    if from <= state.item.size {
        return Ok(());
    }
    // The rest of the last sector would have to gather in memory.
    if !state.item.size.is_multiple_of(engine.core.sector()) {
        return Err(Errno::ENOSPC.into());
    }
    hole_to(engine, inode, state, from)
}

fn write_run(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
) -> Result<()> {
    leave_gap(engine, inode, state, offset)?;
    // What has no room stays in memory, and this has its place all the same.
    let _ = land_before(engine, inode, state, offset);
    let whole = whole_sectors(engine, inode, state, offset, data)?;
    // A refusal of the device is told by this write: nothing of it stays in memory.
    let way = if flags.direct { WriteMode::Direct } else { WriteMode::Through };
    replace(engine, state, (whole.start, whole.end), |state| {
        store_in_own(&engine.writeback, inode.id, state, whole.start, &whole.parts(), way)
    })?;
    Ok(())
}
