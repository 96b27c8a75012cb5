//! Names of users and groups of this machine.

use std::ffi::{CStr, CString};

/// Longest record that is read.
const RECORD: usize = 1 << 16;

pub fn user_name(uid: u32) -> Option<String> {
    look_up_user(|entry, buf, found| {
        // SAFETY: `entry` and `found` are ours to be written, `buf` for its whole length.
        unsafe { libc::getpwuid_r(uid, entry, buf.as_mut_ptr().cast(), buf.len(), found) }
    })
    .map(|(_, name)| name)
}

/// A user's number and login group.
pub fn user_id_and_group(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    look_up_user(|entry, buf, found| {
        let (name, len) = (name.as_ptr(), buf.len());
        // SAFETY: as above; `name` is NUL-terminated and outlives the call.
        unsafe { libc::getpwnam_r(name, entry, buf.as_mut_ptr().cast(), len, found) }
    })
    .map(|(ids, _)| ids)
}

pub fn group_name(gid: u32) -> Option<String> {
    look_up_group(|entry, buf, found| {
        // SAFETY: `entry` and `found` are ours to be written, `buf` for its whole length.
        unsafe { libc::getgrgid_r(gid, entry, buf.as_mut_ptr().cast(), buf.len(), found) }
    })
    .map(|(_, name)| name)
}

pub fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    look_up_group(|entry, buf, found| {
        let (name, len) = (name.as_ptr(), buf.len());
        // SAFETY: as above; `name` is NUL-terminated and outlives the call.
        unsafe { libc::getgrnam_r(name, entry, buf.as_mut_ptr().cast(), len, found) }
    })
    .map(|(id, _)| id)
}

fn look_up_user(
    call: impl FnOnce(&mut libc::passwd, &mut [u8], &mut *mut libc::passwd) -> libc::c_int,
) -> Option<((u32, u32), String)> {
    // SAFETY: plain data with pointers; all zeros is a valid value.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut buf = vec![0; RECORD];
    let mut found = std::ptr::null_mut();
    if call(&mut entry, &mut buf, &mut found) != 0 || found.is_null() {
        return None;
    }
    // SAFETY: on success `pw_name` points to a NUL-terminated string in `buf`.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    Some(((entry.pw_uid, entry.pw_gid), name.to_string_lossy().into_owned()))
}

fn look_up_group(
    call: impl FnOnce(&mut libc::group, &mut [u8], &mut *mut libc::group) -> libc::c_int,
) -> Option<(u32, String)> {
    // SAFETY: plain data with pointers; all zeros is a valid value.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let mut buf = vec![0; RECORD];
    let mut found = std::ptr::null_mut();
    if call(&mut entry, &mut buf, &mut found) != 0 || found.is_null() {
        return None;
    }
    // SAFETY: on success `gr_name` points to a NUL-terminated string in `buf`.
    let name = unsafe { CStr::from_ptr(entry.gr_name) };
    Some((entry.gr_gid, name.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_nonsense_is_not() {
        assert_eq!(user_id_and_group("root"), Some((0, 0)));
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(group_id("root"), Some(0));
        assert_eq!(group_name(0).as_deref(), Some("root"));
        assert_eq!(user_id_and_group("no-such-user-here"), None);
        assert_eq!(group_id("no\0name"), None);
        assert_eq!(user_name(3_999_999_999), None);
    }
}
