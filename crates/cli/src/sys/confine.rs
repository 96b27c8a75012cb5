//! What a thread can give up of its rights, and the name that it goes by.

use std::ffi::CStr;
use std::io;

/// A capability by the kernel's number.
pub const CAP_SYS_RESOURCE: u32 = 24;

const CAP_VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Leaves the calling thread, and those that it makes, no capability but `kept` (a set of bits),
/// as far as it had these.
pub fn keep_capabilities(kept: u64) -> io::Result<()> {
    let mut header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 reads a header and writes two records, which these are; process 0 is
    // the calling thread.
    if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for (half, data) in data.iter_mut().enumerate() {
        let kept = (kept >> (32 * half)) as u32;
        data.permitted &= kept;
        data.effective &= kept;
        data.inheritable = 0;
    }
    // SAFETY: as above; both are only read.
    match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What `ps` and `top` show of the calling thread; 15 bytes of it.
pub fn name_thread(name: &CStr) {
    // SAFETY: the kernel reads up to a NUL, which there is.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}
