//! `chattr` flags that the format stores.

use crate::engine::Engine;
use crate::ino::is_stand_in;
use crate::inode::now;
use btrfs_disk::items::inode_flags as disk;
use vfs::{Errno, Ino, Result};

/// (FS_IOC bit of linux/fs.h, bit of the inode item).
const TABLE: &[(u32, u64)] = &[
    (0x0000_0004, disk::COMPRESS),
    (0x0000_0008, disk::SYNC),
    (0x0000_0010, disk::IMMUTABLE),
    (0x0000_0020, disk::APPEND),
    (0x0000_0040, disk::NODUMP),
    (0x0000_0080, disk::NOATIME),
    (0x0000_0400, disk::NOCOMPRESS),
    (0x0001_0000, disk::DIRSYNC),
    (0x0080_0000, disk::NODATACOW),
];

const FS_COMPR: u32 = 0x4;
const FS_NOCOMP: u32 = 0x400;
const FS_NOCOW: u32 = 0x80_0000;

pub fn get(engine: &Engine, ino: Ino) -> Result<u32> {
    if is_stand_in(ino) {
        return Ok(0);
    }
    let inode = engine.inode(ino)?;
    let flags = inode.read()?.item.flags;
    Ok(TABLE.iter().filter(|(_, bit)| flags & bit != 0).map(|(fs, _)| fs).sum())
}

pub fn set(engine: &Engine, ino: Ino, flags: u32) -> Result<()> {
    let known: u32 = TABLE.iter().map(|(fs, _)| fs).sum();
    if flags & !known != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if flags & FS_COMPR != 0 && flags & (FS_NOCOMP | FS_NOCOW) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let inode = engine.inode(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    engine.reserve(2, 400)?;
    let mut state = inode.write()?;
    let mut new = state.item.flags;
    for (fs, bit) in TABLE {
        if flags & fs != 0 { new |= bit } else { new &= !bit }
    }
    if state.is_file() {
        let had_cow = state.item.flags & disk::NODATACOW == 0;
        let wants_nocow = new & disk::NODATACOW != 0;
        if had_cow == wants_nocow && state.item.size != 0 {
            // Only an empty file may change between checksummed and not; the kernel
            // ignores the bit then.
            new = new & !disk::NODATACOW | state.item.flags & disk::NODATACOW;
        } else if wants_nocow {
            new |= disk::NODATASUM;
        } else {
            new &= !disk::NODATASUM;
        }
    }
    if new == state.item.flags {
        return Ok(());
    }
    let op = engine.begin();
    state.item.flags = new;
    state.item.ctime = now();
    op.put_inode(inode.id, &mut state);
    Ok(())
}
