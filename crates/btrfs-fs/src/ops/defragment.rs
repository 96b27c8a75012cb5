//! Content of a file that lies in many short extents is written anew in longer ones, or compressed.
//!
//! Invariants: what a caller can see of the file stays: content, holes, size, times. What somebody
//! else has, too (a reflink, a snapshot), stays shared, unless the caller says otherwise. What
//! changed between the look and the work is left alone.
//!
//! What it does not know: where content goes, and how it is compressed (`writeback`).

use super::file::check_file;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::{Mapped, MappedKind, map_first, map_range, next_extent, read_extents};
use crate::inode::{Inode, State};
use crate::options::{Method, is_never_compressed};
use crate::reserve::cost;
use crate::writeback::dirty_of;
use btrfs_disk::compress::MAX_UNCOMPRESSED;
use btrfs_disk::items::{Compression, inode_flags};
use btrfs_txn::BATCH;
use inode_index::Ref;
use std::ops::Range;
use vfs::{Ino, Result};

/// What is looked at together.
/// Chosen, not measured.
const WINDOW: u64 = 1 << 30;
/// So many extents are looked at with the file locked.
/// Chosen, not measured.
const LOOKED_AT: usize = 256;

/// What to write anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Defragment {
    /// Bytes of the file from here on.
    pub start: u64,
    /// So many of them.
    pub len: u64,
    /// Extents of so many bytes are left as they are; above 8 MiB it is that, as much as is written
    /// at a time.
    pub target: u64,
    /// All of it is compressed so.
    pub compress: Option<Method>,
    /// Also what somebody else has: that is stored twice then.
    pub unshare: bool,
}

impl Default for Defragment {
    fn default() -> Defragment {
        Defragment { start: 0, len: u64::MAX, target: BATCH, compress: None, unshare: false }
    }
}

