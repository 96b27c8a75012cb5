//! copy_file_range and reflink: sharing extents where alignment allows it.
//!
//! Invariant: a shared range refers to the source's extents with its own counted
//! references; checksums belong to the extents and need nothing.

use super::file::{check_file, end_of, hole_to};
use super::long_item::unfold;
use super::truncate::zero_tail;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::{
    Mapped, MappedKind, drop_range, map_first, map_range, map_step, map_stored, put_extent,
    put_hole,
};
use crate::ino::InodeId;
use crate::inode::Locked;
use crate::inode::{Inode, State, change, put_inode};
use crate::reserve::cost::{self, Cost};
use crate::reserve::{DirtyReservation, Reservation};
use crate::writeback::{flush_to_extents, load_inline, look_inline_end};
use btrfs_disk::items::{FileExtentFields, inode_flags};
use btrfs_txn::{Core, Op};
use inode_index::Ref;
use vfs::{Errno, Ino, Result, WriteFlags};

/// Extent items that one operation shares at most.
/// Chosen, not measured.
const STEP: usize = 512;
/// Extent items that one call shares: who waits for it can be told to end behind that.
/// Chosen, not measured.
const SHARED_AT_ONCE: usize = 16 * STEP;
/// Bytes that one call copies where they cannot be shared.
/// Chosen, not measured.
const COPIED_AT_ONCE: u64 = 128 << 20;
/// Bytes that a copy without sharing moves at a time.
/// Chosen, not measured.
const CHUNK: usize = 1 << 20;

/// A range of one file onto a range of another (or the same).
#[derive(Clone, Copy)]
struct Range {
    from: u64,
    to: u64,
    len: u64,
}

impl Range {
    /// What is left of it behind `at` of the source.
    fn behind(self, at: u64) -> Range {
        let done = at - self.from;
        Range { from: at, to: self.to + done, len: self.len - done }
    }
}

/// A step that found no room: nothing behind `at` of the source is shared yet.
struct Short {
    at: u64,
    needs: Cost,
}

/// Answers how much it was; callers go on from there. An error says that nothing was changed: what fails behind
/// something that is done is told to who goes on.
pub(crate) fn copy_range(
    engine: &Engine,
    _cx: &vfs::Context,
    from: Ino,
    from_offset: u64,
    to: Ino,
    to_offset: u64,
    len: u64,
) -> Result<u64> {
    let source = engine.inodes.get(from)?;
    let target = engine.inodes.get(to)?;
    let size = {
        let state = source.read()?;
        check_file(&state)?;
        state.item.size
    };
    check_target(&*target.read()?)?;
    let len = len.min(size.saturating_sub(from_offset));
    if len == 0 {
        return Ok(0);
    }
    end_of(to_offset, len)?;
    if from == to && from_offset < to_offset + len && to_offset < from_offset + len {
        return Err(Errno::EINVAL.into());
    }
    let range = Range { from: from_offset, to: to_offset, len };
    let (wanted, mut done) = (to_share(engine, (&source, size), &target, range)?, 0);
    if wanted > 0 {
        let now = up_to(engine, &source, (from_offset, wanted), SHARED_AT_ONCE)?;
        match share(engine, &source, &target, Range { len: now, ..range }, &mut done) {
            Ok(()) if now < wanted => return Ok(done),
            Ok(()) => {}
            Err(_) if done > 0 => return Ok(done),
            Err(e) if may_be_copied(&e) => {}
            Err(e) => return Err(e),
        }
    }
    let rest = (len - done).min(COPIED_AT_ONCE);
    match copy_bytes(engine, from, from_offset + done, to, to_offset + done, rest) {
        Err(_) if done > 0 => Ok(done),
        copied => Ok(done + copied?),
    }
}

