//! `chattr` flags that the format stores.

use super::behind_end::drop_content_behind_end;
use crate::engine::Engine;
use crate::ino::is_stand_in;
use crate::inode::{Inode, State, put_inode};
use crate::options::compression::{Method, PROPERTY};
use crate::reserve::cost;
use crate::xattrs;
use btrfs_disk::items::inode_flags as disk;
use locks::RwLockWriteGuard;
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

/// Told, and set by nobody: who sets others may leave it as it is.
const FS_VERITY: u32 = 0x10_0000;
const FS_COMPR: u32 = 0x4;
const FS_NOCOMP: u32 = 0x400;
const FS_NOCOW: u32 = 0x80_0000;
const FS_NODUMP: u32 = 0x40;
const FS_NOATIME: u32 = 0x80;
const FS_DIRSYNC: u32 = 0x1_0000;

pub(crate) fn get(engine: &Engine, ino: Ino) -> Result<u32> {
    if is_stand_in(ino) {
        return Err(Errno::ENOTTY.into());
    }
    let inode = engine.inodes.get(ino)?;
    let flags = inode.read()?.item.flags;
    Ok(bits_of(flags))
}

/// Of what is not to be compressed nobody is told that it is to be: an inode may have both bits, and who gives back
/// what was told contradicts nothing.
fn bits_of(flags: u64) -> u32 {
    let verity = if flags & disk::RO_VERITY != 0 { FS_VERITY } else { 0 };
    let hidden = if flags & disk::NOCOMPRESS != 0 { disk::COMPRESS } else { 0 };
    let told = TABLE.iter().filter(|(_, bit)| flags & !hidden & bit != 0);
    verity + told.map(|(fs, _)| fs).sum::<u32>()
}

/// What becomes of the property that says how something is compressed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    AsTheBitsSay,
    Stays,
}

pub(crate) fn set(engine: &Engine, ino: Ino, flags: u32, compression: Compression) -> Result<()> {
    let inode = engine.inodes.get(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    let _reservation = engine.reserver.reserve(cost::set_flags())?;
    let (_still, mut state, mut new) = locked(engine, &inode, flags)?;
    let op = engine.core.begin();
    if compression == Compression::Stays {
        let both = disk::COMPRESS | disk::NOCOMPRESS;
        new = new & !both | state.item.flags & both;
    } else if new & disk::COMPRESS != 0 {
        let method = engine.writeback.compression().map_or(Method::DEFAULT, |mount| mount.method);
        xattrs::put(&op, inode.id, PROPERTY, method.name().as_bytes())?;
    } else if xattrs::get(&op.view, inode.id, PROPERTY)?.is_some() {
        xattrs::remove(&op, inode.id, PROPERTY)?;
    }
    state.item.flags = new;
    if new & disk::APPEND == 0 {
        state.gaps = None;
    }
    state.item.ctime = engine.core.now();
    put_inode(&op, inode.id, &mut state);
    Ok(())
}

/// The inode for who changes it, and the flags that it gets. What a crash left behind its end was written as its old
/// flags say, with checksums or without: where that changes it goes first, for which addresses are held still.
fn locked<'e>(
    engine: &'e Engine,
    inode: &'e Inode,
    bits: u32,
) -> Result<(Option<impl Sized + use<'e>>, RwLockWriteGuard<'e, State>, u64)> {
    let state = engine.write(inode)?;
    let new = new_flags(&state, bits)?;
    if state.clean_behind_end || !changes_sums(&state, new) {
        return Ok((None, state, new));
    }
    drop(state);
    let still = engine.core.addresses.hold_still();
    let mut state = engine.write(inode)?;
    let new = new_flags(&state, bits)?;
    if changes_sums(&state, new) {
        drop_content_behind_end(engine, inode.id, &mut state)?;
    }
    Ok((Some(still), state, new))
}

/// Whether content of the file has checksums.
fn changes_sums(state: &State, new: u64) -> bool {
    (state.item.flags ^ new) & disk::NODATASUM != 0
}

/// What becomes of the inode's flags where `bits` are asked for.
fn new_flags(state: &State, bits: u32) -> Result<u64> {
    let old = bits_of(state.item.flags);
    let wanted = of_kind(bits & !(old & FS_VERITY), state.item.mode);
    check(old, wanted)?;
    let mut new = state.item.flags;
    for (fs, bit) in TABLE {
        if wanted & fs != 0 { new |= bit } else { new &= !bit }
    }
    if state.is_file() {
        if state.item.size > 0 {
            // Content that exists cannot change between checksummed and not.
            new = new & !disk::NODATACOW | state.item.flags & disk::NODATACOW;
        } else if new & disk::NODATACOW != 0 {
            new |= disk::NODATASUM;
        } else {
            new &= !disk::NODATASUM;
        }
    }
    Ok(new)
}

/// Those that inodes of this kind have.
fn of_kind(flags: u32, mode: u32) -> u32 {
    match mode & vfs::mode::S_IFMT {
        vfs::mode::S_IFDIR => flags,
        vfs::mode::S_IFREG => flags & !FS_DIRSYNC,
        _ => flags & (FS_NODUMP | FS_NOATIME),
    }
}

/// Which bits exist, and which contradict each other, as the kernel's btrfs has it.
fn check(old: u32, new: u32) -> Result<()> {
    let known: u32 = TABLE.iter().map(|(fs, _)| fs).sum();
    if new & !known != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let both = |a: u32, b: u32| a & FS_NOCOW != 0 && b & (FS_COMPR | FS_NOCOMP) != 0;
    let contradiction = new & FS_COMPR != 0 && new & (FS_NOCOMP | FS_NOCOW) != 0;
    if contradiction || both(old, new) || both(new, old) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel leaves files that did not become smaller, in directories that have the flag.
    #[test]
    fn what_is_told_of_both_compression_flags_can_be_given_back() {
        let told = bits_of(disk::COMPRESS | disk::NOCOMPRESS | disk::NODUMP);
        assert_eq!(told, FS_NOCOMP | FS_NODUMP);
        assert!(check(told, told | FS_NOATIME).is_ok());
        assert_eq!(bits_of(disk::COMPRESS), FS_COMPR);
    }
}
