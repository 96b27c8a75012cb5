//! `FS_IOC_GETFLAGS` and `SETFLAGS`: which bits go together, what they forbid.

use vfs::{Context, Errno, FileKind, Ino, Result};

use super::bits::{APPEND, COMPR, DIRSYNC, IMMUTABLE, NOATIME, NOCOMP, NOCOW, NODUMP, SYNC};
use super::state::{Body, Inode, State};
use super::xattrs::COMPRESSION;

const KNOWN: u32 = COMPR | SYNC | IMMUTABLE | APPEND | NODUMP | NOATIME | NOCOMP | DIRSYNC | NOCOW;

fn for_kind(kind: FileKind, flags: u32) -> u32 {
    match kind {
        FileKind::Dir => flags,
        FileKind::File => flags & !DIRSYNC,
        _ => flags & (NODUMP | NOATIME),
    }
}

/// What a new inode takes over from its directory.
pub(super) fn inherit(dir: &Inode, inode: &mut Inode) {
    inode.flags |= dir.flags & (COMPR | NOCOMP | NOCOW);
    if let Some(value) = dir.xattrs.get(COMPRESSION)
        && matches!(inode.kind, FileKind::File | FileKind::Dir)
        && inode.flags & COMPR != 0
    {
        inode.xattrs.insert(COMPRESSION.to_vec(), value.clone());
    }
}

fn check(old: u32, new: u32) -> Result<()> {
    if new & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let both = |a: u32, b: u32| a & NOCOW != 0 && b & (COMPR | NOCOMP) != 0;
    let contradiction = new & COMPR != 0 && new & (NOCOMP | NOCOW) != 0;
    if contradiction || both(old, new) || both(new, old) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

impl State {
    pub(super) fn flags(&self, ino: Ino) -> Result<u32> {
        Ok(self.get(ino)?.flags)
    }

    pub(super) fn set_flags(&mut self, _cx: &Context, ino: Ino, wanted: u32) -> Result<()> {
        let now = self.now();
        let inode = self.get_mut(ino)?;
        let mut new = for_kind(inode.kind, wanted);
        check(inode.flags, new)?;
        // Data that exists cannot change between checksummed and not.
        if matches!(&inode.body, Body::File(content) if content.size > 0) {
            new = new & !NOCOW | inode.flags & NOCOW;
        }
        if new & COMPR != 0 {
            inode.xattrs.insert(COMPRESSION.to_vec(), b"zlib".to_vec());
        } else {
            inode.xattrs.remove(COMPRESSION);
        }
        inode.flags = new;
        inode.ctime = now;
        Ok(())
    }
}
