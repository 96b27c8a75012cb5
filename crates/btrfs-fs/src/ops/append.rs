//! What may be written to a file that may only grow (`chattr +a`).
//!
//! Who writes writes at its end. The kernel's cache writes from the beginning of a page, so what comes out of it begins with
//! what is there already; and it has several parts of what was appended under way at once, so one may come
//! before another that lies in front of it. What is not there yet then is a gap, which alone may be filled.
//!
//! Invariant: nothing that was written is written over by something else.
//!
//! What it does not know: where content goes.

use crate::engine::Engine;
use crate::extents;
use crate::inode::{Gaps, Inode, State};
use btrfs_disk::items::inode_flags;
use std::ops::Range;
use vfs::{Result, WriteFlags};

/// Gaps of one file that are known: the kernel has no more requests under way.
/// Chosen, not measured.
const MOST: usize = 1024;

/// Whether a write only makes the file longer.
pub(super) fn appends(
    engine: &Engine,
    inode: &Inode,
    state: &State,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
) -> Result<bool> {
    let size = state.item.size;
    if offset == size || !flags.cached || state.item.flags & inode_flags::APPEND == 0 {
        return Ok(offset == size);
    }
    let none = Gaps::default();
    let gaps = state.gaps.as_deref().unwrap_or(&none);
    if offset > size {
        return Ok(gaps.count() < MOST);
    }
    let end = size.min(offset + data.len() as u64);
    for part in gaps.beside(offset, end) {
        let mut stored = vec![0; (part.end - part.start) as usize];
        extents::read(&engine.core, inode.id, state, part.start, &mut stored)?;
        if stored[..] != data[(part.start - offset) as usize..(part.end - offset) as usize] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// To a file that was `size` bytes long these parts were written, ascending. What of its new length is in front of
/// one is a gap, whether it comes still or was refused.
pub(super) fn wrote(state: &mut State, size: u64, parts: &[Range<u64>], flags: WriteFlags) {
    if !flags.cached || state.item.flags & inode_flags::APPEND == 0 {
        return;
    }
    let mut end = size;
    for part in parts {
        if part.start > end {
            state.gaps.get_or_insert_default().add(end..part.start);
        } else if let Some(gaps) = &mut state.gaps {
            gaps.fill(part);
        }
        end = end.max(part.end);
    }
    if state.gaps.as_ref().is_some_and(|gaps| gaps.count() == 0) {
        state.gaps = None;
    }
}

/// A file gets longer, and nothing was written there: what comes still may have been allocated first.
pub(super) fn grow(state: &mut State, end: u64) {
    let size = std::mem::replace(&mut state.item.size, end);
    // Some are left for what the kernel has under way.
    let room = state.gaps.as_ref().is_none_or(|gaps| gaps.count() < MOST / 2);
    if state.item.flags & inode_flags::APPEND != 0 && room {
        state.gaps.get_or_insert_default().add(size..end);
    }
}
