//! Another name for an inode, or the first one for an `O_TMPFILE`.

use super::create::{check_parent, free_name, look_index_up, refuse_dir, touch_dir, writable_dir};
use super::lookup::entry_by_id;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::inode::Locked;
use crate::inode::{Inode, Inodes, change, kind_of, put_inode};
use crate::names::{self, Target};
use crate::reserve::cost;
use btrfs_disk::Key;
use btrfs_disk::items::inode_flags;
use btrfs_disk::key::kind;
use btrfs_txn::Op;
use vfs::{Entry, Errno, Ino, Result};

/// As the kernel's btrfs.
const LINK_MAX: u32 = 65535;

pub(crate) fn link(engine: &Engine, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
    names::check_name(name)?;
    let dir = writable_dir(engine, parent)?;
    let inode = engine.inodes.get(ino)?;
    if inode.id.tree != dir.id.tree {
        return Err(Errno::EXDEV.into());
    }
    let _reservation = engine.reserver.reserve(cost::link(name.len()))?;
    let mut locked = Locked::new(&[&dir, &inode])?;
    engine.still_writable(dir.id.tree)?;
    let view = engine.core.view();
    let free = free_name(engine, &view, dir.id, locked.get(&dir), name)?;
    check_parent(locked.get(&dir))?;
    check_inode(locked.get(&inode))?;
    names::check_ref(&engine.core, &view, inode.id, dir.id.objectid, name)?;
    look_index_up(engine, &view, dir.id, locked.state(&dir))?;
    drop(view);
    change(&engine.core, |op| add_link(&engine.inodes, op, &dir, &inode, free, &mut locked))?;
    drop(locked);
    entry_by_id(engine, inode.id)
}

fn add_link(
    inodes: &Inodes,
    op: &Op<'_>,
    dir: &Inode,
    inode: &Inode,
    free: names::Free<'_>,
    locked: &mut Locked<'_>,
) -> Result<()> {
    let target = Target {
        location: Key::new(inode.id.objectid, kind::INODE_ITEM, 0),
        kind: names::dir_type_of(kind_of(&locked.get(inode).item).fs()?),
    };
    let length = free.name().len();
    let index = locked.state(dir).dir.take_index(free.name());
    names::add_free(op, dir.id, free, target, index)?;
    let state = locked.state(inode);
    state.item.nlink += 1;
    state.linkable = false;
    state.item.ctime = op.core.now();
    inodes.orphans().named(op, inode.id, state);
    put_inode(op, inode.id, state);
    let dir_state = locked.state(dir);
    touch_dir(op, dir.id, dir_state, length as i64);
    Ok(())
}

fn check_inode(state: &crate::inode::State) -> Result<()> {
    refuse_dir(state)?;
    if state.item.nlink >= LINK_MAX {
        return Err(Errno::EMLINK.into());
    }
    if state.item.nlink == 0 && !state.linkable {
        return Err(Errno::ENOENT.into());
    }
    if state.item.flags & (inode_flags::IMMUTABLE | inode_flags::APPEND) != 0 {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}
