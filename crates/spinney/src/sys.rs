//! The few system calls that the standard library lacks. All `unsafe` of this crate is here.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use vfs::Timestamp;

/// The caller's effective user and group.
pub(crate) fn user_and_group() -> (u32, u32) {
    // SAFETY: neither takes arguments or can fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Whether `name` is of the shell's `pattern`, as fnmatch(3) says; names with NUL never are.
pub fn matches(pattern: &[u8], name: &[u8], any_case: bool) -> bool {
    let (Ok(pattern), Ok(name)) = (CString::new(pattern), CString::new(name)) else {
        return false;
    };
    let flags = if any_case { libc::FNM_CASEFOLD } else { 0 };
    // SAFETY: reads two NUL-terminated strings that outlive the call.
    unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), flags) == 0 }
}

/// Sets access and modification time; a symbolic link's own.
pub(crate) fn set_times(path: &Path, atime: Timestamp, mtime: Timestamp) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let spec = |t: Timestamp| libc::timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
    let times = [spec(atime), spec(mtime)];
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `path` is NUL-terminated, `times` has the two members that are read.
    match unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
