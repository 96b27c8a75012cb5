//! Systems other than Linux: their extended attributes are not carried over (each is told as
//! left out), and device numbers are as their C library makes them.

use super::{c_path, done};
use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use vfs::FileKind;

fn none<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Sets permissions of what `fits`.
pub(crate) fn set_mode(
    path: &Path,
    mode: u32,
    _: FileKind,
    fits: impl Fn(&Metadata) -> io::Result<()>,
) -> io::Result<()> {
    fits(&path.symlink_metadata()?)?;
    let (path, mode) = (c_path(path)?, mode as libc::mode_t);
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `path` is NUL-terminated and outlives the call.
    done(unsafe { libc::fchmodat(libc::AT_FDCWD, path.as_ptr(), mode, flags) })
}

pub(crate) fn list_xattrs_of(_: &File) -> io::Result<Vec<Vec<u8>>> {
    Ok(Vec::new())
}

pub(crate) fn get_xattr_of(_: &File, _: &[u8]) -> io::Result<Vec<u8>> {
    none()
}

pub(crate) fn set_xattr_of(_: &File, _: &[u8], _: &[u8]) -> io::Result<()> {
    none()
}

pub(crate) fn remove_xattr_of(_: &File, _: &[u8]) -> io::Result<()> {
    none()
}

pub(crate) fn list_xattrs(_: &Path) -> io::Result<Vec<Vec<u8>>> {
    Ok(Vec::new())
}

pub(crate) fn get_xattr(_: &Path, _: &[u8]) -> io::Result<Vec<u8>> {
    none()
}

pub(crate) fn set_xattr(_: &Path, _: &[u8], _: &[u8]) -> io::Result<()> {
    none()
}

pub(crate) fn remove_xattr(_: &Path, _: &[u8]) -> io::Result<()> {
    none()
}

/// Major and minor number.
pub(crate) fn numbers(rdev: u64) -> (u32, u32) {
    let rdev = rdev as libc::dev_t;
    (libc::major(rdev) as u32, libc::minor(rdev) as u32)
}

pub(crate) fn device(major: u32, minor: u32) -> libc::dev_t {
    libc::makedev(major as _, minor as _)
}
