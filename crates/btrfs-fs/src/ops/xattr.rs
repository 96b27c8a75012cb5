//! Extended attributes. The two ACL attributes and the compression property act on the
//! inode besides being stored.

use crate::acl::{self, Acl};
use crate::engine::Engine;
use crate::ino::{InodeId, is_stand_in};
use crate::inode::{State, put_inode};
use crate::options::compression::PROPERTY;
use crate::reserve::cost;
use crate::xattrs;
use btrfs_disk::items::inode_flags::{
    APPEND, COMPRESS, IMMUTABLE, NOCOMPRESS, NODATACOW, NODATASUM,
};
use btrfs_txn::Op;
use vfs::posix_acl::is_acl;
use vfs::{Errno, FsError, Ino, Result, XattrMode};

pub(super) const CAPABILITY: &[u8] = b"security.capability";
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
const PROPERTIES: &[u8] = b"btrfs.";

fn is_symlink(state: &State) -> bool {
    state.item.mode & vfs::mode::S_IFMT == vfs::mode::S_IFLNK
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > vfs::XATTR_NAME_MAX {
        return Err(Errno::ERANGE.into());
    }
    if PREFIXES.contains(&name) || name == PROPERTIES {
        return Err(Errno::EINVAL.into());
    }
    let free = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if !free && !is_acl(name) && !name.starts_with(PROPERTIES) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(())
}

/// No system call can name an attribute with a NUL in its name, which a volume may have all the same; who
/// removes it here can.
fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if name.contains(&0) { Err(Errno::EINVAL.into()) } else { Ok(()) }
}

pub(crate) fn get(engine: &Engine, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
    if is_stand_in(ino) {
        return Err(Errno::ENODATA.into());
    }
    let inode = engine.inodes.get(ino)?;
    let state = inode.read()?;
    check_name(name)?;
    if is_acl(name) && is_symlink(&state) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    xattrs::get(&engine.core.view(), inode.id, name)?.ok_or(FsError::Posix(Errno::ENODATA))
}

pub(crate) fn list(engine: &Engine, ino: Ino) -> Result<Vec<Vec<u8>>> {
    if is_stand_in(ino) {
        return Ok(Vec::new());
    }
    let inode = engine.inodes.get(ino)?;
    let _state = inode.read()?;
    xattrs::list(&engine.core.view(), inode.id)
}

/// What is to become of one attribute, with what it does to the inode.
enum Change {
    Put(Vec<u8>),
    Remove,
    Nothing,
}

