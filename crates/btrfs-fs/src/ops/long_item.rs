//! Inline items of more than one sector, as `btrfs-convert` and `mkfs.btrfs --rootdir` made them before 4.16, which asked
//! what fits into a node. Before content of such a file changes, all of it becomes an extent.
//!
//! Invariants: who changes content of a file has called [`unfold`] before he reserves what he needs himself, so that an
//! item which he meets then covers one sector, for which he has room; the item goes in the operation by which all of
//! its content comes to stand in an extent. Such items are never made, so a look at a file stays true.
//!
//! What it does not know: what changes.

use crate::engine::Engine;
use crate::inode::Inode;
use crate::reserve::cost;
use crate::writeback::{flush_to_extents, inline_end, load_inline};
use inode_index::Ref;
use vfs::{Result, WriteFlags};

/// Where such an item ends, if the file has one.
fn end_of_item(engine: &Engine, inode: &Inode) -> Result<Option<u64>> {
    let known = {
        let state = inode.read()?;
        if state.is_file() { state.inline_end } else { Some(0) }
    };
    let end = match known {
        Some(known) => known,
        None => inline_end(&engine.writeback, inode.id, &mut *engine.write(inode)?)?,
    };
    Ok(Some(end).filter(|end| *end > engine.core.sector()))
}

/// For who is about to change content of the file, and has nothing of it locked or reserved.
pub(super) fn unfold(engine: &Engine, inode: &Ref<Inode>) -> Result<()> {
    let Some(most) = end_of_item(engine, inode)? else { return Ok(()) };
    let _promise = engine.reserver.within_limits(inode.id.tree, most)?;
    let cost = cost::write(&engine.core.geometry, false);
    let mut reserved = engine.reserver.reserve_content(most, cost)?;
    let _held = (engine.writeback.queue().add_at_end(inode), engine.core.addresses.hold_still());
    let mut state = engine.write(inode)?;
    if inline_end(&engine.writeback, inode.id, &mut state)? <= engine.core.sector() {
        return Ok(());
    }
    reserved.dirty.spend(load_inline(&engine.writeback, inode.id, &mut state)?);
    flush_to_extents(&engine.writeback, inode.id, &mut state)
}

/// As [`unfold`], for a write. What comes out of the kernel's cache is nowhere else: where the device refuses what is
/// in front of it, that stays in memory with it.
pub(super) fn unfold_to_write(
    engine: &Engine,
    inode: &Ref<Inode>,
    flags: WriteFlags,
) -> Result<()> {
    match unfold(engine, inode) {
        Err(error) if flags.cached && error.is_of_medium() => Ok(()),
        done => done,
    }
}
