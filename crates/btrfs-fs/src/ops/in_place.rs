//! Writes into space that a file has already: what was preallocated, and what is not copied on write. For those
//! there is room on a full volume and beyond a limit, as posix_fallocate promises; and of what comes out of the
//! kernel's cache nothing is dropped that has its place.
//!
//! Invariants: no space is allocated, and nothing gathers in memory: what was written is in its extent. But what the
//! device refuses of what comes out of the kernel's cache stays in memory, as on any volume, while there is room for
//! its nodes; its place is kept. A long write goes in steps, each with room for its own nodes, so that the least that
//! is kept for these is enough.
//!
//! What it does not know: why there is no other room.

use super::append;
use super::file::{check_file, hole_to};
use super::truncate::tail_to_zero;
use super::writing::{keep_in_own, land_before, prepare, replace, take_privileges, whole_sectors};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::{self, map_first, sectors_of};
use crate::inode::{Inode, State};
use crate::reserve::cost::{self, IN_PLACE_BYTES, IN_PLACE_ITEMS};
use crate::writeback::{Own, WriteMode, is_inline, store_in_own};
use btrfs_disk::items::inode_flags;
use inode_index::Ref;
use std::ops::Range;
use vfs::{Errno, Result, WriteFlags};

/// Files without these have no such space, as for the kernel.
const HAVE_SPACE: u64 = inode_flags::PREALLOC | inode_flags::NODATACOW;

/// What has to have space for any of it to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// All of it.
    All,
    /// Where it begins: it is written as far as that goes.
    Front,
    /// Any part of it; what it answers is for all.
    Parts,
}

/// What is written.
pub(super) struct Written {
    /// Bytes, from the beginning on.
    pub len: usize,
    /// The file's own flags want each write to be durable.
    pub wants_sync: bool,
}

/// Whether of such a write less than all of it is an answer: of a direct one a kernel behind FUSE makes EIO, and what
/// comes out of its cache it takes for all.
pub(super) fn may_be_short(flags: WriteFlags) -> bool {
    !flags.direct && !flags.cached
}

/// What came of a step.
enum Tried {
    /// It is written up to there without a gap.
    UpTo(u64, bool),
    /// The file has more items there than there was room for.
    Outgrown,
}

/// A write into what its file has, in one try or several. What one has written the next begins behind:
/// preallocated space takes content once, so what a try wrote there has no space for another.
pub(super) struct InPlace<'w> {
    engine: &'w Engine,
    inode: &'w Ref<Inode>,
    offset: u64,
    data: &'w [u8],
    flags: WriteFlags,
    /// It is written up to there without a gap.
    front: u64,
    wants_sync: bool,
}

impl<'w> InPlace<'w> {
    pub(super) fn new(
        engine: &'w Engine,
        inode: &'w Ref<Inode>,
        (offset, data): (u64, &'w [u8]),
        flags: WriteFlags,
    ) -> InPlace<'w> {
        InPlace { engine, inode, offset, data, flags, front: offset, wants_sync: false }
    }

