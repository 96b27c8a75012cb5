//! What each way of writing shares: what comes before the content, whole sectors of it, and content that stays in memory.
//!
//! What it does not know: which way a write goes (`io`, `in_place`, `encoded`).

use super::append;
use super::file::{hole_to, kill_priv};
use super::truncate::zero_tail;
use super::xattr::drop_capability;
use crate::engine::Engine;
use crate::extents::{self, sectors_of, sectors_within};
use crate::inode::{ErrorSeen, Inode, State};
use crate::reserve::DirtyReservation;
use crate::writeback::{Unstored, dirty_of, fill_sector, land_in_front, load_inline};
use inode_index::Ref;
use std::ops::Range;
use vfs::{FsError, Result, WriteFlags};

/// Of what comes out of the kernel's cache nobody waits for this answer: a program stored it through a map, or has
/// heard long ago that it is written, and the kernel drops what is refused. So it stays in memory, as
/// what was gathered there and is refused later.
pub(super) fn keep(
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
    ErrorSeen::refused(&mut state.refused);
    engine.writeback.errors().keep(inode.id, &error);
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
        Ok(mut held) => {
            // Compressed by a defragmentation it would need other space.
            state.compress_next = None;
            keep(engine, inode, state, (offset, data), &mut held.dirty, error)
        }
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
    let loaded = load_inline(&engine.writeback, inode.id, state);
    let (first, len) = (state.inline_end.unwrap_or(0).max(engine.core.sector()), data.len() as u64);
    // Not what is written over wholly. It stays where it is until that lands, which takes another look.
    let needs_beginning = offset < first && (offset > 0 || len < first && len < state.item.size);
    match loaded {
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

/// Whether content in front of `start` is in memory alone, and the size on the volume ends there: what is stored behind
/// would lie behind the end of the file in a commit that leaves that content where it is. After a crash the kernel shows
/// what lies there when the file grows.
pub(super) fn lies_behind_dirty(state: &State, start: u64) -> bool {
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
pub(super) fn gather(
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