/// How much of the range, from its beginning on, the files may share.
fn to_share(
    engine: &Engine,
    (source, size): (&Ref<Inode>, u64),
    target: &Ref<Inode>,
    range: Range,
) -> Result<u64> {
    let (sector, len) = (engine.core.sector(), range.len);
    let aligned = range.from.is_multiple_of(sector) && range.to.is_multiple_of(sector);
    let small = size <= engine.core.geometry.max_inline() as u64;
    let sums = source.read()?.item.flags & inode_flags::NODATASUM;
    let (target_sums, target_size) = {
        let state = target.read()?;
        (state.item.flags & inode_flags::NODATASUM, state.item.size)
    };
    if !aligned || small || sums != target_sums || stays_inline(engine, source)? {
        return Ok(0);
    }
    // A tail at the source's end is shared only if it becomes the target's end too.
    let whole = range.from + len == size && range.to + len >= target_size;
    Ok(if whole { len } else { len / sector * sector })
}

/// Where files share nothing, or there is no room to share: the target may have space of its own to be written over.
fn may_be_copied(error: &vfs::FsError) -> bool {
    [libc::EINVAL, libc::ENOSPC, libc::EDQUOT].contains(&error.errno())
}

/// How much of a range `most` extent items are, which end with a sector unless the range does.
fn up_to(
    engine: &Engine,
    source: &Ref<Inode>,
    (from, len): (u64, u64),
    most: usize,
) -> Result<u64> {
    let sector = engine.core.sector();
    if len.div_ceil(sector) <= most as u64 {
        return Ok(len);
    }
    engine.writeback.flush_inode(source)?;
    let found = {
        let _unchanged = source.read()?;
        map_first(&engine.core.view(), source.id, sector, (from, from + len), most + 1).fs()?
    };
    match found.get(most) {
        Some(next) => Ok(found[most - 1].end.min(next.start).min(from + len) - from),
        None => Ok(len),
    }
}

fn check_target(state: &State) -> Result<()> {
    check_file(state)?;
    state.content_is_replaced()
}

