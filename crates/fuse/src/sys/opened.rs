//! What a descriptor of another thread is open on.
//!
//! Asked is the kernel alone, of what it has in memory: `fdinfo` runs code of whatever is open there, and of some kinds
//! of files takes locks that whoever opened them can hold for as long as he likes.

use std::ffi::CString;
use std::io;

/// What is open, and by which mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opened {
    pub ino: u64,
    /// The number of the mount; `None` before Linux 5.8.
    pub mount: Option<u64>,
}

pub(crate) fn opened(thread: u32, descriptor: u32) -> io::Result<Opened> {
    let link = CString::new(format!("/proc/{thread}/fd/{descriptor}"))?;
    let wanted = libc::STATX_INO | libc::STATX_MNT_ID;
    // SAFETY: all bytes of a `statx` may be zero.
    let mut told: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, and `told` is as large as the kernel writes.
    let result = unsafe {
        libc::statx(libc::AT_FDCWD, link.as_ptr(), libc::AT_STATX_DONT_SYNC, wanted, &raw mut told)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let knows_mount = told.stx_mask & libc::STATX_MNT_ID != 0;
    Ok(Opened { ino: told.stx_ino, mount: knows_mount.then_some(told.stx_mnt_id) })
}
