//! Extended attributes, permissions and device numbers of Linux.

use super::{c_path, done};
use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use vfs::FileKind;

fn length(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sets permissions of what `fits`, of the very thing that was looked at; a `kind` is expected there.
pub(crate) fn set_mode(
    path: &Path,
    mode: u32,
    kind: FileKind,
    fits: impl Fn(&Metadata) -> io::Result<()>,
) -> io::Result<()> {
    let open = |flags: libc::c_int| {
        OpenOptions::new().read(true).custom_flags(flags | libc::O_NOFOLLOW).open(path)
    };
    let opened = match kind {
        FileKind::Dir => open(libc::O_DIRECTORY).ok(),
        FileKind::File => open(libc::O_NONBLOCK | libc::O_NOCTTY).ok(),
        _ => None,
    };
    // It needs no /proc.
    if let Some(file) = opened {
        fits(&file.metadata()?)?;
        return file.set_permissions(Permissions::from_mode(mode));
    }
    // What is no file, or what may not be read.
    let file = open(libc::O_PATH)?;
    fits(&file.metadata()?)?;
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    match std::fs::set_permissions(open, Permissions::from_mode(mode)) {
        // No /proc here. Not all C libraries and kernels can do it so.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let (path, flags) = (c_path(path)?, libc::AT_SYMLINK_NOFOLLOW);
            // SAFETY: `path` is NUL-terminated and outlives the call.
            done(unsafe { libc::fchmodat(libc::AT_FDCWD, path.as_ptr(), mode, flags) })
        }
        set => set,
    }
}

/// Names of all extended attributes, sorted; empty where the host has none to offer.
pub(crate) fn list_xattrs(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let path = c_path(path)?;
    names(sized(|buf| {
        // SAFETY: `path` is NUL-terminated; the kernel writes at most `buf.len()` bytes
        // into `buf`, which is borrowed for the call.
        unsafe { libc::llistxattr(path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }
    }))
}

/// The same of an open file.
pub(crate) fn list_xattrs_of(file: &File) -> io::Result<Vec<Vec<u8>>> {
    names(sized(|buf| {
        // SAFETY: takes a descriptor, which `file` owns; the kernel writes at most
        // `buf.len()` bytes into `buf`, which is borrowed for the call.
        unsafe { libc::flistxattr(file.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) }
    }))
}

fn names(list: io::Result<Vec<u8>>) -> io::Result<Vec<Vec<u8>>> {
    let list = match list {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Vec::new(),
        other => other?,
    };
    let names = list.split(|b| *b == 0).filter(|n| !n.is_empty());
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.sort();
    Ok(names)
}

pub(crate) fn get_xattr(path: &Path, name: &[u8]) -> io::Result<Vec<u8>> {
    let (path, name) = (c_path(path)?, CString::new(name)?);
    sized(|buf| {
        let (path, name) = (path.as_ptr(), name.as_ptr());
        // SAFETY: both strings are NUL-terminated and outlive the call; the kernel writes
        // at most `buf.len()` bytes into `buf`.
        unsafe { libc::lgetxattr(path, name, buf.as_mut_ptr().cast(), buf.len()) }
    })
}

/// The same of an open file.
pub(crate) fn get_xattr_of(file: &File, name: &[u8]) -> io::Result<Vec<u8>> {
    let name = CString::new(name)?;
    sized(|buf| {
        let (fd, value) = (file.as_raw_fd(), buf.as_mut_ptr().cast());
        // SAFETY: takes a descriptor, which `file` owns; `name` is NUL-terminated and outlives the call; the
        // kernel writes at most `buf.len()` bytes into `buf`.
        unsafe { libc::fgetxattr(fd, name.as_ptr(), value, buf.len()) }
    })
}

/// Calls with growing buffers until the answer fits.
fn sized(call: impl Fn(&mut [u8]) -> libc::ssize_t) -> io::Result<Vec<u8>> {
    let mut size = 1024;
    loop {
        let mut buf = vec![0; size];
        match length(call(&mut buf)) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            // 64 KiB is the kernel's limit for values and lists.
            Err(e) if e.raw_os_error() == Some(libc::ERANGE) && size < 1 << 17 => size *= 8,
            Err(e) => return Err(e),
        }
    }
}

pub(crate) fn set_xattr(path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
    let (path, name) = (c_path(path)?, CString::new(name)?);
    let (path, name) = (path.as_ptr(), name.as_ptr());
    // SAFETY: both strings are NUL-terminated, `value` is readable for its length, and
    // all outlive the call.
    done(unsafe { libc::lsetxattr(path, name, value.as_ptr().cast(), value.len(), 0) })
}

/// The same of an open file.
pub(crate) fn set_xattr_of(file: &File, name: &[u8], value: &[u8]) -> io::Result<()> {
    let (fd, name) = (file.as_raw_fd(), CString::new(name)?);
    let (data, len) = (value.as_ptr().cast(), value.len());
    // SAFETY: takes a descriptor, which `file` owns; `name` is NUL-terminated, `value` is
    // readable for its length, and both outlive the call.
    done(unsafe { libc::fsetxattr(fd, name.as_ptr(), data, len, 0) })
}

pub(crate) fn remove_xattr(path: &Path, name: &[u8]) -> io::Result<()> {
    let (path, name) = (c_path(path)?, CString::new(name)?);
    // SAFETY: both strings are NUL-terminated and outlive the call.
    done(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) })
}

/// The same of an open file.
pub(crate) fn remove_xattr_of(file: &File, name: &[u8]) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: takes a descriptor, which `file` owns; `name` is NUL-terminated and outlives the call.
    done(unsafe { libc::fremovexattr(file.as_raw_fd(), name.as_ptr()) })
}

/// Major and minor number.
pub(super) fn numbers(rdev: u64) -> (u32, u32) {
    (libc::major(rdev), libc::minor(rdev))
}

pub(super) fn device(major: u32, minor: u32) -> libc::dev_t {
    libc::makedev(major, minor)
}
