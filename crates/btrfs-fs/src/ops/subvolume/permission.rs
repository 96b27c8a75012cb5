//! Who may: the kernel's rules, since nobody in front of these calls asks for them.

use crate::acl::{self, Acl};
use crate::engine::Engine;
use crate::ino::InodeId;
use crate::inode::State;
use crate::subvol::Caller;
use crate::xattrs;
use vfs::{Errno, Result};

/// EACCES unless the caller may make and remove names in the directory.
pub fn may_change_names(engine: &Engine, caller: &Caller, id: InodeId, dir: &State) -> Result<()> {
    const WRITE_AND_SEARCH: u16 = 0o3;
    if caller.privileged {
        return Ok(());
    }
    let access = xattrs::get(&engine.core.view(), id, acl::ACCESS)?;
    let access = access.map(|bytes| Acl::parse(&bytes)).transpose()?;
    let groups = |gid: u32| gid == caller.gid || caller.groups.contains(&gid);
    let owner = (dir.item.uid, dir.item.gid);
    let mode = (dir.item.mode & 0o777) as u16;
    let granted = match access {
        Some(acl) => acl.granted(owner, caller.uid, groups, WRITE_AND_SEARCH),
        None if caller.uid == owner.0 => mode >> 6 & WRITE_AND_SEARCH == WRITE_AND_SEARCH,
        None if groups(owner.1) => mode >> 3 & WRITE_AND_SEARCH == WRITE_AND_SEARCH,
        None => mode & WRITE_AND_SEARCH == WRITE_AND_SEARCH,
    };
    if granted { Ok(()) } else { Err(Errno::EACCES.into()) }
}

/// EPERM unless the caller owns the inode.
pub fn must_own(caller: &Caller, state: &State) -> Result<()> {
    if caller.privileged || caller.uid == state.item.uid {
        return Ok(());
    }
    Err(Errno::EPERM.into())
}

/// In a directory with the sticky bit names are for their owners, and for its.
pub fn must_own_one(caller: &Caller, dir: &State, child: &State) -> Result<()> {
    const STICKY: u32 = 0o1000;
    if dir.item.mode & STICKY == 0 || caller.uid == dir.item.uid {
        return Ok(());
    }
    must_own(caller, child)
}
