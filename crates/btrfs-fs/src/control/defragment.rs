//! Defragmentation of a file, through a mount: for who has the file.

use super::wire;
use crate::fs::BtrfsFs;
use crate::{Defragment, Method};
use vfs::{Asker, Controlled, Errno, FileSystem, Ino, Result};

/// All of it is compressed.
const COMPRESS: u64 = 1;
/// What is written anew is durable soon: it is written back in any case.
const START_IO: u64 = 2;
/// The level of the compression is given.
const COMPRESS_LEVEL: u64 = 4;
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
    let who = asker.who()?;
    if !who.admin && fs.getattr(ino)?.uid != who.uid {
        return Err(Errno::EPERM.into());
    }
    fs.defragment_while(ino, wish, &mut || asker.goes_on())?;
    Ok(Controlled::default())
}

fn read(input: &[u8]) -> Result<Defragment> {
    let number = |at| wire::number(input, at).ok_or(Errno::EINVAL);
    let (start, len, flags, last) = (number(0)?, number(8)?, number(16)?, number(24)?);
    if flags & !(COMPRESS | START_IO | COMPRESS_LEVEL | UNSHARE) != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let [target, compression] = wire::halves(last);
    let compress = if flags & COMPRESS == 0 { None } else { Some(method(flags, compression)?) };
    let target = u64::from(if target == 0 { TARGET } else { target });
    Ok(Defragment { start, len, target, compress, unshare: flags & UNSHARE != 0 })
}

fn method(flags: u64, compression: u32) -> Result<Method> {
    let (kind, level) = match flags & COMPRESS_LEVEL {
        0 => (compression, 0),
        _ => {
            let [kind, level, _, _] = compression.to_le_bytes();
            (kind.into(), level.cast_signed().into())
        }
    };
    // Nothing said is zlib.
    let kind = usize::try_from(kind.max(1)).ok();
    let name = kind.and_then(|kind| METHODS.get(kind)).ok_or(Errno::EINVAL)?;
    Method::parse(&format!("{name}:{level}")).ok_or(Errno::EINVAL.into())
}

/// A question of [`wire::DEFRAG_RANGE`].
pub fn write_defragment(wish: &Defragment) -> Vec<u8> {
    let kind = wish.compress.and_then(|m| METHODS.iter().position(|name| *name == m.name()));
    let level = wish.compress.map_or(0, |method| method.level.to_le_bytes()[0]);
    let kind = u32::try_from(kind.unwrap_or(0)).expect("four names");
    let compression = kind | u32::from(level) << 8;
    let mut flags = START_IO;
    flags |= if wish.compress.is_some() { COMPRESS | COMPRESS_LEVEL } else { 0 };
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
    }
}
