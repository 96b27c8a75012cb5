//! Extended attributes; the two ACL attributes and the compression property act on the
//! inode besides being stored.

use vfs::{Context, Errno, FileKind, Ino, Result, XattrMode};

use super::acl::{ACCESS, Acl, DEFAULT};
use super::bits::{COMPR, NOCOMP, NOCOW};
use super::state::{Inode, State};

pub(super) const COMPRESSION: &[u8] = b"btrfs.compression";
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Name and value must fit into one 16 KiB leaf, as in btrfs with its usual node size.
const MAX_NAME_AND_VALUE: usize = 16384 - 101 - 25 - 30;
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > vfs::NAME_MAX {
        return Err(Errno::ERANGE.into());
    }
    if PREFIXES.contains(&name) {
        return Err(Errno::EINVAL.into());
    }
    let free = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if !free && !matches!(name, ACCESS | DEFAULT) && !name.starts_with(b"btrfs.") {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(())
}

fn is_acl(name: &[u8]) -> bool {
    matches!(name, ACCESS | DEFAULT)
}

/// False if there was nothing to do.
fn set_acl(inode: &mut Inode, name: &[u8], acl: Option<Acl>) -> Result<bool> {
    if inode.kind == FileKind::Symlink {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if name == DEFAULT && inode.kind != FileKind::Dir {
        return if acl.is_some() { Err(Errno::EACCES.into()) } else { Ok(false) };
    }
    if acl.as_ref().is_some_and(|acl| !acl.is_valid()) {
        return Err(Errno::EINVAL.into());
    }
    let kept = match (acl, name == ACCESS) {
        (Some(acl), true) => {
            inode.perm = inode.perm & !0o777 | acl.mode();
            (!acl.is_plain()).then_some(acl)
        }
        (acl, _) => acl,
    };
    match kept {
        Some(acl) => inode.xattrs.insert(name.to_vec(), acl.to_bytes()),
        None => inode.xattrs.remove(name),
    };
    Ok(true)
}

/// Applies `btrfs.compression`; an empty value removes it. False if there was nothing to
/// do: other inodes than files and directories take the value and forget it.
fn set_compression(inode: &mut Inode, value: &[u8], mode: XattrMode) -> Result<bool> {
    let kinds: [&[u8]; 3] = [b"zlib", b"lzo", b"zstd"];
    let flag = match value {
        b"" => 0,
        _ if inode.flags & NOCOW != 0 => return Err(Errno::EINVAL.into()),
        b"no" | b"none" => NOCOMP,
        _ if kinds.iter().any(|kind| value.starts_with(kind)) => COMPR,
        _ => return Err(Errno::EINVAL.into()),
    };
    if !matches!(inode.kind, FileKind::File | FileKind::Dir) {
        return Ok(false);
    }
    if !value.is_empty() || mode == XattrMode::Replace {
        check_mode(inode, COMPRESSION, mode)?;
    }
    inode.flags = inode.flags & !(COMPR | NOCOMP) | flag;
    if value.is_empty() {
        inode.xattrs.remove(COMPRESSION);
    } else {
        inode.xattrs.insert(COMPRESSION.to_vec(), value.to_vec());
    }
    Ok(true)
}

fn check_mode(inode: &Inode, name: &[u8], mode: XattrMode) -> Result<()> {
    match (mode, inode.xattrs.contains_key(name)) {
        (XattrMode::Create, true) => Err(Errno::EEXIST.into()),
        (XattrMode::Replace, false) => Err(Errno::ENODATA.into()),
        _ => Ok(()),
    }
}

fn check_writable(inode: &Inode) -> Result<()> {
    if inode.immutable() || inode.append_only() { Err(Errno::EPERM.into()) } else { Ok(()) }
}

fn store(inode: &mut Inode, name: &[u8], value: &[u8], mode: XattrMode) -> Result<bool> {
    if is_acl(name) {
        // The kernel ignores create and replace for ACLs.
        return set_acl(inode, name, Acl::parse(value)?);
    }
    if name.starts_with(b"btrfs.") && name != COMPRESSION {
        return Err(Errno::EINVAL.into());
    }
    if name == COMPRESSION {
        return set_compression(inode, value, mode);
    }
    if name.len() + value.len() > MAX_NAME_AND_VALUE {
        return Err(Errno::ENOSPC.into());
    }
    check_mode(inode, name, mode)?;
    inode.xattrs.insert(name.to_vec(), value.to_vec());
    Ok(true)
}

impl State {
    pub(super) fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.get(ino)?;
        check_name(name)?;
        if is_acl(name) && inode.kind == FileKind::Symlink {
            return Err(Errno::EOPNOTSUPP.into());
        }
        inode.xattrs.get(name).cloned().ok_or_else(|| Errno::ENODATA.into())
    }

    pub(super) fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.get(ino)?.xattrs.keys().cloned().collect())
    }

    pub(super) fn setxattr(
        &mut self,
        _cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let now = self.now();
        let inode = self.get_mut(ino)?;
        check_name(name)?;
        check_writable(inode)?;
        if store(inode, name, value, mode)? {
            inode.ctime = now;
        }
        Ok(())
    }

    pub(super) fn removexattr(&mut self, _cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        let now = self.now();
        let inode = self.get_mut(ino)?;
        check_name(name)?;
        check_writable(inode)?;
        let changed = match name {
            ACCESS | DEFAULT => set_acl(inode, name, None)?,
            COMPRESSION => set_compression(inode, b"", XattrMode::Replace)?,
            _ if inode.xattrs.remove(name).is_some() => true,
            _ => return Err(Errno::ENODATA.into()),
        };
        if changed {
            inode.ctime = now;
        }
        Ok(())
    }
}
