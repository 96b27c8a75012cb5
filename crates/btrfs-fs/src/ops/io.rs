//! read and write.
//!
//! Short writes gather in memory (delayed allocation); long ones go straight to an extent,
//! since gathering them would only copy them once more. Direct ones (O_DIRECT) go straight to an
//! extent and through to the device, whatever their length: one that fails has changed no content.

use super::append;
use super::behind_end::drop_content_behind_end;
use super::in_place::{InPlace, Want, Written};
use super::truncate::zero_tail;
use super::xattr::drop_capability;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::{self, AT_A_TIME, Mapped, map_step, put_hole, sectors_of, sectors_within};
use crate::inode::{Heard, Inode, State};
use crate::reserve::DirtyReservation;
use crate::reserve::cost;
use crate::writeback::{Unstored, WriteMode, store};
use crate::writeback::{dirty_of, fill_sector, land_in_front, load_inline};
use btrfs_disk::items::inode_flags;
use btrfs_space::Priority;
use inode_index::Ref;
use locks::RwLockWriteGuard;
use std::ops::Range;
use vfs::{Errno, FsError, Ino, Result, WriteFlags};

/// Whole sectors of one write from this length on go straight to an extent, in bytes.
/// Chosen, not measured, in the first version.
const STRAIGHT: u64 = 128 << 10;

/// Whether so many bytes gather in memory in any case.
fn short(len: u64) -> bool {
    len < STRAIGHT
}

pub(crate) fn read(engine: &Engine, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let inode = engine.inodes.get(ino)?;
    let state = inode.read()?;
    check_file(&state)?;
    let read = match state.item.flags & inode_flags::RO_VERITY {
        0 => extents::read(&engine.core, inode.id, &state, offset, buf)?,
        _ => {
            let file = (inode.id, state.item.flags, state.item.size);
            engine.verity.read(file, offset, buf)?
        }
    };
    engine.stats.data_read_bytes.add(read as u64);
    Ok(read)
}

