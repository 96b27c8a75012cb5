//! fallocate: allocate, punch, zero.

use super::append;
use super::behind_end::drop_content_behind_end;
use super::file::{check_file, end_of, hole_to};
use super::long_item::unfold;
use super::truncate::{
    Done, Retries, Room, changed_now, first_step, forget_unwritten, next_step, starts_inline,
    zero_tail,
};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::{
    AT_A_TIME, Mapped, drop_range, map_first, map_parts, map_range, map_step, map_stored,
    put_extent, put_hole, sectors_of, sectors_within,
};
use crate::ino::InodeId;
use crate::inode::{Inode, State, change, put_inode};
use crate::reserve::cost::{self, Cost, SMALL_STEP};
use crate::reserve::{DirtyReservation, QuotaReservation, Reservation};
use crate::writeback::{dirty_of, fill_sector, flush_to_extents, is_inline, load_inline};
use btrfs_disk::items::{FileExtentFields, FileExtentKind, inode_flags};
use btrfs_space::DataReservation;
use btrfs_txn::Defect;
use inode_index::Ref;
use std::ops::Range;
use vfs::{Errno, FallocateMode, FsError, Ino, Result};

/// Longest preallocated extent, in bytes, as the kernel's btrfs.
const PREALLOC_MAX: u64 = 256 << 20;

pub(crate) fn fallocate(
    engine: &Engine,
    ino: Ino,
    mut mode: FallocateMode,
    offset: u64,
    len: u64,
) -> Result<()> {
    if len == 0 {
        return Err(Errno::EINVAL.into());
    }
    let end = end_of(offset, len)?;
    let inode = engine.inodes.get(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    unfold(engine, &inode)?;
    let allocates = !matches!(mode, FallocateMode::PunchHole);
    let removes = !allocates && !splits(engine, &inode, offset, end)?;
    let mut retries = Retries::default();
    loop {
        let from = changes_from(engine, inode.id, &*inode.read()?, mode, (offset, end))?;
        let space = || space_for(engine, &inode, gaps(engine, &inode, mode, from, end)?);
        let (_promise, mut space) = allocates.then(space).transpose()?.unzip();
        let writes = writes_anew(engine, &inode, mode, from, end)?;
        let dirty = engine.reserver.reserve_dirty(u64::from(writes) * 4 * engine.core.sector())?;
        let reservation = match removes {
            true => engine.reserver.reserve_removal(cost::removal_of_items(SMALL_STEP))?,
            // With the first extent: nobody looks for room for it with the inode locked.
            false => engine.reserver.reserve(cost::allocate_range() + cost::extent())?,
        };
        let extents = space.as_mut();
        let mut budget = Budget { dirty, writes, extents, first: allocates, drops: removes };
        let result = locked(engine, &inode, &mut mode, offset, end, &mut budget);
        drop(budget);
        drop(reservation);
        let done = result?;
        if (done != Done::Part || !allocates) && retries.ends(engine, done)? {
            return Ok(());
        }
    }
}

fn space_for<'e>(
    engine: &'e Engine,
    inode: &Inode,
    bytes: u64,
) -> Result<(QuotaReservation<'e>, DataReservation)> {
    let promise = engine.reserver.within_limits(inode.id.tree, bytes)?;
    Ok((promise, engine.reserver.reserve_data(bytes)?))
}

/// True if the range lies within one extent, which a hole there makes two. Who writes such an extent before the file
/// is locked lets a removal do that: one item, within what that may write anew, for an ordinary
/// operation that had its own room.
fn splits(engine: &Engine, inode: &Ref<Inode>, offset: u64, end: u64) -> Result<bool> {
    let state = inode.read()?;
    // One that does begins before all others.
    let range = (offset, end);
    let mapped = map_first(&engine.core.view(), inode.id, engine.core.sector(), range, 1).fs()?;
    drop(state);
    Ok(mapped.iter().any(|m| !m.is_inline() && m.start < offset && m.end > end))
}

/// Whether there may be content that has to be written anew, for which there must be room: a full volume refuses
/// no hole of whole sectors, and nothing that has its space already.
fn writes_anew(
    engine: &Engine,
    inode: &Ref<Inode>,
    mode: FallocateMode,
    from: u64,
    end: u64,
) -> Result<bool> {
    let within = writes_within(engine, &*inode.read()?, mode, from, end);
    Ok(within || starts_inline(engine, inode)?)
}