/// Answers how much it was: the source may end earlier by now. An error behind the first chunk is for who goes on.
fn copy_bytes(
    engine: &Engine,
    from: Ino,
    from_offset: u64,
    to: Ino,
    to_offset: u64,
    len: u64,
) -> Result<u64> {
    let mut buf = vec![0; CHUNK.min(len as usize)];
    let mut done = 0;
    while done < len {
        let take = (len - done).min(buf.len() as u64) as usize;
        let chunk = &mut buf[..take];
        match copy_chunk(engine, (from, from_offset + done), (to, to_offset + done), chunk) {
            Ok(0) => break,
            Ok(copied) => done += copied,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn copy_chunk(engine: &Engine, from: (Ino, u64), to: (Ino, u64), buf: &mut [u8]) -> Result<u64> {
    let got = super::io::read(engine, from.0, from.1, buf)?;
    let written = super::io::write(engine, to.0, to.1, &buf[..got], WriteFlags::default())?;
    Ok(written as u64)
}

/// `FICLONERANGE`. What is copied and not shared comes in parts, and what refuses one is told by the next.
pub(crate) fn clone_range(
    engine: &Engine,
    from: (Ino, u64),
    to: (Ino, u64),
    len: u64,
) -> Result<()> {
    let len = match len {
        0 => engine.inodes.get(from.0)?.read()?.item.size.saturating_sub(from.1),
        _ => len,
    };
    let mut done = 0;
    loop {
        let part = clone(engine, (from.0, from.1 + done), (to.0, to.1 + done), len - done, None)?;
        done += part;
        if done >= len {
            return Ok(());
        }
        if part == 0 {
            // The source has become shorter.
            return Err(Errno::EINVAL.into());
        }
    }
}

/// The first of it, as much as takes no long time; answers how much. Where it cannot be as a whole it is
/// refused.
pub(crate) fn clone_some(
    engine: &Engine,
    from: (Ino, u64),
    to: (Ino, u64),
    len: u64,
) -> Result<u64> {
    clone(engine, from, to, len, Some(SHARED_AT_ONCE))
}

fn clone(
    engine: &Engine,
    (from, from_offset): (Ino, u64),
    (to, to_offset): (Ino, u64),
    len: u64,
    most: Option<usize>,
) -> Result<u64> {
    let source = engine.inodes.get(from)?;
    let target = engine.inodes.get(to)?;
    let (size, source_nosum) = {
        let state = source.read()?;
        check_file(&state)?;
        (state.item.size, state.item.flags & inode_flags::NODATASUM)
    };
    {
        let state = target.read()?;
        check_target(&state)?;
        if state.item.flags & inode_flags::NODATASUM != source_nosum {
            return Err(Errno::EINVAL.into());
        }
    }
    let len = if len == 0 { size.saturating_sub(from_offset) } else { len };
    let (end, _) = (end_of(from_offset, len)?, end_of(to_offset, len)?);
    if len == 0 && from_offset <= size {
        return Ok(0);
    }
    let sector = engine.core.sector();
    let overlaps = from == to && from_offset < to_offset + len && to_offset < end;
    if !from_offset.is_multiple_of(sector) || !to_offset.is_multiple_of(sector) || overlaps {
        return Err(Errno::EINVAL.into());
    }
    let range = Range { from: from_offset, to: to_offset, len };
    check_ends(&engine.core, size, target.read()?.item.size, &range)?;
    if stays_inline(engine, &source)? {
        return copy_bytes(engine, from, from_offset, to, to_offset, len);
    }
    let len = match most {
        Some(most) => up_to(engine, &source, (from_offset, len), most)?,
        None => len,
    };
    match share(engine, &source, &target, Range { len, ..range }, &mut 0) {
        Err(error) if error.errno() == libc::EINVAL && stays_inline(engine, &source)? => {
            copy_bytes(engine, from, from_offset, to, to_offset, len)
        }
        done => done.map(|()| len),
    }
}

/// Content that the file's item has: it is copied, as by the kernel. To share it would change the source, which may be
/// in a read-only subvolume, or somebody else's, or in snapshots that have it as it is. More may follow behind such an
/// item, which is shared where the source may be changed.
fn stays_inline(engine: &Engine, source: &Inode) -> Result<bool> {
    let state = source.read()?;
    let end = end_of_item(engine, source, &state)?;
    Ok(end > 0 && (state.item.size <= end || engine.subvols.is_read_only(source.id.tree)))
}

/// Where such an item ends; 0: there is none.
fn end_of_item(engine: &Engine, source: &Inode, state: &State) -> Result<u64> {
    state.inline_end.map_or_else(|| look_inline_end(&engine.writeback, source.id), Ok)
}

/// `done`: how far it has come, also where it fails.
fn share(
    engine: &Engine,
    source: &Ref<Inode>,
    target: &Ref<Inode>,
    range: Range,
    done: &mut u64,
) -> Result<()> {
    engine.subvol_writable(target.id.tree)?;
    let changed = |inode: &Inode| !engine.subvols.is_read_only(inode.id.tree);
    [source, target].into_iter().filter(|i| changed(i)).try_for_each(|i| unfold(engine, i))?;
    let _promise = match source.id.tree == target.id.tree {
        true => None,
        false => engine.reserver.may_share_into(target.id.tree, range.len)?,
    };
    let copies = cost::copy_range();
    [source, target].iter().try_for_each(|inode| engine.writeback.flush_compressed(inode))?;
    let (mut rest, mut room) = (range, Cost::default());
    loop {
        let most = if writes_anew(engine, source, target, rest.to)? { 8 } else { 0 };
        let data = most * engine.core.sector();
        let mut reserved = engine.reserver.reserve_content(data, copies + room)?;
        match share_locked(engine, source, target, rest, room, &mut reserved.dirty)? {
            None => {
                *done = range.len;
                return Ok(());
            }
            // Nobody looks for room with inodes locked, nor for more of it.
            Some(Short { at, needs }) => (rest, room) = (rest.behind(at), needs),
        }
        *done = range.len - rest.len;
    }
}

/// Whether something has to be written anew, for which there must be room: no full volume refuses what only
/// shares.
fn writes_anew(engine: &Engine, source: &Ref<Inode>, target: &Ref<Inode>, to: u64) -> Result<bool> {
    for (inode, to) in [(source, 0), (target, to)] {
        let state = inode.read()?;
        if is_written_anew(engine, inode, &state, to)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Content that an item has becomes an extent, and a part of a sector at the end of a file that reaches further up to
/// `to` gets zeros behind it.
fn is_written_anew(engine: &Engine, inode: &Inode, state: &State, to: u64) -> Result<bool> {
    let size = state.item.size;
    let within = to > size && !size.is_multiple_of(engine.core.sector());
    Ok(within || end_of_item(engine, inode, state)? > 0)
}

/// What was looked at before the files were locked may be otherwise by now. EINVAL: it cannot be shared.
fn check_locked(
    engine: &Engine,
    locked: &Locked<'_>,
    (source, target): (&Ref<Inode>, &Ref<Inode>),
    range: &Range,
) -> Result<()> {
    engine.still_writable(target.id.tree)?;
    let nosum = |s: &State| s.item.flags & inode_flags::NODATASUM;
    if nosum(locked.get(source)) != nosum(locked.get(target)) {
        return Err(Errno::EINVAL.into());
    }
    // It may be so since somebody looked.
    if engine.subvols.is_read_only(source.id.tree)
        && end_of_item(engine, source, locked.get(source))? > 0
    {
        return Err(Errno::EINVAL.into());
    }
    check_target(locked.get(target))?;
    let sizes = [source, target].map(|inode| locked.get(inode).item.size);
    check_ends(&engine.core, sizes[0], sizes[1], range)
}

fn share_locked(
    engine: &Engine,
    source: &Ref<Inode>,
    target: &Ref<Inode>,
    range: Range,
    room: Cost,
    budget: &mut DirtyReservation<'_>,
) -> Result<Option<Short>> {
    let _queued = [source, target].map(|inode| engine.writeback.queue().add_at_end(inode));
    let _still = engine.core.addresses.hold_still();
    let mut locked = Locked::new(&[source, target])?;
    check_locked(engine, &locked, (source, target), &range)?;
    if budget.is_empty()
        && (is_written_anew(engine, source, locked.get(source), 0)?
            || is_written_anew(engine, target, locked.get(target), range.to)?)
    {
        return Ok(Some(Short { at: range.from, needs: room }));
    }
    for inode in [source, target] {
        let state = locked.state(inode);
        budget.spend(load_inline(&engine.writeback, inode.id, state)?);
        flush_to_extents(&engine.writeback, inode.id, state)?;
    }
    let state = locked.state(target);
    grow_to(engine, target, state, range.to, budget)?;
    let sector = engine.core.sector();
    let span = range.len.next_multiple_of(sector);
    let short = insert_shared(engine, target, state, source.id, &range, span, room)?;
    if short.is_some() {
        return Ok(short);
    }
    state.item.size = state.item.size.max(range.to + range.len);
    let time = engine.core.now();
    state.item.mtime = time;
    state.item.ctime = time;
    put_inode(&engine.core.begin(), target.id, state);
    Ok(None)
}

/// Only whole sectors are shared, so a part of one must end both files: else the target would lose what
/// it has behind it, or get what the source has there. EINVAL: that is not so, or is not so any more.
fn check_ends(core: &Core, source: u64, target: u64, range: &Range) -> Result<()> {
    let (from, to) = (range.from + range.len, range.to + range.len);
    let whole = range.len.is_multiple_of(core.sector());
    let ends = from == source && to >= target;
    if from <= source && (whole || ends) { Ok(()) } else { Err(Errno::EINVAL.into()) }
}

/// The file reaches up to there, or further.
fn grow_to(
    engine: &Engine,
    target: &Ref<Inode>,
    state: &mut State,
    to: u64,
    budget: &mut DirtyReservation<'_>,
) -> Result<()> {
    if to > state.item.size {
        budget.spend(zero_tail(engine, target.id, state)?);
        flush_to_extents(&engine.writeback, target.id, state)?;
        hole_to(engine, target, state, to)?;
    }
    Ok(())
}

/// Replaces the target's range step by step, each step one operation, so that no commit
/// sees a part whose old content is gone and whose new content is not there yet. Its first step has
/// `room` that the caller holds.
fn insert_shared(
    engine: &Engine,
    target: &Ref<Inode>,
    state: &mut State,
    source: InodeId,
    range: &Range,
    span: u64,
    mut room: Cost,
) -> Result<Option<Short>> {
    let source_end = range.from + span;
    let mut at = range.from;
    // Of the source, all up to there.
    let (mut part, mut known) = (Vec::new(), at);
    while at < source_end {
        if at == known {
            let (view, sector) = (engine.core.view(), engine.core.sector());
            (part, known) = map_stored(&view, source, sector, (at, source_end), STEP).fs()?;
        }
        let (end, old) = old_items(engine, target, range, at, known)?;
        // And the hole behind them.
        let needs = cost::shares(part.len() as u64 + 1, old);
        let Some(_reservation) = hold_step(engine, needs, std::mem::take(&mut room))? else {
            return Ok(Some(Short { at, needs }));
        };
        change(&engine.core, |op| {
            op.run(|| share_step(op, target, state, &part, range, (at, end)))?;
            let reached = (range.to + (end - range.from)).min(range.to + range.len);
            state.item.size = state.item.size.max(reached);
            put_inode(op, target.id, state);
            Ok(())
        })?;
        at = end;
    }
    Ok(None)
}

/// The target's part that stands for [from, end) of the source becomes what `part` says of that, which may say more.
fn share_step(
    op: &Op<'_>,
    target: &Ref<Inode>,
    state: &mut State,
    part: &[Mapped],
    range: &Range,
    (from, end): (u64, u64),
) -> Result<()> {
    clear(op, target, state, range, from, end)?;
    let mut at = from;
    for extent in part.iter().filter(|m| m.start < end && m.end > from) {
        let piece = (extent.start.max(from), extent.end.min(end));
        fill_hole(op, target, range, at, piece.0);
        insert_one(op, target, state, extent, range, piece)?;
        at = piece.1;
    }
    fill_hole(op, target, range, at, end);
    Ok(())
}

/// Room for a step, beside `room` that is held for it. `None`: there is none now.
fn hold_step(engine: &Engine, needs: Cost, room: Cost) -> Result<Option<Reservation<'_>>> {
    engine.reservations.hold_step(if needs.is_within(&room) { Cost::default() } else { needs })
}

/// How many extent items the target has in the part that stands for [from, to) of the source, and where that ends: before
/// `to` where there are more than one step replaces.
fn old_items(
    engine: &Engine,
    target: &Ref<Inode>,
    range: &Range,
    from: u64,
    to: u64,
) -> Result<(u64, u64)> {
    let (start, end) = (range.to + (from - range.from), range.to + (to - range.from));
    let (view, sector) = (engine.core.view(), engine.core.sector());
    let (old, next) = map_step(&view, target.id, sector, (start, end), STEP).fs()?;
    Ok((from + (next - start), old.len() as u64))
}

/// Empties the target's part that stands for [from, to) of the source.
fn clear(
    op: &Op<'_>,
    target: &Ref<Inode>,
    state: &mut State,
    range: &Range,
    from: u64,
    to: u64,
) -> Result<()> {
    let (start, end) = (range.to + (from - range.from), range.to + (to - range.from));
    let old = map_range(&op.view, target.id, op.core.sector(), start, end).fs()?;
    drop_range(op, target.id, state, &old, start, end)
}

/// Volumes without NO_HOLES want an item for what the source has nothing for.
fn fill_hole(op: &Op<'_>, target: &Ref<Inode>, range: &Range, from: u64, to: u64) {
    if from >= to {
        return;
    }
    let start = range.to + (from - range.from);
    let end = start + (to - from);
    op.note_gap(target.id, start, end);
    if !op.core.features.no_holes {
        put_hole(op, target.id, start, end);
    }
}

/// The part [start, end) of the source, within one extent, is referred to by the target.
fn insert_one(
    op: &Op<'_>,
    target: &Ref<Inode>,
    state: &mut State,
    extent: &Mapped,
    range: &Range,
    (start, end): (u64, u64),
) -> Result<()> {
    let MappedKind::Extent { fields, .. } = &extent.kind else { return Ok(()) };
    let to = range.to + (start - range.from);
    let offset = fields.offset + (start - extent.start);
    let part = FileExtentFields { offset, num_bytes: end - start, ..*fields };
    let who = (target.id.tree, target.id.objectid, to.wrapping_sub(offset));
    op.reference(fields.disk_bytenr, fields.disk_num_bytes, who, 1).fs()?;
    put_extent(op, target.id, state, to, &part);
    Ok(())
}