pub(crate) fn check_file(state: &State) -> Result<()> {
    if state.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    if !state.is_file() {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

/// EFBIG behind the largest offset; the end of the range otherwise.
pub(crate) fn end_of(offset: u64, len: u64) -> Result<u64> {
    match offset.checked_add(len) {
        Some(end) if end <= i64::MAX as u64 => Ok(end),
        _ => Err(Errno::EFBIG.into()),
    }
}

pub(crate) fn write(
    engine: &Engine,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
) -> Result<usize> {
    if data.is_empty() {
        return Ok(0);
    }
    end_of(offset, data.len() as u64)?;
    let inode = engine.inodes.get(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    let written = write_where_room_is(engine, &inode, (offset, data), flags)?;
    if flags.sync {
        super::sync::fsync(engine, ino, 0, true)?;
    } else if written.wants_sync {
        sync_unless_held(engine, ino)?;
    }
    Ok(written.len)
}

/// Where there is no room, and no limit allows more, what the file has may do; nobody looks for room before that
/// is known. Who waits for the answer is told how much of the front is written, as by the kernel, but for direct writes: of a
/// short one a kernel behind FUSE makes EIO. What comes out of a cache is lost where it is refused, so all that has its
/// place stays: of that nothing less than all is an answer. What a try has written no other writes once more.
fn write_where_room_is(
    engine: &Engine,
    inode: &Ref<Inode>,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
) -> Result<Written> {
    let mut in_place = InPlace::new(engine, inode, (offset, data), flags);
    if engine.reserver.may_lack_room(inode.id.tree, data.len() as u64)
        && let Ok(Some(written)) = in_place.go_on(Want::All)
    {
        return Ok(written);
    }
    match write_in_room(engine, inode, in_place.rest(), flags) {
        Err(error) if [libc::ENOSPC, libc::EDQUOT].contains(&error.errno()) => {
            let want = match flags {
                WriteFlags { cached: true, .. } => Want::Parts,
                WriteFlags { direct: true, .. } => Want::All,
                _ => Want::Front,
            };
            match in_place.go_on(want) {
                Ok(Some(written)) => Ok(written),
                Err(other) if is_of_write(&other) => Err(other),
                _ => Err(error),
            }
        }
        written => written.map(|wants_sync| Written { len: data.len(), wants_sync }),
    }
}

/// What a write into a file's own space says for itself, and not for want of another place.
fn is_of_write(error: &FsError) -> bool {
    let forbidden = [libc::EPERM, libc::ETXTBSY].contains(&error.errno());
    forbidden || matches!(error, FsError::Io { .. })
}

/// Into space that is reserved for it.
fn write_in_room(
    engine: &Engine,
    inode: &Ref<Inode>,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
) -> Result<bool> {
    let most = data.len() as u64 + 4 * engine.core.sector();
    let sectors = (data.len() as u64).next_multiple_of(engine.core.sector());
    let _promise = engine.reserver.within_limits(inode.id.tree, sectors)?;
    let gathers = engine.core.features.no_holes && !flags.direct && short(data.len() as u64);
    let cost = cost::write(&engine.core.geometry, gathers);
    let mut reserved = engine.reserver.reserve_content(most, cost)?;
    write_locked(engine, inode, offset, data, flags, &mut reserved.dirty)
}

/// What is written while commits are held is durable with all that is held back, and not before.
fn sync_unless_held(engine: &Engine, ino: Ino) -> Result<()> {
    match super::sync::fsync(engine, ino, 0, true) {
        Err(FsError::Posix(Errno::EBUSY)) if engine.committer.is_held() => Ok(()),
        // That has ended meanwhile, perhaps without this.
        Err(FsError::Posix(Errno::EBUSY)) => super::sync::fsync(engine, ino, 0, true),
        done => done,
    }
}

/// What becomes dirty is taken out of `budget`. True if the file's own
/// flags (`chattr +S`) ask for each write to be durable, of which a kernel behind FUSE
/// knows nothing.
fn write_locked(
    engine: &Engine,
    inode: &Ref<Inode>,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    budget: &mut DirtyReservation<'_>,
) -> Result<bool> {
    let _queued = engine.writeback.queue().add_at_end(inode);
    // What only gathers in memory says no address.
    let straight = flags.direct || !short(data.len() as u64);
    let (_still, mut state) = lock_for(engine, inode, offset, straight)?;
    check_file(&state)?;
    let size = state.item.size;
    prepare(engine, inode, &mut state, (offset, data, flags), budget)?;
    take_privileges(engine, inode, &mut state, flags)?;
    let write = if flags.direct { write_direct } else { write_content };
    let result = write(engine, inode, &mut state, offset, data, budget);
    let result = match result {
        Err(error) if error.is_of_medium() && flags.cached && !flags.direct => {
            keep(engine, inode, &mut state, (offset, data), budget, error)
        }
        other => other,
    };
    state.item_dirty = true;
    engine.writeback.note_written(inode, &state, data.len() as u64);
    // Of one that failed the file may have the beginning, and be longer by it.
    let end = if result.is_ok() { offset + data.len() as u64 } else { state.item.size };
    if result.is_ok() || end > size {
        append::wrote(&mut state, size, std::slice::from_ref(&(offset..end)), flags);
    }
    let wants_sync = state.item.flags & inode_flags::SYNC != 0;
    result.map(|()| wants_sync)
}

/// The file, and addresses held still if they are to be said.
fn lock_for<'e>(
    engine: &'e Engine,
    inode: &'e Inode,
    offset: u64,
    says_addresses: bool,
) -> Result<(Option<impl Sized + use<'e>>, RwLockWriteGuard<'e, State>)> {
    let still = says_addresses.then(|| engine.core.addresses.hold_still());
    let state = engine.write(inode)?;
    if still.is_some() || offset <= state.item.size || state.clean_behind_end {
        return Ok((still, state));
    }
    // What the file grows over may have to go.
    drop(state);
    let still = engine.core.addresses.hold_still();
    Ok((Some(still), engine.write(inode)?))
}

/// Of what comes out of the kernel's cache nobody waits for this answer: a program stored it through a map, or has
/// heard long ago that it is written, and the kernel drops what is refused. So it stays in memory, as
/// what was gathered there and is refused later.
fn keep(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    (offset, data): (u64, &[u8]),
    budget: &mut DirtyReservation<'_>,
    error: FsError,
) -> Result<()> {
    if engine.core.health.poisoned().is_some() {
        return Err(error);
    }
    gather(engine, inode, state, offset, data, budget)?;
    Heard::refused(&mut state.refused);
    engine.writeback.refusals().keep(inode.id, &error);
    Ok(())
}

/// As `keep`, of what goes into space that the file has, once the device takes it.
pub(super) fn keep_in_own(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    (offset, data): (u64, &[u8]),
    error: FsError,
) -> Result<()> {
    let most = data.len() as u64 + 4 * engine.core.sector();
    match engine.reserver.hold_content_in_own(most) {
        Ok(mut held) => keep(engine, inode, state, (offset, data), &mut held.dirty, error),
        Err(_) => Err(error),
    }
}

/// What a write takes away of a program's privileges. Of stores through a map nobody is known who wrote.
pub(super) fn take_privileges(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    flags: WriteFlags,
) -> Result<()> {
    if !flags.cached {
        take_capability(engine, inode, state)?;
    }
    if flags.kill_priv {
        kill_priv(state, false);
    }
    Ok(())
}

/// Whoever writes takes a file capability away.
pub(super) fn take_capability(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
) -> Result<()> {
    match state.capability {
        Some(false) => Ok(()),
        _ => drop_capability(&engine.core.begin(), inode.id, state),
    }
}

/// What comes before any write at `offset`: whether the file may be written, what lies between its
/// old end and the write, and its times.
pub(super) fn prepare(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    (offset, data, flags): (u64, &[u8], WriteFlags),
    budget: &mut DirtyReservation<'_>,
) -> Result<()> {
    state.times_due |= flags.cached;
    match append::appends(engine, inode, state, (offset, data), flags)? {
        true => state.content_changes()?,
        false => state.content_is_replaced()?,
    }
    let (sector, len) = (engine.core.sector(), data.len() as u64);
    // Not what is written over wholly. It stays where it is until that lands, which takes another look.
    let needs_beginning = offset < sector && (offset > 0 || len < sector && len < state.item.size);
    match load_inline(&engine.writeback, inode.id, state) {
        // How the file begins is not known, and not needed. Who writes is told; but what the kernel's cache
        // gives away is nowhere else.
        Err(error) if flags.cached && !needs_beginning && error.is_of_medium() => {}
        loaded => budget.spend(loaded?),
    }
    if offset > state.item.size {
        budget.spend(zero_tail(engine, inode.id, state)?);
        hole_to(engine, inode, state, offset)?;
    }
    if !flags.cached {
        // The kernel asks again. Of what comes out of its cache it knows no end, with `-o writeback`.
        state.reported.clear();
    }
    let time = engine.core.now();
    state.item.mtime = time;
    state.item.ctime = time;
    Ok(())
}

/// The file is about to grow, and has a gap up to `offset`: what lies behind its end goes, and
/// volumes without NO_HOLES want items for gaps behind the old end. Preallocated extents may lie
/// there already, so there is any number of them: the caller has room for one, each further step is
/// ENOSPC where there is none.
pub(crate) fn hole_to(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    offset: u64,
) -> Result<()> {
    drop_content_behind_end(engine, inode.id, state)?;
    let sector = engine.core.sector();
    let (start, end) = (state.item.size.next_multiple_of(sector), offset / sector * sector);
    if engine.core.features.no_holes {
        let op = engine.core.begin();
        op.note_gap(inode.id, start, offset.next_multiple_of(sector));
        return Ok(());
    }
    if start >= end {
        return Ok(());
    }
    let (mut at, mut has_room) = (start, true);
    while at < end {
        let (view, sector) = (engine.core.view(), engine.core.sector());
        let (mapped, next) = map_step(&view, inode.id, sector, (at, end), AT_A_TIME).fs()?;
        drop(view);
        let gaps = gaps_in(&mapped, at, next);
        let (first, more) = gaps.split_at(gaps.len().min(usize::from(has_room)));
        put_holes(engine, inode, first);
        has_room &= first.is_empty();
        for holes in more.chunks(cost::SMALL_STEP as usize) {
            let cost = cost::holes(holes.len() as u64);
            let _room = engine.reservations.hold(cost, Priority::Normal)?;
            put_holes(engine, inode, holes);
        }
        at = next;
    }
    Ok(())
}

fn put_holes(engine: &Engine, inode: &Inode, holes: &[Range<u64>]) {
    if !holes.is_empty() {
        let op = engine.core.begin();
        holes.iter().for_each(|hole| put_hole(&op, inode.id, hole.start, hole.end));
    }
}

/// What of [start, end) none of these has.
fn gaps_in(mapped: &[Mapped], start: u64, end: u64) -> Vec<Range<u64>> {
    let ends = mapped.iter().map(|extent| extent.end);
    let begins = mapped.iter().map(|extent| extent.start);
    let gaps = std::iter::once(start).chain(ends).zip(begins.chain([end]));
    gaps.filter(|(from, to)| from < to).map(|(from, to)| from..to).collect()
}

/// Set-group-ID goes with group execution, or if `sgid`.
pub(crate) fn kill_priv(state: &mut State, sgid: bool) {
    if state.is_dir() {
        return;
    }
    state.item.mode &= !vfs::mode::S_ISUID;
    if sgid || state.item.mode & vfs::mode::S_IXGRP != 0 {
        state.item.mode &= !vfs::mode::S_ISGID;
    }
}

fn write_content(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    offset: u64,
    data: &[u8],
    budget: &mut DirtyReservation<'_>,
) -> Result<()> {
    let sector = engine.core.sector();
    let end = offset + data.len() as u64;
    let Range { start: body_start, end: body_end } = sectors_within(sector, offset, end);
    // Where a refusal is told late, writeback waits for it, not the writer; and it compresses.
    let later = engine.core.volume.tells_late() || engine.writeback.compresses(state);
    if later || short(body_end.saturating_sub(body_start)) {
        return gather(engine, inode, state, offset, data, budget);
    }
    let head = (body_start - offset) as usize;
    let tail = (body_end - offset) as usize;
    if head > 0 {
        gather(engine, inode, state, offset, &data[..head], budget)?;
    }
    if lies_behind_dirty(state, body_start) {
        let few = state.dirty.as_ref().is_some_and(|dirty| dirty.bytes() < STRAIGHT);
        if !few || land_before(engine, inode, state, body_start).is_err() {
            return gather(engine, inode, state, body_start, &data[head..], budget);
        }
    }
    let body = (&[&data[head..tail]][..], WriteMode::Buffered);
    straight(engine, inode, state, (body_start, body_end), body, budget)?;
    if tail < data.len() {
        gather(engine, inode, state, body_end, &data[tail..], budget)?;
    }
    Ok(())
}

fn write_direct(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    offset: u64,
    data: &[u8],
    budget: &mut DirtyReservation<'_>,
) -> Result<()> {
    // For want of room there this is written all the same.
    match land_before(engine, inode, state, offset) {
        Err(error) if error.is_of_medium() => return Err(error),
        _ => {}
    }
    let whole = whole_sectors(engine, inode, state, offset, data)?;
    let parts = (&whole.parts()[..], WriteMode::Direct);
    straight(engine, inode, state, (whole.start, whole.end), parts, budget)
}

/// Whether content in front of `start` is in memory alone, and the size on the volume ends there: what is stored behind
/// would lie behind the end of the file in a commit that leaves that content where it is. After a crash the kernel shows
/// what lies there when the file grows.
fn lies_behind_dirty(state: &State, start: u64) -> bool {
    let first = state.dirty.as_ref().and_then(|dirty| dirty.first_from(state.landed_size));
    first.is_some_and(|first| first < start)
}

/// Such content is stored first. The caller holds addresses still.
pub(super) fn land_before(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    start: u64,
) -> Result<()> {
    match lies_behind_dirty(state, start) {
        true => land_in_front(&engine.writeback, inode.id, state, start),
        false => Ok(()),
    }
}

/// Content of whole sectors.
pub(super) struct Whole<'d> {
    pub(super) start: u64,
    /// Where what was written ends.
    pub(super) end: u64,
    head: Vec<u8>,
    body: &'d [u8],
    tail: Vec<u8>,
}

impl Whole<'_> {
    pub(super) fn parts(&self) -> Vec<&[u8]> {
        let parts = [&self.head[..], self.body, &self.tail[..]];
        parts.into_iter().filter(|part| !part.is_empty()).collect()
    }
}