/// Whether parts of sectors become zeros, at the ends of the range or where the file gets longer.
fn writes_within(engine: &Engine, state: &State, mode: FallocateMode, from: u64, end: u64) -> bool {
    let within = |at: u64| !at.is_multiple_of(engine.core.sector());
    let zeros = matches!(mode, FallocateMode::PunchHole | FallocateMode::ZeroRange { .. });
    let grows =
        matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange { keep_size: false });
    let cuts = zeros && from < end && (within(from) || within(end));
    cuts || grows && end > state.item.size && within(state.item.size)
}

/// Where the range begins that is changed. As in the kernel no zeros are put where it begins with what is
/// preallocated and has nothing unwritten over it: that stays as it is. It may all be so.
fn changes_from(
    engine: &Engine,
    id: InodeId,
    state: &State,
    mode: FallocateMode,
    (offset, end): (u64, u64),
) -> Result<u64> {
    if !matches!(mode, FallocateMode::ZeroRange { .. }) {
        return Ok(offset);
    }
    let sector = engine.core.sector();
    let Range { start, end: stop } = sectors_of(sector, offset, end);
    let mut at = start;
    let mut follows = |extent: &Mapped| {
        let follows = extent.is_prealloc() && extent.start <= at;
        at = if follows { extent.end } else { at };
        follows
    };
    let all = |mapped: &[Mapped]| mapped.iter().all(&mut follows);
    map_parts(&engine.core.view(), id, sector, (start, stop), all).fs()?;
    let unwritten = state.dirty.as_ref().and_then(|dirty| dirty.first_from(start));
    Ok(at.min(unwritten.unwrap_or(at)).max(offset))
}

/// Bytes of [from, end), in whole sectors, that will need extents. What is unwritten has its own before, for
/// which space is reserved already.
fn gaps(
    engine: &Engine,
    inode: &Ref<Inode>,
    mode: FallocateMode,
    from: u64,
    end: u64,
) -> Result<u64> {
    let sector = engine.core.sector();
    let Range { start, end: stop } = sectors_of(sector, from, end);
    if matches!(mode, FallocateMode::ZeroRange { .. }) {
        engine.writeback.flush_compressed(inode)?;
        return Ok(stop.saturating_sub(start));
    }
    engine.writeback.flush_unasked(inode)?;
    let state = inode.read()?;
    let mut held = 0;
    let add = |mapped: &[Mapped]| {
        let some = mapped.iter().filter(|m| !m.is_hole() && !m.is_inline());
        held += some.map(|m| m.end.min(stop) - m.start.max(start)).sum::<u64>();
        true
    };
    map_parts(&engine.core.view(), inode.id, sector, (start, stop), add).fs()?;
    drop(state);
    Ok((stop - start).saturating_sub(held))
}

/// What is reserved for one call.
struct Budget<'a> {
    /// For sectors that become dirty.
    dirty: DirtyReservation<'a>,
    /// There is something for those.
    writes: bool,
    /// For preallocated extents.
    extents: Option<&'a mut DataReservation>,
    /// The next extent is the first, whose items are among what is reserved.
    first: bool,
    /// A small step of a removal is among what is reserved.
    drops: bool,
}

/// Of `mode` it leaves what is still to be done.
fn locked(
    engine: &Engine,
    inode: &Ref<Inode>,
    mode: &mut FallocateMode,
    offset: u64,
    end: u64,
    budget: &mut Budget<'_>,
) -> Result<Done> {
    let _queued = engine.writeback.queue().add_at_end(inode);
    let _still = engine.core.addresses.hold_still();
    let mut state = engine.write(inode)?;
    check_file(&state)?;
    match mode {
        FallocateMode::Allocate | FallocateMode::KeepSize => state.content_changes()?,
        _ => state.content_is_replaced()?,
    }
    if *mode == FallocateMode::PunchHole && is_hole(engine, inode.id, &state, offset, end)? {
        return Ok(Done::All);
    }
    let from = changes_from(engine, inode.id, &state, *mode, (offset, end))?;
    if !budget.writes
        && (writes_within(engine, &state, *mode, from, end)
            || is_inline(&engine.writeback, inode.id, &mut state)?)
    {
        // It has become so since; this comes again with what that needs.
        return Ok(Done::Again);
    }
    budget.dirty.spend(load_inline(&engine.writeback, inode.id, &mut state)?);
    let result = change_range(engine, inode, &mut state, mode, (offset, from, end), budget);
    if let Some(dirty) = &mut state.dirty {
        dirty.ground_changed();
    }
    changed_now(engine, inode.id, &mut state);
    result
}

