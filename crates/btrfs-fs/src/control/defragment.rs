//! Defragmentation of a file, through a mount: for who has the file.

use super::{caller, wire};
use crate::fs::BtrfsFs;
use crate::ops::subvolume::may_write;
use crate::subvol::Caller;
use crate::{Defragment, Method};
use btrfs_disk::compress::levels;
use btrfs_disk::items::Compression;
use btrfs_disk::items::inode_flags::IMMUTABLE;
use vfs::{Asker, Controlled, Errno, FileKind, FileSystem, FsError, Ino, Result};

/// All of it is compressed.
const COMPRESS: u64 = 1;
/// What is written anew is durable soon: it is written back in any case.
const START_IO: u64 = 2;
/// The level of the compression is given.
const COMPRESS_LEVEL: u64 = 4;
/// Nothing of it is compressed, whatever the mount does.
const NOCOMPRESS: u64 = 8;
/// Ours: what somebody else has, too, is stored twice.
const UNSHARE: u64 = 1 << 63;
/// What is taken for a target where none is given, as in the kernel.
const TARGET: u32 = 256 << 10;

const METHODS: [&str; 4] = ["", "zlib", "lzo", "zstd"];

/// `None`: it is none of these.
pub(super) fn control(
    fs: &BtrfsFs,
    asker: &dyn Asker,
    ino: Ino,
    command: u32,
    input: &[u8],
) -> Option<Result<Controlled>> {
    let wish = match command {
        wire::DEFRAG => Ok(Defragment { target: TARGET.into(), ..Defragment::default() }),
        wire::DEFRAG_RANGE => read(input),
        _ => return None,
    };
    Some(wish.and_then(|wish| run(fs, asker, ino, &wish)))
}

fn run(fs: &BtrfsFs, asker: &dyn Asker, ino: Ino, wish: &Defragment) -> Result<Controlled> {
    let attr = fs.getattr(ino)?;
    let is_dir = attr.kind == FileKind::Dir;
    may_defragment(fs, &caller(asker)?, ino, is_dir)?;
    if !is_dir && attr.size > 0 && wish.start >= attr.size {
        return Err(Errno::EINVAL.into());
    }
    match fs.defragment_while(ino, wish, &mut || asker.goes_on()) {
        // Of a directory the kernel writes the subvolume's nodes anew. There is nothing to be done for that here.
        Err(FsError::Posix(Errno::EISDIR)) if is_dir => {}
        done => drop(done?),
    }
    Ok(Controlled::default())
}

/// As in the kernel: who may write the file, which of an immutable one nobody may; of those and directories administrators.
fn may_defragment(fs: &BtrfsFs, caller: &Caller, ino: Ino, is_dir: bool) -> Result<()> {
    if caller.privileged {
        return Ok(());
    }
    let engine = fs.open()?;
    let inode = engine.inodes.get(ino)?;
    engine.subvol_writable(inode.id.tree)?;
    let state = inode.read()?;
    let immutable = state.item.flags & IMMUTABLE != 0;
    let may = !immutable && may_write(engine, caller, inode.id, &state).is_ok();
    if may && !is_dir { Ok(()) } else { Err(Errno::EPERM.into()) }
}

fn read(input: &[u8]) -> Result<Defragment> {
    let number = |at| wire::number(input, at).ok_or(Errno::EINVAL);
    let (start, len, flags, last) = (number(0)?, number(8)?, number(16)?, number(24)?);
    if flags & !(COMPRESS | START_IO | COMPRESS_LEVEL | NOCOMPRESS | UNSHARE) != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let [target, compression] = wire::halves(last);
    let compress = match flags & (COMPRESS | NOCOMPRESS) {
        0 => None,
        COMPRESS => Some(method(flags, compression)?),
        NOCOMPRESS => Some(Method::PLAIN),
        _ => return Err(Errno::EINVAL.into()),
    };
    // As in the kernel: a record of zeros asks for all there is.
    let len = if start.wrapping_add(len) > start { len } else { u64::MAX };
    let target = u64::from(if target == 0 { TARGET } else { target });
    Ok(Defragment { start, len, target, compress, unshare: flags & UNSHARE != 0 })
}

