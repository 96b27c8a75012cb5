//! Content that an earlier mount left behind the end of a file.
//!
//! What lands behind content that is in memory still is on the volume before the size covers it
//! (`State::disk_size`), so a crash leaves extents behind the end: where the device refuses the content in front, or there is
//! no room for it. So do cuts in steps, and other programs' writes. Nobody
//! reads them there, but a file that grows over them would show what it never had.
//!
//! Invariant: as long as an inode is in memory nothing but space gets behind its end, so one look is enough.
//!
//! What it does not know: how far the file grows.

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::{AT_A_TIME, Mapped, drop_range, map_step};
use crate::ino::InodeId;
use crate::inode::{State, change, put_inode};
use crate::reserve::cost::{self, SMALL_STEP};
use btrfs_space::Priority;
use vfs::Result;

/// Before the file grows over what is there: what has content goes, what is preallocated stays. The caller
/// holds addresses still, unless nobody has to look any more.
pub(super) fn drop_content_behind_end(
    engine: &Engine,
    id: InodeId,
    state: &mut State,
) -> Result<()> {
    if state.clean_behind_end {
        return Ok(());
    }
    let sector = engine.core.sector();
    let keep = state.item.size.next_multiple_of(sector);
    let mut at = keep;
    while at < u64::MAX {
        let range = (at, u64::MAX);
        let (mapped, next) = map_step(&engine.core.view(), id, sector, range, AT_A_TIME).fs()?;
        drop_content(engine, id, state, (keep, &mapped))?;
        at = next;
    }
    state.clean_behind_end = true;
    Ok(())
}

/// Of `mapped`, behind `keep`.
fn drop_content(
    engine: &Engine,
    id: InodeId,
    state: &mut State,
    (keep, mapped): (u64, &[Mapped]),
) -> Result<()> {
    let runs = mapped.chunk_by(|one, next| one.has_data() == next.has_data());
    for run in runs.filter(|run| run[0].has_data()) {
        for part in run.chunks(SMALL_STEP as usize) {
            let cost = cost::removal_of_items(part.len() as u64);
            let _room = engine.reservations.hold(cost, Priority::Delete)?;
            change(&engine.core, |op| {
                op.run(|| drop_range(op, id, state, part, keep, u64::MAX))?;
                op.note_gap(id, part[0].start.max(keep), part[part.len() - 1].end);
                put_inode(op, id, state);
                Ok(())
            })?;
        }
    }
    Ok(())
}
