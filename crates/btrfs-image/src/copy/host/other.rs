//! Systems other than Linux: their extended attributes are not carried over (each is told as
//! left out), and device numbers are as their C library makes them.

use std::io;
use std::path::Path;

fn none<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
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