/// Made of what is there where the write has only a part of a sector.
pub(super) fn whole_sectors<'d>(
    engine: &Engine,
    inode: &Inode,
    state: &State,
    offset: u64,
    data: &'d [u8],
) -> Result<Whole<'d>> {
    let sector = engine.core.sector();
    let end = offset + data.len() as u64;
    let Range { start, end: stop } = sectors_of(sector, offset, end);
    let Range { start: body_start, end: body_end } = sectors_within(sector, offset, end);
    let patched = |at: u64| -> Result<Vec<u8>> {
        let mut content = vec![0; sector as usize];
        extents::read(&engine.core, inode.id, state, at, &mut content)?;
        let (from, to) = (at.max(offset), (at + sector).min(end));
        content[(from - at) as usize..(to - at) as usize]
            .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
        Ok(content)
    };
    let head = if start < body_start { patched(start)? } else { Vec::new() };
    let has_tail = body_end < stop && body_start <= body_end;
    let tail = if has_tail { patched(body_end)? } else { Vec::new() };
    let body = match body_start < body_end {
        true => &data[(body_start - offset) as usize..(body_end - offset) as usize],
        false => &[][..],
    };
    Ok(Whole { start, end, head, body, tail })
}

/// Whole sectors from `start` on; the file reaches to `end` at least by them.
fn straight(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    (start, end): (u64, u64),
    (parts, way): (&[&[u8]], WriteMode),
    budget: &mut DirtyReservation<'_>,
) -> Result<()> {
    let len = end.next_multiple_of(engine.core.sector()) - start;
    let paid = replace(engine, state, (start, end), |state| {
        store(&engine.writeback, inode.id, state, start, parts, way)
    })?;
    budget.spend(len);
    engine.reservations.forget_landed(len, paid);
    Ok(())
}

