//! Changing a file's size.

use super::file::{check_file, end_of, hole_to, kill_priv};
use super::long_item;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::{AT_A_TIME, Mapped, drop_range, map_parts, map_range, read_extents};
use crate::ino::InodeId;
use crate::inode::{Dirty, Inode, State, change, put_inode};
use crate::ops::xattr::drop_capability;
use crate::reserve::cost::{self, SMALL_STEP};
use crate::reserve::{DirtyReservation, Reservation};
use crate::writeback::{fill_sector, is_inline, load_inline};
use btrfs_space::Priority;
use btrfs_txn::Defect;
use inode_index::Ref;
use vfs::{Errno, Result, SetAttr};

/// Extent items that one operation drops at most: some milliseconds with the inode's lock held,
/// and little of the metadata that has to be reserved for it.
/// Chosen, not measured.
const STEP: usize = AT_A_TIME;

/// The last sector's part behind the end of the file becomes zeros in memory, before the
/// file grows over it. Returns the bytes that became dirty.
pub(crate) fn zero_tail(engine: &Engine, id: InodeId, state: &mut State) -> Result<u64> {
    match tail_to_zero(engine, id, state)? {
        Some(start) => fill_sector(&engine.writeback, id, state, start),
        None => Ok(0),
    }
}

/// Where the last sector begins, if the volume has anything but zeros in it behind the end of the file.
pub(super) fn tail_to_zero(engine: &Engine, id: InodeId, state: &State) -> Result<Option<u64>> {
    let (sector, size) = (engine.core.sector(), state.item.size);
    let (start, used) = (size / sector * sector, size % sector);
    // In memory there are zeros.
    if used == 0 || state.dirty.as_ref().is_some_and(|dirty| dirty.covers(start)) {
        return Ok(None);
    }
    let mapped = map_range(&engine.core.view(), id, sector, start, size).fs()?;
    let Some(stored) = mapped.iter().find(|m| m.has_data()) else { return Ok(None) };
    if stored.is_inline() {
        return Ok(Some(start));
    }
    let mut content = vec![0; sector as usize];
    read_extents(&engine.core, id, state.item.flags, start, &mut content)?;
    Ok(content[used as usize..].iter().any(|byte| *byte != 0).then_some(start))
}

/// Of `set` it takes which mode bits go.
pub(crate) fn set_size(
    engine: &Engine,
    inode: &Ref<Inode>,
    size: u64,
    set: &SetAttr,
) -> Result<()> {
    end_of(size, 0)?;
    if size > 0 {
        long_item::unfold(engine, inode)?;
    }
    // Who cuts the file before it is locked leaves to a removal's room a hole more, which is less than what
    // that may write anew; further ones have room of their own. A file that has become longer is cut in steps, which
    // have.
    let mut retries = Retries::default();
    loop {
        let grows = size > inode.read()?.item.size;
        let writes = writes_anew(engine, inode, size)?;
        let most = if writes { 2 * engine.core.sector() } else { 0 };
        let mut dirty = engine.reserver.reserve_dirty(most)?;
        let reservation = match grows {
            true => engine.reserver.reserve(cost::grow())?,
            false => engine.reserver.reserve_removal(cost::removal_of_items(SMALL_STEP))?,
        };
        let mut budget = Budget { dirty: &mut dirty, writes, drops: !grows };
        let result = set_size_locked(engine, inode, size, set, &mut budget);
        drop(dirty);
        drop(reservation);
        if retries.ends(engine, result?)? {
            return Ok(());
        }
    }
}

/// What is reserved for one change of the size.
struct Budget<'a, 'e> {
    /// For sectors that become dirty.
    dirty: &'a mut DirtyReservation<'e>,
    /// There is something for those.
    writes: bool,
    /// A small step of a removal is among what is reserved.
    drops: bool,
}

/// Whether a file that ends there keeps content that has to be written anew, for which there must be room: no full
/// volume refuses an end that comes to, or goes from, the end of a sector.
fn writes_anew(engine: &Engine, inode: &Ref<Inode>, size: u64) -> Result<bool> {
    let within = ends_within(engine, &*inode.read()?, size);
    Ok(within || size > 0 && starts_inline(engine, inode)?)
}

/// Whether the shorter one of the two sizes is in the midst of a sector.
fn ends_within(engine: &Engine, state: &State, size: u64) -> bool {
    !size.min(state.item.size).is_multiple_of(engine.core.sector())
}

pub(super) fn starts_inline(engine: &Engine, inode: &Ref<Inode>) -> Result<bool> {
    let _state = inode.read()?;
    let first = map_range(&engine.core.view(), inode.id, engine.core.sector(), 0, 1).fs()?;
    Ok(first.iter().any(|m| m.is_inline()))
}