fn method(flags: u64, compression: u32) -> Result<Method> {
    let [byte, level, _, _] = compression.to_le_bytes();
    let leveled = flags & COMPRESS_LEVEL != 0;
    let kind = if leveled { byte.into() } else { compression };
    let kind = usize::try_from(kind).map_err(|_| Errno::EINVAL)?;
    if kind == 0 {
        return Ok(Method::DEFAULT);
    }
    let name = METHODS.get(kind).ok_or(Errno::EINVAL)?;
    let usual = Method::parse(name).ok_or(Errno::EINVAL)?;
    if !leveled {
        return Ok(usual);
    }
    let level = i32::from(level.cast_signed());
    if !has_level(usual.kind, level) {
        return Err(Errno::EINVAL.into());
    }
    Method::parse(&format!("{name}:{level}")).ok_or(Errno::EINVAL.into())
}

/// What the kernel takes for a level here, 0 among it for zstd: it is the usual one.
fn has_level(kind: Compression, level: i32) -> bool {
    let (least, _, most) = levels(kind);
    match kind {
        Compression::Lzo => (0..=1).contains(&level),
        _ => (least..=most).contains(&level),
    }
}

/// A question of [`wire::DEFRAG_RANGE`].
pub fn write_defragment(wish: &Defragment) -> Vec<u8> {
    let compress = wish.compress.filter(|method| *method != Method::PLAIN);
    let kind = compress.and_then(|m| METHODS.iter().position(|name| *name == m.name()));
    let level = compress.map_or(0, |method| method.level.to_le_bytes()[0]);
    let kind = u32::try_from(kind.unwrap_or(0)).expect("four names");
    let compression = kind | u32::from(level) << 8;
    let mut flags = START_IO;
    flags |= match (wish.compress, compress) {
        (_, Some(_)) => COMPRESS | COMPRESS_LEVEL,
        (Some(_), None) => NOCOMPRESS,
        (None, None) => 0,
    };
    flags |= if wish.unshare { UNSHARE } else { 0 };
    let target = u32::try_from(wish.target).unwrap_or(u32::MAX);
    let last = u64::from(target) | u64::from(compression) << 32;
    let mut record = [wish.start, wish.len, flags, last].map(u64::to_le_bytes).concat();
    record.resize(wire::len(wire::DEFRAG_RANGE), 0);
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_what_is_read() {
        let compress = Method::parse("zstd:-5");
        for (compress, unshare) in [(None, false), (compress, true), (Method::parse("lzo"), false)]
        {
            let wish = Defragment { start: 4096, len: 1 << 40, target: 77, compress, unshare };
            assert_eq!(read(&write_defragment(&wish)).unwrap(), wish);
        }
        let mut plain = write_defragment(&Defragment::default());
        plain[16..24].copy_from_slice(&COMPRESS.to_le_bytes());
        assert_eq!(read(&plain).unwrap().compress, Method::parse("zlib"));
        let plain = Defragment { compress: Some(Method::PLAIN), ..Defragment::default() };
        assert_eq!(read(&write_defragment(&plain)).unwrap(), plain);
    }

    fn read_of(start: u64, len: u64, flags: u64, compression: u32) -> Result<Defragment> {
        let words = [start, len, flags, u64::from(compression) << 32];
        let mut record = words.map(u64::to_le_bytes).concat();
        record.resize(wire::len(wire::DEFRAG_RANGE), 0);
        read(&record)
    }

    /// Held against Linux 6.18.
    #[test]
    fn records_are_read_as_by_the_kernel() {
        for (start, len) in [(0, 0), (4096, u64::MAX), (4096, 0)] {
            assert_eq!(read_of(start, len, 0, 99).unwrap().len, u64::MAX);
        }
        let levels = [-128i8, -16, -15, -1, 0, 1, 9, 10, 15, 16, 127];
        let allowed: [&[i8]; 5] = [&levels, &[1, 9], &[0, 1], &[-15, -1, 0, 1, 9, 10, 15], &[]];
        for (kind, allowed) in (0..).zip(allowed) {
            for level in levels {
                let word = u32::from_le_bytes([kind, level.cast_unsigned(), 0, 0]);
                let compress = read_of(0, 0, COMPRESS | COMPRESS_LEVEL, word);
                assert_eq!(compress.is_ok(), allowed.contains(&level), "{kind}:{level}");
            }
            let usual = read_of(0, 0, COMPRESS, kind.into());
            assert_eq!(usual.is_ok(), kind < 4, "{kind}");
        }
        let zstd = read_of(0, 0, COMPRESS | COMPRESS_LEVEL, 3).unwrap().compress;
        assert_eq!(zstd, Method::parse("zstd"));
        assert!(read_of(0, 0, COMPRESS, 256).is_err());
        let refused = |flags| read_of(0, 0, flags, 1).unwrap_err().errno();
        assert_eq!(refused(COMPRESS | NOCOMPRESS), libc::EINVAL);
        assert_eq!(refused(16), libc::EOPNOTSUPP);
    }
}
