//! Files below a directory, by paths that a stranger may have made: nothing but directories is
//! passed through, and never the directory itself left.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Opens `path` (empty for the directory itself) below `dir`. ELOOP: a symbolic link is in the
/// way; EXDEV: it leads out.
pub fn open_beneath(dir: &File, path: &[u8], flags: i32, mode: u32) -> io::Result<File> {
    let path = CString::new(if path.is_empty() { b"." } else { path })?;
    // SAFETY: plain data; all zeros is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.mode = mode.into();
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_XDEV;
    // SAFETY: the path is NUL-terminated, `how` is as long as is said, and both outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            dir.as_raw_fd(),
            path.as_ptr(),
            &how,
            size_of::<libc::open_how>(),
        )
    };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call gave it to us alone.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}
