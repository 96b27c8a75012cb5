//! Writes of what the caller has compressed already, and that stays as it is.

use super::file::{check_file, end_of};
use super::long_item::unfold;
use super::writing::{land_before, prepare, replace, take_capability};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::reserve::{DirtyReservation, cost};
use crate::writeback::{Fit, store_extent, store_item};
use btrfs_disk::compress::Encoded;
use inode_index::Ref;
use vfs::{Ino, Result, WriteFlags};

/// Writes the content of `encoded` as it is. False: it cannot be had so, and nothing was written;
/// the caller writes it as content.
pub(crate) fn write_encoded(
    engine: &Engine,
    ino: Ino,
    offset: u64,
    encoded: &Encoded<'_>,
) -> Result<bool> {
    let end = end_of(offset, encoded.content().len() as u64)?;
    let inode = engine.inodes.get(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    if encoded.content().is_empty() || !may_fit(engine, &inode, offset, encoded)? {
        return Ok(false);
    }
    unfold(engine, &inode)?;
    let room = engine.writeback.room_for(encoded);
    let _promise = engine.reserver.within_limits(inode.id.tree, room)?;
    let most = room + 4 * engine.core.sector();
    let cost = cost::write(&engine.core.geometry, false);
    let mut reserved = match engine.reserver.reserve_content(most, cost) {
        // The content itself may be shorter than the stream that it is a part of.
        Err(error) if error.errno() == libc::ENOSPC => return Ok(false),
        other => other?,
    };
    write_locked(engine, &inode, (offset, end), encoded, &mut reserved.dirty)
}

fn may_fit(engine: &Engine, inode: &Inode, offset: u64, encoded: &Encoded<'_>) -> Result<bool> {
    let state = inode.read()?;
    check_file(&state)?;
    Ok(engine.writeback.fits(&state, offset, encoded).is_some())
}

fn write_locked(
    engine: &Engine,
    inode: &Ref<Inode>,
    (offset, end): (u64, u64),
    encoded: &Encoded<'_>,
    budget: &mut DirtyReservation<'_>,
) -> Result<bool> {
    let _queued = engine.writeback.queue().add_at_end(inode);
    let _still = engine.core.addresses.hold_still();
    let mut state = engine.write(inode)?;
    let state = &mut *state;
    // It may have changed before it was locked.
    let Some(fit) = engine.writeback.fits(state, offset, encoded) else { return Ok(false) };
    prepare(engine, inode, state, (offset, encoded.content(), WriteFlags::default()), budget)?;
    take_capability(engine, inode, state)?;
    state.item_dirty = true;
    // Where that is refused this is written all the same.
    let _ = land_before(engine, inode, state, offset);
    let (room, kind) = (engine.writeback.room_for(encoded), encoded.compression());
    let stored = replace(engine, state, (offset, end), |state| match fit {
        Fit::Item(stream) => {
            store_item(&engine.writeback, inode.id, state, (kind, stream)).map(|()| 0)
        }
        Fit::Extent(stream) => {
            store_extent(&engine.writeback, inode.id, state, (offset, encoded, stream))
        }
    });
    let paid = match stored {
        // What is free may be in pieces.
        Err(error) if error.errno() == libc::ENOSPC => return Ok(false),
        other => other?,
    };
    budget.spend(room);
    engine.reservations.forget_landed(room, paid);
    Ok(true)
}
