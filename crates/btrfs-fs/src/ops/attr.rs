//! getattr and setattr.

use super::file::kill_priv;
use super::lookup::stand_in_attr;
use super::truncate::set_size;
use crate::acl::{self, Acl};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::{InodeId, is_stand_in};
use crate::inode::{self, State, attr_of, put_inode, stamp};
use crate::ops::xattr::drop_capability;
use crate::reserve::cost;
use crate::xattrs;
use btrfs_disk::items::{Timespec, inode_flags};
use btrfs_txn::Op;
use vfs::{Attr, Errno, Ino, Result, SetAttr, SetTime};

pub(crate) fn getattr(engine: &Engine, ino: Ino) -> Result<Attr> {
    if is_stand_in(ino) {
        return Ok(stand_in_attr(engine, ino));
    }
    let inode = engine.inodes.get(ino)?;
    let state = inode.read()?;
    attr_of(
        ino,
        &state,
        engine.core.geometry.sector_size,
        engine.writeback.pending(inode.id, &state),
    )
    .fs()
}

pub(crate) fn setattr(engine: &Engine, ino: Ino, set: &SetAttr) -> Result<Attr> {
    let inode = engine.inodes.get(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    check_allowed(&*inode.read()?, set)?;
    if let Some(size) = set.size {
        set_size(engine, &inode, size, set)?;
    }
    let rest = heeded(&*inode.read()?, set);
    // A change of nothing is `chown(-1, -1)`; of files that comes with what it takes away.
    let touches = *set == SetAttr::default() && inode.read()?.is_dir();
    if touches || rest != SetAttr::default() {
        // What comes with a change of size goes where that went.
        let _reservation = match set.size {
            Some(_) => engine.reserver.reserve_removal(cost::remove_xattr())?,
            None => engine.reserver.reserve(cost::set_attributes())?,
        };
        let mut state = engine.write(&inode)?;
        change(engine, inode.id, &mut state, &rest)?;
    }
    let attr = getattr(engine, ino);
    if set.of_content {
        // Who tells those keeps his own attributes, and takes none of the answer.
        inode.read()?.reported.may_be_any();
    }
    attr
}

/// What is done behind a change of size. Who is about to write takes special bits away, and of what is immutable he
/// hears then that he may not: until then nothing of it changes.
fn heeded(state: &State, set: &SetAttr) -> SetAttr {
    let immutable = state.item.flags & inode_flags::IMMUTABLE != 0;
    let kill_priv = set.kill_priv && set.size.is_none() && !immutable;
    SetAttr { size: None, kill_priv, kill_sgid: kill_priv && set.kill_sgid, ..*set }
}

/// A kernel that caches writes tells the times when it has sent the content, once.
fn are_times_of_content(state: &State, set: &SetAttr) -> bool {
    state.times_due && set.of_content
}

/// Immutable inodes change not at all, append-only ones at most their times to now. What was written before
/// they were such was allowed.
fn check_allowed(state: &State, set: &SetAttr) -> Result<()> {
    if are_times_of_content(state, set) {
        return Ok(());
    }
    let flags = state.item.flags;
    let immutable = flags & inode_flags::IMMUTABLE != 0;
    let frozen = immutable || flags & inode_flags::APPEND != 0;
    let touch = set.atime == Some(SetTime::Now) && is_modified_now(set);
    let times = set.atime.is_some() || set.mtime.is_some();
    let owner = set.uid.is_some() || set.gid.is_some();
    let refused = set.perm.is_some() || owner || set.size.is_some() || (times && !touch);
    if (frozen && refused) || (immutable && times) {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}

/// A kernel that caches writes has the clock of both times that are set by a change, and tells what it was.
fn is_modified_now(set: &SetAttr) -> bool {
    match set.mtime {
        Some(SetTime::At(time)) => set.ctime == Some(time),
        mtime => mtime == Some(SetTime::Now),
    }
}

fn change(engine: &Engine, id: InodeId, state: &mut State, set: &SetAttr) -> Result<()> {
    check_allowed(state, set)?;
    // It may be immutable by now.
    let heeded = &heeded(state, set);
    if heeded != set && *heeded == SetAttr::default() {
        return Ok(());
    }
    let set = heeded;
    state.times_due &= !are_times_of_content(state, set);
    let acl = match set.perm {
        Some(perm) => changed_acl(engine, id, perm)?,
        None => None,
    };
    inode::change(&engine.core, |op| {
        // What may fail, before the inode changes in memory.
        if let Some(acl) = acl {
            xattrs::put(op, id, acl::ACCESS, &acl)?;
        }
        let directory = state.item.mode & vfs::mode::S_IFMT == vfs::mode::S_IFDIR;
        if (set.uid.is_some() || set.gid.is_some()) && !directory {
            drop_capability(op, id, state)?;
        }
        put_attributes(op, id, state, set);
        Ok(())
    })
}

/// The access ACL as it is with other permissions.
fn changed_acl(engine: &Engine, id: InodeId, perm: u16) -> Result<Option<Vec<u8>>> {
    let Some(bytes) = xattrs::get(&engine.core.view(), id, acl::ACCESS)? else { return Ok(None) };
    let mut acl = Acl::parse(&bytes)?;
    acl.chmod(u32::from(perm));
    Ok(Some(acl.to_vec()))
}

fn put_attributes(op: &Op<'_>, id: InodeId, state: &mut State, set: &SetAttr) {
    if set.kill_priv {
        kill_priv(state, set.kill_sgid);
    }
    if let Some(uid) = set.uid {
        state.item.uid = uid;
    }
    if let Some(gid) = set.gid {
        state.item.gid = gid;
    }
    if let Some(perm) = set.perm {
        state.item.mode = state.item.mode & vfs::mode::S_IFMT | u32::from(perm & 0o7777);
    }
    let time = op.core.now();
    set_time(&mut state.item.atime, set.atime, time);
    set_time(&mut state.item.mtime, set.mtime, time);
    state.item.ctime = set.ctime.map_or(time, stamp);
    state.item.otime = set.btime.map_or(state.item.otime, stamp);
    put_inode(op, id, state);
}

fn set_time(field: &mut Timespec, set: Option<SetTime>, now: Timespec) {
    match set {
        Some(SetTime::Now) => *field = now,
        Some(SetTime::At(time)) => *field = stamp(time),
        None => {}
    }
}
