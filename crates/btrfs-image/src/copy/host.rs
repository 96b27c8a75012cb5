//! The system calls of the host's side that the standard library lacks. All `unsafe`
//! of this crate is here.
//!
//! No function follows a symbolic link in the last component of its path. What systems do in
//! their own ways each is in `system`.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use other as system;
pub(super) use system::{get_xattr, list_xattrs, remove_xattr, set_xattr};

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, lchown};
use std::path::Path;
use vfs::{Errno, Timestamp};

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn privileged() -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Gives owner and group; false where that is left to root, and only the group, if the
/// caller is in it, could be given.
pub(super) fn give(path: &Path, uid: u32, gid: u32) -> io::Result<bool> {
    let refused = |e: &io::Error| {
        !privileged() && matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL))
    };
    match lchown(path, Some(uid), Some(gid)) {
        Err(e) if refused(&e) => match lchown(path, None, Some(gid)) {
            Err(e) if !refused(&e) => Err(e),
            _ => Ok(false),
        },
        other => other.map(|()| true),
    }
}

/// True for the attributes that a new file may inherit from its directory.
pub(super) fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// True where a name that was listed has no value that can be read.
pub(super) fn cannot_be_read(error: &io::Error) -> bool {
    let errno = error.raw_os_error().and_then(Errno::from_code);
    matches!(errno, Some(Errno::ENODATA | Errno::EOPNOTSUPP))
}

/// True where the target cannot have the attribute at all: its file system does not know
/// the name, or only the privileged may set it.
pub(super) fn no_such_xattr_here(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => true,
        Some(libc::EPERM) => !privileged(),
        _ => false,
    }
}

/// Opens a regular file to be read; never waits for the other end of a FIFO.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

pub(super) fn set_times(path: &Path, atime: Timestamp, mtime: Timestamp) -> io::Result<()> {
    let path = c_path(path)?;
    let spec = |t: Timestamp| libc::timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
    let times = [spec(atime), spec(mtime)];
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `path` is NUL-terminated, `times` has the two members that are read.
    done(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), flags) })
}

/// Makes a device, FIFO or socket; fails if the name is taken.
pub(super) fn make_node(path: &Path, mode: u32, rdev: libc::dev_t) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is NUL-terminated and outlives the call.
    done(unsafe { libc::mknod(path.as_ptr(), mode as libc::mode_t, rdev) })
}

/// Where the next data at or behind `offset` starts; `None` if there is none.
pub(super) fn seek_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, offset, libc::SEEK_DATA) {
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        // A file system that does not tell: all is data.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(Some(offset)),
        other => other.map(Some),
    }
}

/// Where the next hole behind `offset` starts, at the latest at `end`.
pub(super) fn seek_hole(file: &File, offset: u64, end: u64) -> io::Result<u64> {
    match seek(file, offset, libc::SEEK_HOLE) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENXIO)) => Ok(end),
        other => other.map(|at| at.min(end)),
    }
}

fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<u64> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: lseek takes a descriptor, which `file` owns, and integers.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    u64::try_from(at).map_err(|_| io::Error::last_os_error())
}

/// The 32-bit form of a device number that volumes store.
pub(super) fn rdev_to_volume(rdev: u64) -> u32 {
    let (major, minor) = system::numbers(rdev);
    minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xFFF00) << 12
}

/// The host's form of a device number from a volume.
pub(super) fn rdev_to_host(rdev: u32) -> libc::dev_t {
    system::device(rdev >> 8 & 0xFFF, rdev & 0xFF | rdev >> 12 & 0xFFF00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_way_there_and_back() {
        for (major, minor) in [(1, 3), (8, 17), (259, 0), (4095, 1_048_575), (0, 0), (7, 256)] {
            let host = libc::makedev(major, minor);
            assert_eq!(rdev_to_host(rdev_to_volume(host)), host);
        }
        assert_eq!(rdev_to_volume(libc::makedev(8, 1)), 0x801);
        assert_eq!(rdev_to_volume(libc::makedev(1, 0x12345)), 0x1230_0145);
    }
}
