//! Full volumes, and the ways in which content comes.

use super::{CX, errno, new_file};
use btrfs_fs::BtrfsFs;
use vfs::{FileSystem, WriteFlags};

pub const MIB: u64 = 1 << 20;
pub const NOCOW: u32 = 0x0080_0000;
pub const BUFFERED: WriteFlags =
    WriteFlags { direct: false, cached: false, kill_priv: false, sync: false };
pub const DIRECT: WriteFlags = WriteFlags { direct: true, ..BUFFERED };
pub const CACHED: WriteFlags = WriteFlags { cached: true, ..BUFFERED };

/// Writes until nothing more has room, and what that said.
pub fn fill(fs: &BtrfsFs) -> i32 {
    let (ino, mut at) = (new_file(fs, "rest", &[]), 0);
    for len in [MIB, 65536, 4096] {
        let refused = loop {
            match fs.write(&CX, ino, at, &vec![1; len as usize], BUFFERED) {
                Ok(written) => at += written as u64,
                Err(error) => break error.errno(),
            }
        };
        assert!([libc::ENOSPC, libc::EDQUOT].contains(&refused), "errno {refused}");
    }
    let again = errno(fs.write(&CX, ino, at, &[1; 4096], BUFFERED));
    fs.sync().expect("sync");
    again
}
