//! Access times: by default none, as with the kernel's `noatime`; if a mount asks for them, by
//! the kernel's rules, which change them, or wait with it, only as reads come.
//!
//! A read never fails, or waits, for the sake of its time.

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::{InodeId, is_stand_in};
use crate::inode::{State, put_inode};
use crate::options::Atime;
use crate::reserve::cost;
use btrfs_disk::items::{Timespec, inode_flags};
use btrfs_space::Priority;
use vfs::{Ino, Result};

/// A relative one is renewed after this long, in seconds.
const DAY: i64 = 24 * 60 * 60;

/// The kernel's times are of the ticks of its clock, so of two in one tick none is newer; with
/// write-back caching a file's times come from there, and may be behind ours. In nanoseconds.
const TICK: i128 = 10_000_000;

/// True if a read now would change the time.
pub(crate) fn due(engine: &Engine, ino: Ino) -> bool {
    let looked = || -> Result<bool> {
        let inode = engine.inodes.get(ino)?;
        let state = inode.read()?;
        Ok(is_due(engine, inode.id, &state, engine.core.now()))
    };
    engine.options.atime != Atime::Never && !is_stand_in(ino) && looked().unwrap_or(false)
}

/// Somebody read the inode.
pub(crate) fn accessed(engine: &Engine, ino: Ino) {
    if !due(engine, ino) {
        return;
    }
    let changed = || -> Result<()> {
        let inode = engine.inodes.get(ino)?;
        let _reservation = engine.reservations.hold(cost::touch(), Priority::Normal)?;
        let mut state = inode.write()?;
        let time = engine.core.now();
        if is_due(engine, inode.id, &state, time) {
            let op = engine.core.begin_change().fs()?;
            state.item.atime = time;
            put_inode(&op, inode.id, &mut state);
        }
        Ok(())
    };
    if let Err(error) = changed() {
        tracing::debug!("access time of {ino:?}: {error}");
    }
}

fn is_due(engine: &Engine, id: InodeId, state: &State, now: Timespec) -> bool {
    let options = &engine.options;
    let left_alone = state.item.flags & inode_flags::NOATIME != 0
        || options.nodiratime && state.is_dir()
        || engine.core.health.changeable().is_err()
        || engine.subvol_writable(id.tree).is_err();
    let (atime, mtime, ctime) = (state.item.atime, state.item.mtime, state.item.ctime);
    let due = match options.atime {
        Atime::Never => false,
        Atime::Always => atime != now,
        Atime::Relative => {
            let time = |t: Timespec| i128::from(t.sec) * 1_000_000_000 + i128::from(t.nsec);
            let newer = time(atime) - TICK;
            time(mtime) >= newer || time(ctime) >= newer || now.sec.saturating_sub(atime.sec) >= DAY
        }
    };
    due && !left_alone
}
