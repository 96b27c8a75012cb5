//! What operations on a file's content share: whether it is one, how far it may reach, the gap behind its old end, and what
//! goes with any change of its content.

use super::behind_end::drop_content_behind_end;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::{AT_A_TIME, Mapped, map_step, put_hole};
use crate::inode::{Inode, State};
use crate::reserve::cost;
use btrfs_space::Priority;
use inode_index::Ref;
use std::ops::Range;
use vfs::{Errno, Result};

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
