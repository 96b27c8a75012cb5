//! Mounts and extended attributes.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Umount {
    /// EBUSY while something is open.
    Now,
    /// Detaches the tree at once.
    Lazily,
    /// Ends the connection to the server first, then as `Lazily`.
    ByForce,
}

pub fn umount(point: &Path, how: Umount) -> io::Result<()> {
    let point = c_path(point)?;
    let flags = match how {
        Umount::Now => 0,
        Umount::Lazily => libc::MNT_DETACH,
        Umount::ByForce => libc::MNT_DETACH | libc::MNT_FORCE,
    };
    // SAFETY: `point` is NUL-terminated and outlives the call.
    match unsafe { libc::umount2(point.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Mounts what is mounted on `from` on `to` as well, there with `flags`. Where these cannot be
/// set there is no second mount.
pub fn bind(from: &Path, to: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let (from, point) = (c_path(from)?, c_path(to)?);
    let mount = |flags: libc::c_ulong| {
        let none = std::ptr::null();
        // SAFETY: both paths are NUL-terminated and outlive the call; type and data may be
        // left out with these flags.
        match unsafe { libc::mount(from.as_ptr(), point.as_ptr(), none, flags, none.cast()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    mount(libc::MS_BIND)?;
    mount(libc::MS_BIND | libc::MS_REMOUNT | flags).inspect_err(|_| {
        let _ = umount(to, Umount::Lazily);
    })
}

/// Gives what is mounted on `point` other flags.
pub fn remount(point: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let point = c_path(point)?;
    let (none, empty) = (c"none", c"");
    let flags = flags | libc::MS_REMOUNT;
    // SAFETY: all strings are NUL-terminated and outlive the call.
    let done = unsafe {
        let (source, data) = (none.as_ptr(), empty.as_ptr().cast());
        libc::mount(source, point.as_ptr(), std::ptr::null(), flags, data)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The attribute's value, of at most 64 KiB.
pub fn get_xattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (c_path(path)?, CString::new(name)?);
    let mut value = vec![0u8; 1 << 16];
    // SAFETY: both strings are NUL-terminated; at most `value.len()` bytes are written to
    // `value`.
    let len = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    value.truncate(len);
    Ok(value)
}

/// Sets the attribute; an empty value is one.
pub fn set_xattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (c_path(path)?, CString::new(name)?);
    // SAFETY: both strings are NUL-terminated; `value.len()` bytes are read from `value`.
    let done = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