/// How far a change of many items has come.
#[derive(PartialEq, Eq)]
pub(crate) enum Done {
    All,
    /// The volume must have a commit before it has room for the rest.
    Part,
    /// The same, and there was no room for anything.
    Nothing,
    /// Somebody has changed what was looked at before the file was locked: nothing is done, and it is to be looked at
    /// again. No room is lacking.
    Again,
}

/// Commits in a row that may bring a change of many items no room: others may take it.
#[derive(Default)]
pub(crate) struct Retries(u32);

impl Retries {
    /// Each gives back what was pinned, so a few are enough unless others take all of it.
    /// Chosen, not measured.
    const MOST: u32 = 20;

    /// True when all is done; else makes room for the rest, if that is what is lacking.
    pub(crate) fn ends(&mut self, engine: &Engine, done: Done) -> Result<bool> {
        self.0 = match done {
            Done::All => return Ok(true),
            // A commit would be in vain, and refused where commits are held.
            Done::Again => return Ok(false),
            Done::Part => 0,
            Done::Nothing if self.0 == Retries::MOST => return Err(Errno::ENOSPC.into()),
            Done::Nothing => self.0 + 1,
        };
        engine.reserver.commit_for_space().map(|()| false)
    }
}

fn set_size_locked(
    engine: &Engine,
    inode: &Ref<Inode>,
    size: u64,
    set: &SetAttr,
    budget: &mut Budget<'_, '_>,
) -> Result<Done> {
    let _held = (engine.writeback.queue().add_at_end(inode), engine.core.addresses.hold_still());
    let mut state = engine.write(inode)?;
    check_file(&state)?;
    state.content_is_replaced()?;
    // It may have become so since; this comes again with what that needs.
    if !budget.writes && needs_more(engine, inode.id, &mut state, size, budget.drops)? {
        return Ok(Done::Again);
    }
    if set.kill_priv {
        kill_priv(&mut state, set.kill_sgid);
    }
    drop_capability(&engine.core.begin(), inode.id, &mut state)?;
    let mut done = Done::All;
    // An open with O_TRUNC sets the times of an empty file, too.
    if budget.writes && size > 0 && size != state.item.size {
        budget.dirty.spend(load_inline(&engine.writeback, inode.id, &mut state)?);
    }
    if size > state.item.size {
        budget.dirty.spend(zero_tail(engine, inode.id, &mut state)?);
        hole_to(engine, inode, &mut state, size.next_multiple_of(engine.core.sector()))?;
        state.item.size = size;
    } else if size < state.item.size {
        done = shrink(engine, inode.id, &mut state, size, budget)?;
    } else {
        // What is preallocated behind the end goes, as in the kernel.
        done = drop_preallocated(engine, inode.id, &mut state, budget)?;
    }
    changed_now(engine, inode.id, &mut state);
    Ok(done)
}

/// Whether a change of the size needs more than a budget without `writes` has, of which `drops` is a cut's.
fn needs_more(
    engine: &Engine,
    id: InodeId,
    state: &mut State,
    size: u64,
    drops: bool,
) -> Result<bool> {
    let other = ends_within(engine, state, size) || drops && size > state.item.size;
    Ok(other || size > 0 && is_inline(&engine.writeback, id, state)?)
}

/// The content is of now.
pub(super) fn changed_now(engine: &Engine, id: InodeId, state: &mut State) {
    let time = engine.core.now();
    (state.item.mtime, state.item.ctime) = (time, time);
    put_inode(&engine.core.begin(), id, state);
}

fn drop_preallocated(
    engine: &Engine,
    id: InodeId,
    state: &mut State,
    budget: &Budget<'_, '_>,
) -> Result<Done> {
    let sector = engine.core.sector();
    let keep = state.item.size.next_multiple_of(sector);
    let behind = Behind::of(engine, id, keep)?;
    Ok(match first_step(engine, behind.items, budget.drops)? {
        Some(room) => drop_behind(engine, id, state, (state.item.size, &behind), room)?,
        None => Done::Nothing,
    })
}

fn shrink(
    engine: &Engine,
    id: InodeId,
    state: &mut State,
    size: u64,
    budget: &mut Budget<'_, '_>,
) -> Result<Done> {
    let sector = engine.core.sector();
    let keep = size.next_multiple_of(sector);
    if keep != size {
        let start = size / sector * sector;
        let view = engine.core.view();
        let stored = map_range(&view, id, sector, start, size).fs()?.iter().any(|m| m.has_data());
        drop(view);
        if stored {
            budget.dirty.spend(fill_sector(&engine.writeback, id, state, start)?);
        }
    }
    // What is unwritten behind the end is gone once there is room to drop what lies below it, and not before.
    let behind = Behind::of(engine, id, keep)?;
    let Some(room) = first_step(engine, behind.items, budget.drops)? else {
        return Ok(Done::Nothing);
    };
    let dropped = drop_behind(engine, id, state, (size, &behind), room);
    // Where it failed there may be something.
    state.clean_behind_end &= dropped.is_ok();
    let end = state.item.size;
    forget_unwritten(engine, state, |dirty| dirty.truncate(end));
    dropped
}

