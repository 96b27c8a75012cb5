//! Taking names away.

use super::create::{touch_dir, writable_dir};
use super::lookup::{Destination, find, find_by, is_gone};
use super::subvolume;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::inode::Locked;
use crate::inode::{Inode, Inodes, State, change, put_inode};
use crate::names::{self, Target};
use crate::reserve::cost;
use btrfs_txn::Op;
use btrfs_txn::view::Finder;
use inode_index::Ref;
use vfs::{Errno, FsError, Ino, Result};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    File,
    Dir,
}

pub(crate) fn remove(engine: &Engine, parent: Ino, name: &[u8], what: What) -> Result<()> {
    if name.len() > vfs::NAME_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    match name {
        b"." => return Err(Errno::EINVAL.into()),
        b".." => return Err(Errno::ENOTEMPTY.into()),
        _ => {}
    }
    let dir = writable_dir(engine, parent)?;
    let mut finder = Finder::new(engine.core.view().store);
    let (mut target, place) = find_by(engine, &dir, name, &mut finder)?;
    if target.is_subvolume() {
        return remove_subvolume(engine, &dir, name, (target, place), what);
    }
    let reservation = engine.reserver.reserve_removal(cost::unlink())?;
    loop {
        match remove_inode(engine, &dir, name, target, what, &mut finder) {
            Ok(child) => {
                drop(reservation);
                engine.orphans.release(child);
                return Ok(());
            }
            Err(error) if is_gone(&error) => {
                target = find_another(engine, &dir, name, (target, error))?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The name of an inode. ENOENT, ESTALE: it does not stand for that now.
fn remove_inode(
    engine: &Engine,
    dir: &Ref<Inode>,
    name: &[u8],
    target: Target,
    what: What,
    finder: &mut Finder<'_>,
) -> Result<Ref<Inode>> {
    let child = child_of(engine, dir, target)?;
    let mut locked = Locked::new(&[dir, &child])?;
    let view = engine.core.view();
    let listed = names::listed(finder.over(&view), dir.id, name)?;
    let listed = listed.filter(|listed| listed.target == target);
    let listed = listed.ok_or(FsError::Posix(Errno::ENOENT))?;
    check(engine, dir, &child, &locked, what)?;
    if loses_last(locked.get(&child)) {
        finder.look_through(&view, child.id.tree, child.id.objectid).fs()?;
    }
    let given = locked.get(dir).dir.given();
    let removal = names::removal(finder.over(&view), (dir.id, given), name, listed)?;
    drop(view);
    change(&engine.core, |op| {
        removal.put(op);
        touch_dir(op, dir.id, locked.state(dir), -(name.len() as i64));
        drop_link(&engine.inodes, op, child.id, locked.state(&child));
        if what == What::Dir {
            op.moved_away(dir.id, child.id);
        }
        Ok(())
    })?;
    drop(locked);
    Ok(child)
}

/// An empty subvolume goes like a directory; so does the place of one that is not here.
fn remove_subvolume(
    engine: &Engine,
    dir: &Ref<Inode>,
    name: &[u8],
    (target, place): (Target, Destination),
    what: What,
) -> Result<()> {
    if what == What::File {
        return Err(Errno::EISDIR.into());
    }
    match place {
        Destination::StandIn(_) => subvolume::remove_stand_in(engine, dir, name, target),
        _ => subvolume::rmdir(engine, dir.ino, name),
    }
}

/// What a name stands for now that what it stood for is gone; the error, if that is the same.
fn find_another(
    engine: &Engine,
    dir: &Ref<Inode>,
    name: &[u8],
    (gone, error): (Target, FsError),
) -> Result<Target> {
    let (now, _) = find(engine, dir, name)?;
    if now == gone { Err(error) } else { Ok(now) }
}

/// The inode behind a name in `dir`; EPERM for subvolumes, whose names are not ours to move.
pub(crate) fn child_of(engine: &Engine, dir: &Ref<Inode>, target: Target) -> Result<Ref<Inode>> {
    if target.is_subvolume() {
        return Err(Errno::EPERM.into());
    }
    engine.inodes.by_id(InodeId::new(dir.id.tree, target.location.objectid), 0)
}

fn check(
    engine: &Engine,
    dir: &Ref<Inode>,
    child: &Ref<Inode>,
    locked: &Locked<'_>,
    what: What,
) -> Result<()> {
    engine.still_writable(dir.id.tree)?;
    may_unname(locked.get(dir), locked.get(child))?;
    let is_dir = locked.get(child).is_dir();
    match (what, is_dir) {
        (What::File, true) => return Err(Errno::EISDIR.into()),
        (What::Dir, false) => return Err(Errno::ENOTDIR.into()),
        _ => {}
    }
    if is_dir && !names::is_empty(&engine.core.view(), child.id)? {
        return Err(Errno::ENOTEMPTY.into());
    }
    Ok(())
}

/// The last name goes only where all that is behind it can be read. What cannot be erased would stay with an
/// ORPHAN_ITEM, and while there is one the kernel mounts the volume read-only alone.
pub(crate) fn check_last(engine: &Engine, inode: &Inode, state: &State) -> Result<()> {
    match loses_last(state) {
        true => engine.core.view().look_through(inode.id.tree, inode.id.objectid).fs(),
        false => Ok(()),
    }
}

/// Whether a name less is none.
fn loses_last(state: &State) -> bool {
    state.item.nlink <= 1 || state.is_dir()
}

pub(crate) fn may_unname(dir: &State, child: &State) -> Result<()> {
    if dir.keeps_names() || child.keeps_names() { Err(Errno::EPERM.into()) } else { Ok(()) }
}

/// One name less; the last one makes an orphan.
pub(crate) fn drop_link(inodes: &Inodes, op: &Op<'_>, id: InodeId, state: &mut State) {
    state.item.ctime = op.core.now();
    state.item.nlink = if state.is_dir() { 0 } else { state.item.nlink.saturating_sub(1) };
    if state.item.nlink == 0 {
        inodes.orphans().mark(op, id, state);
    }
    put_inode(op, id, state);
}
