//! read and write.
//!
//! Short writes gather in memory (delayed allocation); long ones go straight to an extent,
//! since gathering them would only copy them once more. Direct ones (O_DIRECT) go straight to an
//! extent and through to the device, whatever their length: one that fails has changed no content.

use super::append;
use super::file::{check_file, end_of};
use super::in_place::{InPlace, Want, Written, may_be_short};
use super::long_item::unfold_to_write;
use super::writing::{
    gather, keep, land_before, lies_behind_dirty, prepare, replace, take_privileges, whole_sectors,
};
use crate::engine::Engine;
use crate::extents::{self, sectors_of, sectors_within};
use crate::inode::{Inode, State};
use crate::reserve::DirtyReservation;
use crate::reserve::cost;
use crate::writeback::{WriteMode, store};
use btrfs_disk::items::inode_flags;
use inode_index::Ref;
use locks::RwLockWriteGuard;
use std::ops::Range;
use vfs::{Errno, FsError, Ino, Result, WriteFlags};

/// Whole sectors of one write from this length on go straight to an extent, in bytes.
/// Chosen, not measured, in the first version.
const STRAIGHT: u64 = 128 << 10;

/// Whether so many bytes gather in memory in any case.
fn short(len: u64) -> bool {
    len < STRAIGHT
}

pub(crate) fn read(engine: &Engine, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let inode = engine.inodes.get(ino)?;
    let state = inode.read()?;
    check_file(&state)?;
    let read = match state.item.flags & inode_flags::RO_VERITY {
        0 => extents::read(&engine.core, inode.id, &state, offset, buf)?,
        _ => {
            let file = (inode.id, state.item.flags, state.item.size);
            engine.verity.read(file, offset, buf)?
        }
    };
    engine.stats.data_read_bytes.add(read as u64);
    Ok(read)
}

pub(crate) fn write(
    engine: &Engine,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
) -> Result<usize> {
    if data.is_empty() {
        return Ok(0);
    }
    end_of(offset, data.len() as u64)?;
    let inode = engine.inodes.get(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    unfold_to_write(engine, &inode, flags)?;
    let written = write_where_room_is(engine, &inode, (offset, data), flags)?;
    if flags.sync {
        super::sync::fsync(engine, ino, 0, true)?;
    } else if written.wants_sync {
        sync_unless_held(engine, ino)?;
    }
    Ok(written.len)
}

/// All of it, or of one that fails its beginning, if the file has that: who appends and tries again would append it
/// once more, and what the file has grown by is nobody's proof, since others write as well. Not of what is wanted
/// wholly ([`may_be_short`]).
fn write_where_room_is(
    engine: &Engine,
    inode: &Ref<Inode>,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
) -> Result<Written> {
    let mut in_place = InPlace::new(engine, inode, (offset, data), flags);
    match write_in_either(engine, inode, &mut in_place, (offset, data), flags) {
        Err(error) => in_place.front(may_be_short(flags)).ok_or(error),
        written => written,
    }
}

/// Where there is no room, and no limit allows more, what the file has may do; nobody looks for room before that
/// is known. Who waits for the answer is told how much of the front is written, as by the kernel, but for direct writes: of a
/// short one a kernel behind FUSE makes EIO. What comes out of a cache is lost where it is refused, so all that has its
/// place stays: of that nothing less than all is an answer. What a try has written no other writes once more.
fn write_in_either(
    engine: &Engine,
    inode: &Ref<Inode>,
    in_place: &mut InPlace<'_>,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
) -> Result<Written> {
    if engine.reserver.may_lack_room(inode.id.tree, whole(engine, offset, data))
        && let Ok(Some(written)) = in_place.go_on(Want::All)
    {
        return Ok(written);
    }
    match write_in_room(engine, inode, in_place.rest(), flags) {
        Err(error) if [libc::ENOSPC, libc::EDQUOT].contains(&error.errno()) => {
            let want = match flags {
                WriteFlags { cached: true, .. } => Want::Parts,
                WriteFlags { direct: true, .. } => Want::All,
                _ => Want::Front,
            };
            match in_place.go_on(want) {
                Ok(Some(written)) => Ok(written),
                Err(other) if is_of_write(&other) => Err(other),
                _ => Err(error),
            }
        }
        written => written.map(|rest| in_place.and_then(rest)),
    }
}

/// What a write into a file's own space says for itself, and not for want of another place.
fn is_of_write(error: &FsError) -> bool {
    let forbidden = [libc::EPERM, libc::ETXTBSY].contains(&error.errno());
    forbidden || matches!(error, FsError::Io { .. })
}

/// Bytes of all sectors that such a write has something of.
fn whole(engine: &Engine, offset: u64, data: &[u8]) -> u64 {
    let sectors = sectors_of(engine.core.sector(), offset, offset + data.len() as u64);
    sectors.end - sectors.start
}

/// Into space that is reserved for it.
fn write_in_room(
    engine: &Engine,
    inode: &Ref<Inode>,
    (offset, data): (u64, &[u8]),
    flags: WriteFlags,
) -> Result<Written> {
    let most = data.len() as u64 + 4 * engine.core.sector();
    let _promise = engine.reserver.within_limits(inode.id.tree, whole(engine, offset, data))?;
    let gathers = engine.core.features.no_holes && !flags.direct && short(data.len() as u64);
    let cost = cost::write(&engine.core.geometry, gathers);
    let mut reserved = engine.reserver.reserve_content(most, cost)?;
    write_locked(engine, inode, offset, data, flags, &mut reserved.dirty)
}

/// What is written while commits are held is durable with all that is held back, and not before.
fn sync_unless_held(engine: &Engine, ino: Ino) -> Result<()> {
    match super::sync::fsync(engine, ino, 0, true) {
        Err(FsError::Posix(Errno::EBUSY)) if engine.committer.is_held() => Ok(()),
        // That has ended meanwhile, perhaps without this.
        Err(FsError::Posix(Errno::EBUSY)) => super::sync::fsync(engine, ino, 0, true),
        done => done,
    }
}

/// What becomes dirty is taken out of `budget`. The file's own flags (`chattr +S`) may ask for each write to be
/// durable, of which a kernel behind FUSE knows nothing.
fn write_locked(
    engine: &Engine,
    inode: &Ref<Inode>,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    budget: &mut DirtyReservation<'_>,
) -> Result<Written> {
    let _queued = engine.writeback.queue().add_at_end(inode);
    // What only gathers in memory says no address.
    let straight = flags.direct || !short(data.len() as u64);
    let (_still, mut state) = lock_for(engine, inode, offset, straight)?;
    check_file(&state)?;
    let size = state.item.size;
    prepare(engine, inode, &mut state, (offset, data, flags), budget)?;
    take_privileges(engine, inode, &mut state, flags)?;
    let write = if flags.direct { write_direct } else { write_content };
    let result = write(engine, inode, &mut state, offset, data, budget);
    let result = match result {
        Err(error) if error.is_of_medium() && flags.cached && !flags.direct => {
            keep(engine, inode, &mut state, (offset, data), budget, error)
        }
        other => other,
    };
    state.item_dirty = true;
    engine.writeback.note_written(inode, &state, data.len() as u64);
    // Of one that failed the file may have the beginning, and be longer by it.
    let end = if result.is_ok() { offset + data.len() as u64 } else { state.item.size };
    let has_grown = end > size.max(offset);
    if result.is_ok() || end > size {
        append::wrote(&mut state, size, std::slice::from_ref(&(offset..end)), flags);
    }
    let wants_sync = state.item.flags & inode_flags::SYNC != 0;
    let len = end.saturating_sub(offset) as usize;
    match result {
        Err(error) if !(has_grown && may_be_short(flags)) => Err(error),
        _ => Ok(Written { len, wants_sync }),
    }
}

/// The file, and addresses held still if they are to be said.
fn lock_for<'e>(
    engine: &'e Engine,
    inode: &'e Inode,
    offset: u64,
    says_addresses: bool,
) -> Result<(Option<impl Sized + use<'e>>, RwLockWriteGuard<'e, State>)> {
    let still = says_addresses.then(|| engine.core.addresses.hold_still());
    let state = engine.write(inode)?;
    if still.is_some() || offset <= state.item.size || state.clean_behind_end {
        return Ok((still, state));
    }
    // What the file grows over may have to go.
    drop(state);
    let still = engine.core.addresses.hold_still();
    Ok((Some(still), engine.write(inode)?))
}