pub(crate) fn set(
    engine: &Engine,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    let inode = engine.inodes.get(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    check_new_name(name)?;
    // Nor is room looked for then.
    if is_acl(name) && value.len() > engine.core.geometry.max_item_size() {
        return Err(Errno::ENOSPC.into());
    }
    let _reservation = engine.reserver.reserve(cost::set_xattr(name.len(), value.len()))?;
    let mut state = engine.write(&inode)?;
    check_writable(&state)?;
    let mut item = state.item;
    let change = match name {
        // The kernel ignores create and replace for ACLs.
        acl::ACCESS | acl::DEFAULT => set_acl(&mut item.mode, name, Acl::parse(value)?)?,
        PROPERTY => set_property(engine, inode.id, &mut item, value, mode)?,
        _ if name.starts_with(PROPERTIES) => return Err(Errno::EINVAL.into()),
        _ => set_plain(engine, inode.id, name, value, mode)?,
    };
    if name == CAPABILITY {
        state.capability = Some(true);
    }
    apply(engine, inode.id, &mut state, item, name, change)
}

pub(crate) fn remove(engine: &Engine, ino: Ino, name: &[u8]) -> Result<()> {
    let inode = engine.inodes.get(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    check_name(name)?;
    let _reservation = engine.reserver.reserve_removal(cost::remove_xattr())?;
    let mut state = engine.write(&inode)?;
    check_writable(&state)?;
    let mut item = state.item;
    let change = match name {
        acl::ACCESS | acl::DEFAULT => set_acl(&mut item.mode, name, Acl::empty())?,
        PROPERTY => set_property(engine, inode.id, &mut item, b"", XattrMode::Replace)?,
        _ if name.starts_with(PROPERTIES) => return Err(Errno::EINVAL.into()),
        _ if xattrs::get(&engine.core.view(), inode.id, name)?.is_some() => Change::Remove,
        _ => return Err(Errno::ENODATA.into()),
    };
    apply(engine, inode.id, &mut state, item, name, change)
}

fn apply(
    engine: &Engine,
    id: InodeId,
    state: &mut State,
    item: btrfs_disk::items::InodeItem,
    name: &[u8],
    change: Change,
) -> Result<()> {
    if name == acl::DEFAULT {
        state.default_acl = None;
    }
    let op = engine.core.begin();
    match change {
        Change::Nothing => return Ok(()),
        Change::Put(value) => xattrs::put(&op, id, name, &value)?,
        Change::Remove => xattrs::remove(&op, id, name)?,
    }
    state.item = item;
    state.item.ctime = engine.core.now();
    put_inode(&op, id, state);
    Ok(())
}

fn check_writable(state: &State) -> Result<()> {
    if state.item.flags & (IMMUTABLE | APPEND) != 0 {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}

fn set_plain(
    engine: &Engine,
    id: InodeId,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<Change> {
    // Beside its name the value must fit one item.
    if value.len() + name.len() > engine.core.geometry.max_item_size() - 30 {
        return Err(Errno::ENOSPC.into());
    }
    check_mode(engine, id, name, mode)?;
    Ok(Change::Put(value.to_vec()))
}

fn check_mode(engine: &Engine, id: InodeId, name: &[u8], mode: XattrMode) -> Result<()> {
    let exists = || xattrs::get(&engine.core.view(), id, name).map(|value| value.is_some());
    match mode {
        XattrMode::Create if exists()? => Err(Errno::EEXIST.into()),
        XattrMode::Replace if !exists()? => Err(Errno::ENODATA.into()),
        _ => Ok(()),
    }
}

fn set_acl(mode: &mut u32, name: &[u8], acl: Acl) -> Result<Change> {
    let kind = *mode & vfs::mode::S_IFMT;
    if kind == vfs::mode::S_IFLNK {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if name == acl::DEFAULT && kind != vfs::mode::S_IFDIR {
        return if acl.is_empty() { Ok(Change::Nothing) } else { Err(Errno::EACCES.into()) };
    }
    if acl.is_empty() {
        return Ok(Change::Remove);
    }
    if !acl.is_valid() {
        return Err(Errno::EINVAL.into());
    }
    if name == acl::ACCESS {
        *mode = *mode & !0o777 | acl.mode();
        if acl.is_plain() {
            return Ok(Change::Remove);
        }
    }
    Ok(Change::Put(acl.to_vec()))
}

/// An empty value takes the property away, and must not create it.
fn set_property(
    engine: &Engine,
    id: InodeId,
    item: &mut btrfs_disk::items::InodeItem,
    value: &[u8],
    mode: XattrMode,
) -> Result<Change> {
    let change = set_compression(item, value)?;
    let creates_nothing = value.is_empty() && mode == XattrMode::Create;
    if !matches!(change, Change::Nothing) && !creates_nothing {
        check_mode(engine, id, PROPERTY, mode)?;
    }
    Ok(change)
}

/// Other inodes than files and directories take the property and forget it.
fn set_compression(item: &mut btrfs_disk::items::InodeItem, value: &[u8]) -> Result<Change> {
    let kinds: [&[u8]; 3] = [b"zlib", b"lzo", b"zstd"];
    let flag = match value {
        b"" => 0,
        _ if item.flags & (NODATACOW | NODATASUM) != 0 => return Err(Errno::EINVAL.into()),
        b"no" | b"none" => NOCOMPRESS,
        _ if kinds.iter().any(|kind| value.starts_with(kind)) => COMPRESS,
        _ => return Err(Errno::EINVAL.into()),
    };
    if !matches!(item.mode & vfs::mode::S_IFMT, vfs::mode::S_IFREG | vfs::mode::S_IFDIR) {
        return Ok(Change::Nothing);
    }
    item.flags = item.flags & !(COMPRESS | NOCOMPRESS) | flag;
    Ok(if value.is_empty() { Change::Remove } else { Change::Put(value.to_vec()) })
}

/// File capabilities do not survive a change of content or owner.
pub(crate) fn drop_capability(op: &Op<'_>, id: InodeId, state: &mut State) -> Result<()> {
    if state.capability != Some(false) {
        if xattrs::get(&op.view, id, CAPABILITY)?.is_some() {
            xattrs::remove(op, id, CAPABILITY)?;
        }
        state.capability = Some(false);
    }
    Ok(())
}
