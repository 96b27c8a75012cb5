//! mount(2), umount2(2) and the one ioctl of `/dev/fuse`.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `_IOR(229, 0, uint32_t)`
const FUSE_DEV_IOC_CLONE: libc::c_ulong = 0x8004_e500;

fn check(rc: libc::c_int) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

pub(crate) fn is_root() -> bool {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

pub(crate) fn user_and_group() -> (u32, u32) {
    // SAFETY: take nothing, cannot fail.
    unsafe { (libc::getuid(), libc::getgid()) }
}

pub(crate) fn mount(
    source: &[u8],
    target: &Path,
    kind: &str,
    flags: libc::c_ulong,
    data: &str,
) -> io::Result<()> {
    let source = c_string(source)?;
    let target = c_string(target.as_os_str().as_bytes())?;
    let kind = c_string(kind.as_bytes())?;
    let data = c_string(data.as_bytes())?;
    // SAFETY: all pointers are to NUL-terminated strings that outlive the call.
    check(unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
    })
}

/// `lazy` detaches at once and finishes when the last user is gone.
pub(crate) fn unmount(target: &Path, lazy: bool) -> io::Result<()> {
    let target = c_string(target.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: the pointer is to a NUL-terminated string that outlives the call.
    check(unsafe { libc::umount2(target.as_ptr(), flags) })
}

/// Makes the freshly opened `device` a further reader of `connection`.
pub(crate) fn clone_fuse_connection(device: &File, connection: RawFd) -> io::Result<()> {
    let source = connection as u32;
    // SAFETY: the ioctl reads one u32 behind the pointer.
    check(unsafe { libc::ioctl(device.as_raw_fd(), FUSE_DEV_IOC_CLONE, &source) })
}

/// Waits until there is something to read, or an end or error to be read.
pub(crate) fn wait_readable(fd: RawFd) -> io::Result<()> {
    let mut waiting = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one valid entry, alive during the call.
        if unsafe { libc::poll(&raw mut waiting, 1, -1) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