fn write_content(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    offset: u64,
    data: &[u8],
    budget: &mut DirtyReservation<'_>,
) -> Result<()> {
    let sector = engine.core.sector();
    let end = offset + data.len() as u64;
    let Range { start: body_start, end: body_end } = sectors_within(sector, offset, end);
    // Where a refusal is told late, writeback waits for it, not the writer; and it compresses.
    let later = engine.core.volume.tells_late() || engine.writeback.compresses(state);
    if later || short(body_end.saturating_sub(body_start)) {
        return gather(engine, inode, state, offset, data, budget);
    }
    let head = (body_start - offset) as usize;
    let tail = (body_end - offset) as usize;
    if head > 0 {
        gather(engine, inode, state, offset, &data[..head], budget)?;
    }
    if lies_behind_dirty(state, body_start) {
        let few = state.dirty.as_ref().is_some_and(|dirty| dirty.bytes() < STRAIGHT);
        if !few || land_before(engine, inode, state, body_start).is_err() {
            return gather(engine, inode, state, body_start, &data[head..], budget);
        }
    }
    let body = (&[&data[head..tail]][..], WriteMode::Buffered);
    straight(engine, inode, state, (body_start, body_end), body, budget)?;
    if tail < data.len() {
        gather(engine, inode, state, body_end, &data[tail..], budget)?;
    }
    Ok(())
}

fn write_direct(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    offset: u64,
    data: &[u8],
    budget: &mut DirtyReservation<'_>,
) -> Result<()> {
    // For want of room there this is written all the same.
    match land_before(engine, inode, state, offset) {
        Err(error) if error.is_of_medium() => return Err(error),
        _ => {}
    }
    let whole = whole_sectors(engine, inode, state, offset, data)?;
    let parts = (&whole.parts()[..], WriteMode::Direct);
    straight(engine, inode, state, (whole.start, whole.end), parts, budget)
}

/// Whole sectors from `start` on; the file reaches to `end` at least by them.
fn straight(
    engine: &Engine,
    inode: &Ref<Inode>,
    state: &mut State,
    (start, end): (u64, u64),
    (parts, way): (&[&[u8]], WriteMode),
    budget: &mut DirtyReservation<'_>,
) -> Result<()> {
    let len = end.next_multiple_of(engine.core.sector()) - start;
    let paid = replace(engine, state, (start, end), |state| {
        store(&engine.writeback, inode.id, state, start, parts, way)
    })?;
    budget.spend(len);
    engine.reservations.forget_landed(len, paid);
    Ok(())
}