/// Asked before each step: a look at some extents, or a piece that is written anew.
type GoesOn<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Answers how many bytes were written anew. EISDIR, EINVAL: it is no file.
pub(crate) fn defragment(
    engine: &Engine,
    ino: Ino,
    wish: &Defragment,
    goes_on: GoesOn<'_>,
) -> Result<u64> {
    let inode = engine.inodes.get(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    let (size, flags) = {
        let state = inode.read()?;
        check_file(&state)?;
        (state.item.size, state.item.flags)
    };
    if !may_move(flags) {
        return Ok(0);
    }
    let compress = wish.compress.filter(|method| can_compress(*method, flags));
    let wish = Defragment { compress, ..*wish };
    engine.writeback.flush_unasked(&inode)?;
    let end = size.min(wish.start.saturating_add(wish.len));
    let (mut at, mut written) = (wish.start / engine.core.sector() * engine.core.sector(), 0);
    while at < end {
        let window = at..end.min(at + WINDOW);
        for run in runs(engine, &inode, window.clone(), &wish, goes_on)? {
            for start in run.clone().step_by(BATCH as usize) {
                goes_on()?;
                let piece = start..run.end.min(start + BATCH);
                written += rewrite(engine, &inode, piece, wish.compress)?;
            }
        }
        at = behind_hole(engine, &inode, window.end)?;
    }
    Ok(written)
}

/// Where the file goes on at or behind `from`: a sparse one may have a hole of exabytes there.
fn behind_hole(engine: &Engine, inode: &Inode, from: u64) -> Result<u64> {
    let _still = engine.core.addresses.hold_still();
    let _state = inode.read()?;
    let next = next_extent(&engine.core.view(), inode.id, engine.core.sector(), from).fs()?;
    Ok(next.map_or(u64::MAX, |next| if next.is_hole() { next.end } else { next.start.max(from) }))
}

/// What is not copied on write has its place for good.
fn may_move(flags: u64) -> bool {
    flags & inode_flags::NODATACOW == 0
}

/// In space that was set aside, too, which nothing else compresses: what is written anew lies elsewhere.
fn can_compress(method: Method, flags: u64) -> bool {
    method == Method::PLAIN || !is_never_compressed(flags)
}

/// Ranges that are to be written anew, each of extents that lie side by side in the file.
fn runs(
    engine: &Engine,
    inode: &Inode,
    window: Range<u64>,
    wish: &Defragment,
    goes_on: GoesOn<'_>,
) -> Result<Vec<Range<u64>>> {
    // A run, and whether it is worth it: for its one extent, or because there are several.
    let mut runs: Vec<(Range<u64>, bool)> = Vec::new();
    let mut at = window.start;
    while at < window.end {
        goes_on()?;
        let (wanted, end) = wanted(engine, inode, at..window.end, wish)?;
        for (range, alone) in wanted {
            match runs.last_mut() {
                Some((run, worth)) if run.end == range.start => {
                    (run.end, *worth) = (range.end, true);
                }
                _ => runs.push((range, alone)),
            }
        }
        at = end;
    }
    Ok(runs.into_iter().filter(|(_, worth)| *worth).map(|(run, _)| run).collect())
}

/// A part of the file to be written anew, and whether it is alone, too.
type Wanted = (Range<u64>, bool);

/// Of the window's first extents, those that are written anew, each with whether it is alone, too, and where the look
/// ended. Nobody changes the file meanwhile, nor moves what it has: an extent would be looked for that is gone.
fn wanted(
    engine: &Engine,
    inode: &Inode,
    window: Range<u64>,
    wish: &Defragment,
) -> Result<(Vec<Wanted>, u64)> {
    let _still = engine.core.addresses.hold_still();
    let state = inode.read()?;
    let compresses = engine.writeback.compresses(&state) || wish.compress.is_some();
    let (id, sector) = (inode.id, engine.core.sector());
    let range = (window.start, window.end);
    let mapped = map_first(&engine.core.view(), id, sector, range, LOOKED_AT).fs()?;
    let mut wanted = Vec::new();
    for extent in &mapped {
        if is_wanted(engine, inode, extent, wish, compresses)? {
            let range = extent.start.max(window.start)..extent.end.min(window.end);
            wanted.push((range, is_stored_otherwise(extent, wish.compress)));
        }
    }
    let all = mapped.len() < LOOKED_AT;
    let end = mapped.last().filter(|_| !all).map_or(window.end, |last| last.end);
    Ok((wanted, end.min(window.end)))
}

/// Whether it has another form than it is to have.
fn is_stored_otherwise(extent: &Mapped, method: Option<Method>) -> bool {
    let MappedKind::Extent { compression, .. } = &extent.kind else { return false };
    method.is_some_and(|method| *compression != method.kind)
}

/// Whether the extent is one of those that are written anew.
fn is_wanted(
    engine: &Engine,
    inode: &Inode,
    extent: &Mapped,
    wish: &Defragment,
    compresses: bool,
) -> Result<bool> {
    let MappedKind::Extent { compression, .. } = &extent.kind else { return Ok(false) };
    let target = wish.target.min(BATCH);
    let fits = match wish.compress {
        // As in the kernel short ones become longer, too.
        Some(Method::PLAIN) => {
            *compression != Compression::None || extent.end - extent.start < target
        }
        Some(method) => *compression != method.kind,
        // It would become larger.
        None if *compression != Compression::None && !compresses => false,
        None if compresses => extent.end - extent.start < target.min(MAX_UNCOMPRESSED as u64),
        None => extent.end - extent.start < target,
    };
    if !extent.has_data() || !fits {
        return Ok(false);
    }
    Ok(wish.unshare || engine.writeback.is_sole(inode.id, extent)?)
}

/// Reads a piece and has it written back; nothing, if it is no longer what it was.
fn rewrite(
    engine: &Engine,
    inode: &Ref<Inode>,
    piece: Range<u64>,
    compress: Option<Method>,
) -> Result<u64> {
    let sector = engine.core.sector();
    let len = (piece.end - piece.start).next_multiple_of(sector);
    let promise = engine.reserver.within_limits(inode.id.tree, len)?;
    let cost = cost::write(&engine.core.geometry, true);
    let mut reserved = engine.reserver.reserve_content(len + 4 * sector, cost)?;
    {
        let queue = engine.writeback.queue();
        let _held = (queue.add_at_end(inode), engine.core.addresses.hold_still());
        let mut state = engine.write(inode)?;
        engine.core.health.changeable().fs()?;
        // It may be a file by now that nobody compresses, or that is not copied on write.
        let flags = state.item.flags;
        let may = may_move(flags) && compress.is_none_or(|method| can_compress(method, flags));
        if !may || !is_stored(engine, inode, &state, &piece)? {
            return Ok(0);
        }
        let mut content = vec![0; len as usize];
        read_extents(&engine.core, inode.id, state.item.flags, piece.start, &mut content)?;
        // What another system left behind the end does not come to light when the file grows.
        content[(state.item.size - piece.start).min(len) as usize..].fill(0);
        dirty_of(&engine.writeback, &mut state).write(piece.start, &content);
        reserved.dirty.spend(len);
        state.compress_next = compress;
    }
    drop((reserved, promise));
    let written = engine.writeback.flush_unasked(inode);
    if compress.is_some()
        && let Ok(mut state) = inode.write()
    {
        state.compress_next = None;
    }
    written.map(|()| len)
}

/// Whether all of the piece is content in extents, and nothing of the file is in memory alone.
fn is_stored(engine: &Engine, inode: &Inode, state: &State, piece: &Range<u64>) -> Result<bool> {
    if state.dirty.is_some() || piece.end > state.item.size {
        return Ok(false);
    }
    let (view, sector) = (engine.core.view(), engine.core.sector());
    let mut at = piece.start;
    for extent in map_range(&view, inode.id, sector, piece.start, piece.end).fs()? {
        if extent.has_data() && extent.start <= at {
            at = at.max(extent.end);
        }
    }
    Ok(at >= piece.end)
}
