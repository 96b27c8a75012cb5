//! The few system calls that the standard library lacks. All `unsafe` of this crate is here.

use std::ffi::CString;

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