/// Content from `start` on, to whose `end` the file reaches at least, is stored by `store` in place
/// of what was dirty there.
pub(super) fn replace<T>(
    engine: &Engine,
    state: &mut State,
    (start, end): (u64, u64),
    store: impl FnOnce(&mut State) -> std::result::Result<T, Unstored>,
) -> Result<T> {
    let old_size = state.item.size;
    state.item.size = old_size.max(end);
    let end = end.next_multiple_of(engine.core.sector());
    // What was dirty here is overwritten; keep it until the new content has landed, with which
    // the size on the volume grows to what is dirty behind it.
    let dirty = state.dirty.take();
    state.pending_from = dirty.as_ref().and_then(|d| d.first_beside(state.landed_size, start..end));
    let stored = store(state);
    state.pending_from = None;
    state.dirty = dirty;
    let stored = stored.inspect_err(|_| state.item.size = old_size)?;
    if let Some(dirty) = &mut state.dirty {
        let before = dirty.bytes();
        dirty.remove(start, end);
        dirty.ground_changed();
        engine.reservations.forget_dirty(before - dirty.bytes());
        if dirty.is_empty() {
            state.dirty = None;
        }
    }
    Ok(stored)
}

/// Keeps content in memory until writeback.
fn gather(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    offset: u64,
    data: &[u8],
    budget: &mut DirtyReservation<'_>,
) -> Result<()> {
    let sector = engine.core.sector();
    let end = offset + data.len() as u64;
    let fill = |state: &mut State, at: u64, budget: &mut DirtyReservation<'_>| -> Result<()> {
        let start = at / sector * sector;
        // A sector that the write covers wholly needs nothing of its old content; one
        // behind the end of the file has none.
        let covered = offset <= start && (end >= start + sector || end >= state.item.size);
        if !covered && start < state.item.size {
            budget.spend(fill_sector(&engine.writeback, inode.id, state, start)?);
        }
        Ok(())
    };
    fill(state, offset, budget)?;
    fill(state, end - 1, budget)?;
    let dirty = dirty_of(&engine.writeback, state);
    let before = dirty.bytes();
    dirty.write(offset, data);
    budget.spend(dirty.bytes() - before);
    state.item.size = state.item.size.max(end);
    Ok(())
}
