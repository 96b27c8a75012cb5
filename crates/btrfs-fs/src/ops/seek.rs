//! SEEK_DATA and SEEK_HOLE.

use super::file::check_file;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::next_extent;
use crate::ino::InodeId;
use crate::inode::State;
use btrfs_txn::View;
use std::ops::Range;
use vfs::{Errno, Ino, Result, SeekWhence};

pub(crate) fn seek(engine: &Engine, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
    let inode = engine.inodes.get(ino)?;
    let state = inode.read()?;
    check_file(&state)?;
    let size = state.item.size;
    if offset >= size {
        return Err(Errno::ENXIO.into());
    }
    let view = engine.core.view();
    let mut at = offset;
    loop {
        // No further than what is asked for: unwritten content may be in many pieces.
        let limit = if matches!(whence, SeekWhence::Data) { at + 1 } else { size };
        let (data, end) = span(engine, &view, inode.id, &state, at..limit)?;
        match whence {
            SeekWhence::Data if data => return Ok(at),
            SeekWhence::Hole if !data => return Ok(at),
            SeekWhence::Data if end >= size => return Err(Errno::ENXIO.into()),
            SeekWhence::Hole if end >= size => return Ok(size),
            _ => at = end,
        }
    }
}

/// Whether the beginning of `within` is data, and how far at least that goes on, which unwritten
/// content is looked at for no further than its end.
fn span(
    engine: &Engine,
    view: &View<'_>,
    id: InodeId,
    state: &State,
    within: Range<u64>,
) -> Result<(bool, u64)> {
    let at = within.start;
    let mut next_dirty = u64::MAX;
    if let Some(dirty) = &state.dirty {
        let end = dirty.run_end_until(at, within.end);
        if end > at {
            return Ok((true, end));
        }
        next_dirty = dirty.first_from(at).unwrap_or(u64::MAX);
    }
    Ok(match next_extent(view, id, engine.core.sector(), at).fs()? {
        Some(extent) if extent.start <= at => (extent.has_data(), extent.end.min(next_dirty)),
        Some(extent) => (false, extent.start.min(next_dirty)),
        None => (false, next_dirty),
    })
}
