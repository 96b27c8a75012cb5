//! Mounts and extended attributes.

use super::beneath::{open_beneath, opened};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
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

/// As the kernel writes it for the inodes of a FUSE mount (`struct file_handle`).
#[repr(C)]
struct FuseHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    /// The node's number, the upper half first, and its generation.
    handle: [u32; 3],
}

/// The top of the FUSE file system that the directory `below` is of, whatever of it is mounted there.
/// That takes CAP_DAC_READ_SEARCH.
pub fn top_of_fuse(below: &File) -> io::Result<File> {
    const INO64_GEN: libc::c_int = 0x81;
    const TOP: [u32; 3] = [0, 1, 0];
    // A descriptor that is a path alone says no mount.
    let below = open_beneath(below, b"", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let mut top = FuseHandle { bytes: 12, kind: INO64_GEN, handle: TOP };
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the descriptor is open, and the handle is as long as it says and outlives the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, below.as_raw_fd(), &raw mut top, flags)
    };
    // SAFETY: the call gave it to us alone.
    unsafe { opened(fd) }
}

/// A mount of the directory, without what is mounted below it, that stands nowhere yet. It goes with the
/// descriptor.
pub fn mount_apart(dir: &File) -> io::Result<File> {
    let flags =
        libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as libc::c_uint;
    // SAFETY: the descriptor is open, and the path an empty string.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, dir.as_raw_fd(), c"".as_ptr(), flags) };
    // SAFETY: the call gave it to us alone.
    unsafe { opened(fd) }
}

/// Puts a mount that stands nowhere on `point`, over what is mounted there, or `beneath` that (Linux 6.5).
pub fn place_mount(mount: &File, point: &Path, beneath: bool) -> io::Result<()> {
    const FROM_EMPTY_PATH: libc::c_uint = 0x4;
    const BENEATH: libc::c_uint = 0x200;
    let point = c_path(point)?;
    let flags = if beneath { FROM_EMPTY_PATH | BENEATH } else { FROM_EMPTY_PATH };
    // SAFETY: the descriptor is open, both paths are NUL-terminated and outlive the call.
    let done = unsafe {
        let from = (mount.as_raw_fd(), c"".as_ptr());
        libc::syscall(libc::SYS_move_mount, from.0, from.1, libc::AT_FDCWD, point.as_ptr(), flags)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
