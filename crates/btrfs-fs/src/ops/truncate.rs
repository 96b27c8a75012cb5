//! Changing a file's size.

use super::io::{check_file, end_of, hole_to, kill_priv};
use crate::data::flush::{fill_sector, load_inline};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::{drop_range, map_range};
use crate::ino::InodeId;
use crate::inode::{Inode, State, now};
use crate::ops::xattr::drop_capability;
use btrfs_disk::items::inode_flags;
use btrfs_space::Priority;
use std::sync::Arc;
use vfs::{Errno, Result};

/// Extent items that one operation drops at most.
const STEP: usize = 1024;
/// The same where the volume is full.
pub const SMALL_STEP: usize = 8;

/// The last sector's part behind the end of the file becomes zeros in memory, before the
/// file grows over it. Returns the bytes that became dirty.
pub fn zero_tail(engine: &Engine, id: InodeId, state: &mut State) -> Result<u64> {
    let sector = engine.sector();
    let size = state.item.size;
    if size.is_multiple_of(sector) {
        return Ok(0);
    }
    let start = size / sector * sector;
    let view = engine.view();
    let stored = map_range(&view, id, sector, start, size).fs()?.iter().any(|m| m.has_data());
    drop(view);
    if !stored {
        return Ok(0);
    }
    fill_sector(engine, id, state, start)
}

pub fn set_size(engine: &Engine, inode: &Arc<Inode>, size: u64, kill: bool) -> Result<()> {
    end_of(size, 0)?;
    loop {
        engine.reserve_for_removal(2 * SMALL_STEP as u64)?;
        // Nothing of an empty file must be written anew.
        let promised = if size == 0 { 0 } else { 2 * engine.sector() };
        engine.promise_data(promised)?;
        let mut budget = promised;
        let result = set_size_locked(engine, inode, size, kill, &mut budget);
        engine.forget_dirty(budget);
        match result? {
            Done::All => return Ok(()),
            // The rest has room after a commit; without one there is none at all.
            Done::Part => engine.commit_for_space()?,
        }
    }
}

/// How far a change of many items has come.
#[derive(PartialEq, Eq)]
pub enum Done {
    All,
    /// The volume must have a commit before it has room for the rest.
    Part,
}

fn set_size_locked(
    engine: &Engine,
    inode: &Arc<Inode>,
    size: u64,
    kill: bool,
    budget: &mut u64,
) -> Result<Done> {
    let mut state = inode.write()?;
    check_file(&state)?;
    if state.item.flags & (inode_flags::IMMUTABLE | inode_flags::APPEND) != 0 {
        return Err(Errno::EPERM.into());
    }
    if kill {
        kill_priv(&mut state);
    }
    drop_capability(&engine.begin(), inode.id, &mut state)?;
    if size == state.item.size {
        if kill {
            engine.begin().put_inode(inode.id, &mut state);
        }
        return Ok(Done::All);
    }
    let mut done = Done::All;
    if size > 0 {
        *budget -= load_inline(engine, inode.id, &mut state)?;
    }
    if size > state.item.size {
        *budget -= zero_tail(engine, inode.id, &mut state)?;
        hole_to(engine, inode, &mut state, size.next_multiple_of(engine.sector()))?;
        state.item.size = size;
    } else if size < state.item.size {
        done = shrink(engine, inode.id, &mut state, size, budget)?;
    }
    let time = now();
    state.item.mtime = time;
    state.item.ctime = time;
    engine.begin().put_inode(inode.id, &mut state);
    drop(state);
    engine.queue_dirty(inode);
    Ok(done)
}

fn shrink(
    engine: &Engine,
    id: InodeId,
    state: &mut State,
    size: u64,
    budget: &mut u64,
) -> Result<Done> {
    let sector = engine.sector();
    let keep = size.next_multiple_of(sector);
    if keep != size {
        let start = size / sector * sector;
        let view = engine.view();
        let stored = map_range(&view, id, sector, start, size).fs()?.iter().any(|m| m.has_data());
        drop(view);
        if stored {
            *budget -= fill_sector(engine, id, state, start)?;
        }
    }
    if let Some(dirty) = &mut state.dirty {
        let before = dirty.bytes();
        dirty.truncate(size);
        engine.forget_dirty(before - dirty.bytes());
        if dirty.is_empty() {
            state.dirty = None;
        }
    }
    let old_size = state.item.size;
    state.item.size = size;
    state.landed_size = state.landed_size.min(size);
    let Some(reached) = drop_behind(engine, id, state, keep)? else { return Ok(Done::All) };
    // What is still there must not come back when the file grows: it ends behind it.
    state.item.size = reached.min(old_size);
    state.landed_size = state.item.size;
    Ok(Done::Part)
}

/// Drops all extents from `keep` on, the last ones first, each step one operation that
/// leaves the file whole: the size on the volume says `size` from the first on. Where the
/// volume has no room for the next step it says behind which offset all is gone.
fn drop_behind(engine: &Engine, id: InodeId, state: &mut State, keep: u64) -> Result<Option<u64>> {
    let mapped = map_range(&engine.view(), id, engine.sector(), keep, u64::MAX).fs()?;
    let mut reached = mapped.last().map_or(keep, |last| last.end);
    let mut left = &mapped[..];
    while !left.is_empty() {
        let Some(step) = room_for_step(engine, left.len())? else { return Ok(Some(reached)) };
        let (rest, part) = left.split_at(left.len() - step);
        let op = engine.begin();
        reached = part[0].start.max(keep);
        drop_range(&op, id, state, part, reached, u64::MAX)?;
        op.put_inode(id, state);
        left = rest;
    }
    Ok(None)
}

/// How many of `left` items the next step may drop; `None`: none before a commit.
pub fn room_for_step(engine: &Engine, left: usize) -> Result<Option<usize>> {
    for step in [STEP, SMALL_STEP] {
        let step = step.min(left);
        match engine.hold(step as u64, 0, Priority::Delete) {
            Err(error) if error.errno() == libc::ENOSPC => {}
            other => return other.map(|()| Some(step)),
        }
    }
    Ok(None)
}