    /// What is not written, and where it goes.
    pub(super) fn rest(&self) -> (u64, &'w [u8]) {
        (self.front, self.part(self.front, self.end()))
    }

    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    fn part(&self, from: u64, to: u64) -> &'w [u8] {
        &self.data[(from - self.offset) as usize..(to - self.offset) as usize]
    }

    /// Writes of the rest what the file has space for. `None`, or an error: that is not what is wanted, and some
    /// may be written. What comes out of the kernel's cache is written wholly or is not what is wanted, be it that
    /// its front was: the kernel takes any count for all of it.
    pub(super) fn go_on(&mut self, want: Want) -> Result<Option<Written>> {
        let (end, flags) = (self.end(), self.flags);
        if !may_have_space(self.engine, self.inode, (self.front, end), want)? {
            return Ok(None);
        }
        let (mut at, mut refused) = (self.front, None);
        while at < end && (self.front == at || want == Want::Parts) {
            let (stop, items) = step_from(self.engine, self.inode, at, end)?;
            let part = (at, self.part(at, stop));
            match write_step(self.engine, self.inode, part, flags, (want, items)) {
                Ok(Tried::Outgrown) => continue,
                Ok(Tried::UpTo(upto, sync)) => {
                    self.front = if self.front == at { upto } else { self.front };
                    self.wants_sync |= sync;
                }
                Err(error) => refused = refused.or(Some(error)),
            }
            at = stop;
        }
        match (self.front(want != Want::Parts && may_be_short(flags)), refused) {
            (Some(written), _) => Ok(Some(written)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// All of it, or as much of the front as is written.
    pub(super) fn front(&self, may_be_short: bool) -> Option<Written> {
        let is_answer = self.front == self.end() || may_be_short && self.front > self.offset;
        let len = (self.front - self.offset) as usize;
        is_answer.then_some(Written { len, wants_sync: self.wants_sync })
    }

    /// The same, and of the rest what was written elsewhere.
    pub(super) fn and_then(&self, rest: Written) -> Written {
        let len = (self.front - self.offset) as usize + rest.len;
        Written { len, wants_sync: self.wants_sync || rest.wants_sync }
    }
}

/// False where it is known before that it is for nothing.
fn may_have_space(
    engine: &Engine,
    inode: &Ref<Inode>,
    (start, end): (u64, u64),
    want: Want,
) -> Result<bool> {
    let state = inode.read()?;
    if state.item.flags & HAVE_SPACE == 0 || want != Want::All {
        return Ok(state.item.flags & HAVE_SPACE != 0);
    }
    let range = sectors_of(engine.core.sector(), start, end);
    let mut at = range.start;
    while at < range.end {
        let stop = range.end.min(at + IN_PLACE_BYTES);
        let own = engine.writeback.own(inode.id, &state, (at, stop))?;
        if own.runs.first() != Some(&(at..stop)) {
            return Ok(false);
        }
        at = stop;
    }
    Ok(!range.is_empty())
}

/// Where a step from `at` on ends, and how many items it takes.
fn step_from(engine: &Engine, inode: &Ref<Inode>, at: u64, end: u64) -> Result<(u64, usize)> {
    let sector = engine.core.sector();
    let end = end.min(at / sector * sector + IN_PLACE_BYTES);
    let range = sectors_of(sector, at, end);
    let _still = inode.read()?;
    let most = IN_PLACE_ITEMS as usize;
    let range = (range.start, range.end);
    let mapped = map_first(&engine.core.view(), inode.id, sector, range, most + 1).fs()?;
    let stop = mapped.get(most).map_or(end, |next| next.start.min(end));
    Ok((stop, mapped.len().min(most)))
}

fn write_step(
    engine: &Engine,
    inode: &Ref<Inode>,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
    (want, items): (Want, usize),
) -> Result<Tried> {
    let end = offset + data.len() as u64;
    let range = sectors_of(engine.core.sector(), offset, end);
    // With the last sector of the file as it is.
    let sectors = (range.end - range.start) / engine.core.sector() + 1;
    let cost = cost::write_in_place(&engine.core.geometry, sectors, items as u64 + 1);
    let _room = engine.reserver.reserve_in_place(cost)?;
    let _queued = engine.writeback.queue().add_at_end(inode);
    let _still = engine.core.addresses.hold_still();
    let mut state = engine.write(inode)?;
    let state = &mut *state;
    check_file(state)?;
    let Own { mut runs, items: own } =
        engine.writeback.own(inode.id, state, (range.start, range.end))?;
    if own > items {
        return Ok(Tried::Outgrown);
    }
    if want != Want::Parts {
        runs.truncate(1);
        runs.retain(|run| run.start == range.start);
    }
    let front = match runs.first() {
        Some(run) if run.start == range.start => run.end.min(end),
        _ => offset,
    };
    if runs.is_empty() || !may_begin(engine, inode, state, runs[0].start.max(offset), flags)? {
        return Ok(Tried::UpTo(offset, false));
    }
    write_runs(engine, inode, state, (offset, data), flags, &runs)?;
    Ok(Tried::UpTo(front, state.item.flags & inode_flags::SYNC != 0))
}

/// The parts of `data` that lie in `runs`, of which there is one at least. One that is refused keeps no other from its
/// place.
fn write_runs(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
    runs: &[Range<u64>],
) -> Result<()> {
    let mut nothing = engine.reservations.hold_dirty(0, None);
    let size = state.item.size;
    prepare(engine, inode, state, (offset, data, flags), &mut nothing)?;
    take_privileges(engine, inode, state, flags)?;
    let (mut written, mut bytes, mut stored) = (Vec::new(), 0, Ok(()));
    for run in runs {
        let (from, to) = (run.start.max(offset), run.end.min(offset + data.len() as u64));
        let part = &data[(from - offset) as usize..(to - offset) as usize];
        let run = leave_gap(engine, inode, state, from, flags)
            .and_then(|()| write_run(engine, inode, state, (from, part), flags));
        if run.is_ok() {
            written.push(from..to);
            bytes += to - from;
        }
        stored = stored.and(run);
    }
    state.item_dirty = true;
    append::wrote(state, size, &written, flags);
    engine.writeback.note_written(inode, state, bytes);
    stored
}

/// Whether nothing else of the file has to gather in memory before something is written from `from` on, for which
/// there is no space: content of its item, or the rest of its last sector.
fn may_begin(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    from: u64,
    flags: WriteFlags,
) -> Result<bool> {
    if is_inline(&engine.writeback, inode.id, state)? {
        return Ok(false);
    }
    Ok(from <= state.item.size || zero_tail_in_place(engine, inode, state, flags)?)
}

/// Makes the part of the last sector zeros that lies behind the end, before the file grows over it. False: it is
/// to be copied on write.
fn zero_tail_in_place(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    flags: WriteFlags,
) -> Result<bool> {
    let Some(start) = tail_to_zero(engine, inode.id, state)? else { return Ok(true) };
    let stop = start + engine.core.sector();
    let own = engine.writeback.own(inode.id, state, (start, stop))?;
    if own.runs.is_empty() {
        return Ok(false);
    }
    let mut content = vec![0; (state.item.size - start) as usize];
    extents::read(&engine.core, inode.id, state, start, &mut content)?;
    write_run(engine, inode, state, (start, &content), flags)?;
    Ok(true)
}

/// Before a run that lies behind the end: what is in front of it, and was refused, becomes a hole.
fn leave_gap(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    from: u64,
    flags: WriteFlags,
) -> Result<()> {
    if from <= state.item.size {
        return Ok(());
    }
    if !zero_tail_in_place(engine, inode, state, flags)? {
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
    // What has no room stays in memory, and this has its place all the same.
    let _ = land_before(engine, inode, state, offset);
    let whole = whole_sectors(engine, inode, state, offset, data)?;
    // A refusal of the device is heard here, not by a later flush.
    let way = if flags.direct { WriteMode::Direct } else { WriteMode::Through };
    let stored = replace(engine, state, (whole.start, whole.end), |state| {
        store_in_own(&engine.writeback, inode.id, state, whole.start, &whole.parts(), way)
    });
    match stored {
        Err(error) if error.is_of_medium() && flags.cached && !flags.direct => {
            keep_in_own(engine, inode, state, (offset, data), error)
        }
        stored => stored.map(drop),
    }
}