/// What `drops` takes out of what is unwritten will not be written.
pub(super) fn forget_unwritten(engine: &Engine, state: &mut State, drops: impl FnOnce(&mut Dirty)) {
    let Some(dirty) = &mut state.dirty else { return };
    let before = dirty.bytes();
    drops(dirty);
    engine.reservations.forget_dirty(before - dirty.bytes());
    if dirty.is_empty() {
        state.dirty = None;
    }
}

/// Extent items behind a place, of which there may be more than memory takes.
struct Behind {
    /// Where the items begin that are looked at together.
    parts: Vec<u64>,
    items: usize,
}

impl Behind {
    fn of(engine: &Engine, id: InodeId, keep: u64) -> Result<Behind> {
        let mut behind = Behind { parts: Vec::new(), items: 0 };
        let (view, sector) = (engine.core.view(), engine.core.sector());
        let count = |mapped: &[Mapped]| {
            behind.parts.push(mapped[0].start.max(keep));
            behind.items += mapped.len();
            true
        };
        map_parts(&view, id, sector, (keep, u64::MAX), count).fs()?;
        Ok(behind)
    }
}

/// Cuts the file at `size` and drops all extents behind, the last ones first, and with them what is unwritten over them or
/// behind. Each step is one operation that leaves the file whole: a commit may have any of them as its last. It ends
/// in front of what is gone, and behind all that is there, which would come to light where it grows.
fn drop_behind<'e>(
    engine: &'e Engine,
    id: InodeId,
    state: &mut State,
    (size, behind): (u64, &Behind),
    mut room: Room<'e>,
) -> Result<Done> {
    let sector = engine.core.sector();
    let keep = size.next_multiple_of(sector);
    let (mut left, mut end) = (behind.items, u64::MAX);
    for start in behind.parts.iter().rev().copied() {
        let mapped = map_range(&engine.core.view(), id, sector, start, end).fs()?;
        let mut of_part = &mapped[..];
        while !of_part.is_empty() {
            let Some((held, step)) = room.take() else { return Ok(Done::Part) };
            let (rest, last) = of_part.split_at(of_part.len().saturating_sub(step));
            let reached = last[0].start.max(keep);
            forget_unwritten(engine, state, |dirty| dirty.remove(reached, u64::MAX));
            left = left.saturating_sub(last.len());
            cut(state, if left == 0 { size } else { reached });
            change(&engine.core, |op| {
                op.run(|| drop_range(op, id, state, last, reached, u64::MAX))?;
                put_inode(op, id, state);
                Ok(())
            })?;
            of_part = rest;
            drop(held);
            room = next_step(engine, left)?;
        }
        end = start;
    }
    cut(state, size);
    Ok(Done::All)
}

/// The file ends there at the latest.
fn cut(state: &mut State, size: u64) {
    state.item.size = state.item.size.min(size);
    state.landed_size = state.landed_size.min(size);
}

/// For the next step (`None`: what is reserved for the operation is), and how many items that may drop.
pub(super) type Room<'e> = Option<(Option<Reservation<'e>>, usize)>;

/// Room for the first of `items`, if there are any; `None`: there is none before a commit, and nothing is to be
/// changed. Where nothing else is free, an operation that `drops` uses what is reserved for it: a small step of a
/// removal, for which room is found on the fullest of volumes.
pub(super) fn first_step(engine: &Engine, items: usize, drops: bool) -> Result<Option<Room<'_>>> {
    let own = drops && !engine.core.injection.has(Defect::NoRoomToDrop);
    Ok(match step(engine, items)? {
        None if items > 0 && own => Some(Some((None, items.min(SMALL_STEP as usize)))),
        None if items > 0 => None,
        room => Some(room),
    })
}

/// The same for those behind the first ones; `None`: none are left, or there is no room before a commit.
pub(super) fn next_step(engine: &Engine, left: usize) -> Result<Room<'_>> {
    if left > 0 {
        engine.core.injection.stepped();
    }
    match engine.core.injection.has(Defect::RoomForOneStep) {
        true => Ok(None),
        false => step(engine, left),
    }
}

fn step(engine: &Engine, left: usize) -> Result<Room<'_>> {
    if left == 0 || engine.core.injection.has(Defect::NoRoomToDrop) {
        return Ok(None);
    }
    let small = engine.core.injection.has(Defect::RoomForOneStep);
    let most = if small { SMALL_STEP as usize } else { STEP };
    for step in [most, 8 * SMALL_STEP as usize, SMALL_STEP as usize] {
        let step = step.min(left);
        match engine.reservations.hold(cost::removal_of_items(step as u64), Priority::Delete) {
            Err(error) if error.errno() == libc::ENOSPC => {}
            other => return other.map(|held| Some((Some(held), step))),
        }
    }
    Ok(None)
}
