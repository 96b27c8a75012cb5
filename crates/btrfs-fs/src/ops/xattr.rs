//! Extended attributes, with ACLs and mode kept in step.

use crate::acl::{self, Acl};
use crate::engine::Engine;
use crate::ino::is_stand_in;
use crate::inode::{State, now};
use crate::xattrs;
use btrfs_disk::items::inode_flags;
use vfs::{Errno, FsError, Ino, Result, XattrMode};

/// Longest name of an attribute, in bytes.
const NAME_MAX: usize = 255;

pub fn get(engine: &Engine, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
    if is_stand_in(ino) {
        return Err(Errno::ENODATA.into());
    }
    let inode = engine.inode(ino)?;
    let _state = inode.read()?;
    xattrs::get(&engine.view(), inode.id, name)?.ok_or(FsError::Posix(Errno::ENODATA))
}

pub fn list(engine: &Engine, ino: Ino) -> Result<Vec<Vec<u8>>> {
    if is_stand_in(ino) {
        return Ok(Vec::new());
    }
    let inode = engine.inode(ino)?;
    let _state = inode.read()?;
    xattrs::list(&engine.view(), inode.id)
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::ERANGE.into());
    }
    let spaces: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"btrfs.", b"system.posix_acl_"];
    if !spaces.iter().any(|s| name.starts_with(s) && name.len() > s.len()) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(())
}

/// Largest value beside its name that one item can hold.
fn max_value(engine: &Engine, name: &[u8]) -> usize {
    engine.geometry.max_item_size() - 30 - name.len()
}

pub fn set(engine: &Engine, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
    check_name(name)?;
    if value.len() > max_value(engine, name) {
        return Err(Errno::ENOSPC.into());
    }
    let is_access = name == acl::ACCESS;
    let parsed = match name {
        acl::ACCESS | acl::DEFAULT => Some(Acl::parse(value)?),
        _ => None,
    };
    let inode = engine.inode(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    engine.reserve(3, (name.len() + value.len() + 400) as u64)?;
    let mut state = inode.write()?;
    check_writable(&state)?;
    if name == acl::DEFAULT && !state.is_dir() {
        return Err(Errno::EACCES.into());
    }
    let existing = xattrs::get(&engine.view(), inode.id, name)?;
    match mode {
        XattrMode::Create if existing.is_some() => return Err(Errno::EEXIST.into()),
        XattrMode::Replace if existing.is_none() => return Err(Errno::ENODATA.into()),
        _ => {}
    }
    let op = engine.begin();
    if is_access
        && let Some(acl) = &parsed
        && !acl.is_empty()
    {
        state.item.mode = state.item.mode & !0o777 | acl.mode();
    }
    match parsed {
        // An access ACL that the mode says wholly, or an empty one, is not stored.
        Some(acl) if acl.is_empty() || is_access && acl.is_plain() => {
            if existing.is_some() {
                xattrs::remove(&op, inode.id, name)?;
            }
        }
        _ => xattrs::put(&op, inode.id, name, value)?,
    }
    state.item.ctime = now();
    op.put_inode(inode.id, &mut state);
    Ok(())
}

pub fn remove(engine: &Engine, ino: Ino, name: &[u8]) -> Result<()> {
    check_name(name)?;
    let inode = engine.inode(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    engine.reserve_for_removal(3)?;
    let mut state = inode.write()?;
    check_writable(&state)?;
    if xattrs::get(&engine.view(), inode.id, name)?.is_none() {
        return Err(Errno::ENODATA.into());
    }
    let op = engine.begin();
    xattrs::remove(&op, inode.id, name)?;
    state.item.ctime = now();
    op.put_inode(inode.id, &mut state);
    Ok(())
}

fn check_writable(state: &State) -> Result<()> {
    if state.item.flags & (inode_flags::IMMUTABLE | inode_flags::APPEND) != 0 {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}
