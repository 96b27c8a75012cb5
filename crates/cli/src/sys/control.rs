//! Control operations on files.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Does `command` on `file`, with `record`, which is as long as the command's number says and
/// has the answer afterwards.
pub fn control(file: &File, command: u32, record: &mut [u8]) -> io::Result<()> {
    let len = (command >> 16 & 0x3fff) as usize;
    if record.len() != len {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the kernel reads and writes as many bytes as the number says, which are there.
    match unsafe { libc::ioctl(file.as_raw_fd(), command.into(), record.as_mut_ptr()) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The number of a hash algorithm, and the digest by it that a file's content is verified by.
/// `command` is `FS_IOC_MEASURE_VERITY`, whose record is longer than its number says.
pub(crate) fn measure_verity(file: &File, command: u32) -> io::Result<(u16, Vec<u8>)> {
    /// The longest digest.
    const ROOM: u16 = 64;
    let mut record = [0u8; 4 + ROOM as usize];
    record[2..4].copy_from_slice(&ROOM.to_ne_bytes());
    // SAFETY: the kernel writes as many bytes behind the head as it is told that there are.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), command.into(), record.as_mut_ptr()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let [number, len] = [0, 2].map(|at| u16::from_ne_bytes([record[at], record[at + 1]]));
    Ok((number, record[4..4 + usize::from(len.min(ROOM))].to_vec()))
}

/// Has the kernel hand over what it keeps of the file system that `file` is in.
pub fn sync_file_system(file: &File) -> io::Result<()> {
    // SAFETY: takes a descriptor that is open.
    match unsafe { libc::syncfs(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The file lies in a btrfs of the kernel's own.
pub fn is_kernels_btrfs(file: &File) -> bool {
    // SAFETY: plain data; all zeros is a valid value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: takes a descriptor that is open, and writes `stat`.
    let done = unsafe { libc::fstatfs(file.as_raw_fd(), &mut stat) };
    done == 0 && stat.f_type == libc::BTRFS_SUPER_MAGIC
}

/// Nothing can be written through the mount that `file` is in.
pub fn is_read_only(file: &File) -> io::Result<bool> {
    // SAFETY: plain data; all zeros is a valid value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: takes a descriptor that is open, and writes `stat`.
    match unsafe { libc::fstatvfs(file.as_raw_fd(), &mut stat) } {
        0 => Ok(stat.f_flag & libc::ST_RDONLY != 0),
        _ => Err(io::Error::last_os_error()),
    }
}