/// The range is [offset, end), and changes from `from` on.
fn change_range(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    mode: &mut FallocateMode,
    (offset, from, end): (u64, u64, u64),
    budget: &mut Budget<'_>,
) -> Result<Done> {
    let grow = match *mode {
        FallocateMode::Allocate => true,
        FallocateMode::KeepSize => false,
        // What is preallocated behind the end goes, too.
        FallocateMode::PunchHole => return punch(engine, inode, state, offset, end, budget),
        FallocateMode::ZeroRange { keep_size } => {
            let stop = end.min(state.item.size.next_multiple_of(engine.core.sector()));
            let zeros = punch(engine, inode, state, from, stop.max(from), budget)?;
            if zeros != Done::All {
                return Ok(zeros);
            }
            // What was allocated is not taken away again where that takes more than one try.
            *mode = if keep_size { FallocateMode::KeepSize } else { FallocateMode::Allocate };
            !keep_size
        }
        _ => return Err(Errno::EOPNOTSUPP.into()),
    };
    allocate_range(engine, inode, state, offset, end, grow, budget)
}

/// True where nothing is to be punched. As in the kernel the times of the file stay then.
fn is_hole(engine: &Engine, id: InodeId, state: &State, start: u64, end: u64) -> Result<bool> {
    let sector = engine.core.sector();
    let unwritten =
        state.dirty.as_ref().and_then(|dirty| dirty.first_from(start / sector * sector));
    let mut bare = unwritten.is_none_or(|at| at >= end);
    let look = |mapped: &[Mapped]| {
        bare &= mapped.iter().all(|piece| piece.is_hole());
        bare
    };
    map_parts(&engine.core.view(), id, sector, (start, end), look).fs()?;
    Ok(bare)
}

/// Zeros in [start, end): whole sectors lose their extents, parts of sectors are written.
fn punch(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    start: u64,
    end: u64,
    budget: &mut Budget<'_>,
) -> Result<Done> {
    let sector = engine.core.sector();
    if start >= end {
        return Ok(Done::All);
    }
    let Range { start: first, end: last } = sectors_within(sector, start, end);
    if first > last {
        return zero_part(engine, inode, state, start, end, budget).map(|()| Done::All);
    }
    let (mapped, next) = items_from(engine, inode.id, first, last)?;
    // What is unwritten is gone once there is room to drop what lies below it, and not before.
    let Some(room) = first_step(engine, mapped.len(), budget.drops)? else {
        return Ok(Done::Nothing);
    };
    zero_part(engine, inode, state, start, first, budget)?;
    zero_part(engine, inode, state, last, end, budget)?;
    if first == last {
        return Ok(Done::All);
    }
    if mapped.is_empty() {
        clear(engine, inode, state, first, last)?;
    }
    drop_items(engine, inode, state, (first, last), (mapped, next), room)
}

/// Makes whole sectors a hole step by step; `mapped` are the first items, those before `next`.
fn drop_items<'e>(
    engine: &'e Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    (first, last): (u64, u64),
    (mut mapped, mut next): (Vec<Mapped>, u64),
    mut room: Room<'e>,
) -> Result<Done> {
    let (mut done, mut at) = (0, first);
    while done < mapped.len() {
        let Some((held, step)) = room.take() else { return Ok(Done::Part) };
        done += step;
        let stop = mapped.get(done).map_or(next, |extent| extent.start);
        clear(engine, inode, state, at, stop)?;
        at = stop;
        if done == mapped.len() && at < last {
            ((mapped, next), done) = (items_from(engine, inode.id, at, last)?, 0);
            if mapped.is_empty() {
                clear(engine, inode, state, at, last)?;
            }
        }
        drop(held);
        room = next_step(engine, mapped.len() - done)?;
    }
    Ok(Done::All)
}

/// The first extent items in [start, end), and where the next one begins. Holes are among them, of which a volume
/// without NO_HOLES can have as many.
fn items_from(engine: &Engine, id: InodeId, start: u64, end: u64) -> Result<(Vec<Mapped>, u64)> {
    map_step(&engine.core.view(), id, engine.core.sector(), (start, end), AT_A_TIME).fs()
}

/// Of those the extents.
fn stored_from(engine: &Engine, id: InodeId, start: u64, end: u64) -> Result<(Vec<Mapped>, u64)> {
    map_stored(&engine.core.view(), id, engine.core.sector(), (start, end), AT_A_TIME).fs()
}

/// Makes whole sectors a hole: what is unwritten goes with what lies below it, which would come to light. The last commit may
/// have content even where nothing is now, by a truncation since: a log must say that there is none.
fn clear(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    start: u64,
    end: u64,
) -> Result<()> {
    let sector = engine.core.sector();
    forget_unwritten(engine, state, |dirty| dirty.remove(start, end));
    change(&engine.core, |op| {
        let mapped = map_range(&op.view, inode.id, sector, start, end).fs()?;
        op.run(|| drop_range(op, inode.id, state, &mapped, start, end))?;
        op.note_gap(inode.id, start, end);
        if !engine.core.features.no_holes {
            let stop = end.min(state.item.size.next_multiple_of(sector));
            if start < stop {
                put_hole(op, inode.id, start, stop);
            }
        }
        put_inode(op, inode.id, state);
        Ok(())
    })
}

/// Zeros in a part of one sector, if it has content.
fn zero_part(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    start: u64,
    end: u64,
    budget: &mut Budget<'_>,
) -> Result<()> {
    let sector = engine.core.sector();
    let end = end.min(state.item.size);
    if start >= end {
        return Ok(());
    }
    let sector_start = start / sector * sector;
    let dirty = state.dirty.as_ref().is_some_and(|d| d.covers(sector_start));
    let mapped = map_range(&engine.core.view(), inode.id, sector, start, end).fs()?;
    if dirty || mapped.iter().any(|m| m.has_data()) {
        budget.dirty.spend(fill_sector(&engine.writeback, inode.id, state, sector_start)?);
        dirty_of(&engine.writeback, state).write(start, &vec![0; (end - start) as usize]);
    }
    Ok(())
}

/// Preallocates what is a hole in the range, one extent at least.
fn allocate_range(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    offset: u64,
    end: u64,
    grow: bool,
    budget: &mut Budget<'_>,
) -> Result<Done> {
    let sector = engine.core.sector();
    let old_size = state.item.size;
    let grows = grow && end > old_size;
    if grows {
        budget.dirty.spend(zero_tail(engine, inode.id, state)?);
    }
    flush_to_extents(&engine.writeback, inode.id, state)?;
    if end > old_size {
        // Else it would count as allocated, and come to light when the file grows.
        drop_content_behind_end(engine, inode.id, state)?;
    }
    if grows {
        hole_to(engine, inode, state, offset)?;
    }
    let Range { start, end: stop } = sectors_of(sector, offset, end);
    let mut at = start;
    while at < stop {
        let (stored, next) = stored_from(engine, inode.id, at, stop)?;
        let gaps = stored.iter().map(|extent| (extent.start, extent.end)).chain([(next, next)]);
        for (from, to) in gaps {
            if from > at && !fill_gap(engine, inode, state, at, from, budget)? {
                return Ok(Done::Part);
            }
            at = at.max(to);
        }
    }
    if grows {
        append::grow(state, end);
    }
    Ok(Done::All)
}

/// Room for one extent more; `None`: there is none now.
fn hold_extent<'e>(engine: &'e Engine, budget: &mut Budget<'_>) -> Result<Option<Reservation<'e>>> {
    let first = std::mem::take(&mut budget.first);
    if !first && engine.core.injection.has(Defect::RoomForOneStep) {
        return Ok(None);
    }
    engine.reservations.hold_step(if first { Cost::default() } else { cost::extent() })
}

/// False: there is no room for the next extent.
fn fill_gap(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    start: u64,
    end: u64,
    budget: &mut Budget<'_>,
) -> Result<bool> {
    let mut at = start;
    while at < end {
        let Some(_reservation) = hold_extent(engine, budget)? else { return Ok(false) };
        let Some(room) = budget.extents.as_deref_mut() else { return Err(Errno::ENOSPC.into()) };
        // Somebody made holes after the look by which it was reserved: there is another one.
        if room.bytes() < engine.core.sector() {
            return Ok(false);
        }
        // In place of so many items for holes at most.
        let (_, next) = items_from(engine, inode.id, at, end.min(at + PREALLOC_MAX))?;
        let (want, sector) = (next - at, engine.core.sector());
        // What may fail, before there is an extent that nobody would have.
        let mapped = map_range(&engine.core.view(), inode.id, sector, at, next).fs()?;
        let extent = room.alloc(&engine.core.space, want, sector, None);
        let extent = engine.reservations.allocated(extent)?;
        let op = engine.core.begin();
        let stop = at + extent.len;
        op.allocate(extent, (inode.id.tree, inode.id.objectid, at)).fs()?;
        let (kind, place) = (FileExtentKind::Prealloc, extent.logical);
        let fields = FileExtentFields::stored(op.generation(), kind, place, extent.len);
        op.run(|| {
            drop_range(&op, inode.id, state, &mapped, at, stop)?;
            put_extent(&op, inode.id, state, at, &fields);
            Ok::<_, FsError>(())
        })?;
        state.item.flags |= inode_flags::PREALLOC;
        put_inode(&op, inode.id, state);
        at = stop;
    }
    Ok(true)
}
