//! Acting as another user, with another umask, or without root's right to keep
//! set-ID bits: for one call, on the calling thread.
//!
//! The umask belongs to the whole process; a lock keeps two calls of this module apart,
//! and nothing else in a test should make files with modes that matter meanwhile.
#![allow(unsafe_code)]

use std::sync::{Mutex, PoisonError};

use vfs::Context;

static UMASK: Mutex<()> = Mutex::new(());

const CAP_FSETID: u32 = 4;

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

/// `_LINUX_CAPABILITY_VERSION_3`: two words of each set.
const CAP_VERSION: u32 = 0x2008_0522;

fn capabilities() -> [CapData; 2] {
    let header = CapHeader { version: CAP_VERSION, pid: 0 };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 fills two `CapData`. Failure leaves zeros.
    unsafe { libc::syscall(libc::SYS_capget, &header, data.as_mut_ptr()) };
    data
}

fn set_capabilities(data: [CapData; 2]) {
    let header = CapHeader { version: CAP_VERSION, pid: 0 };
    // SAFETY: version 3 reads two `CapData`.
    unsafe { libc::syscall(libc::SYS_capset, &header, data.as_ptr()) };
}

fn set_fs_ids(uid: u32, gid: u32) {
    // SAFETY: no memory is passed; both calls act on this thread alone.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}

/// Restores identity and capabilities on drop.
struct Identity(Option<[CapData; 2]>);

impl Identity {
    /// Files belong to `uid` and `gid`, and yet all of root's rights stay.
    fn take(uid: u32, gid: u32) -> Identity {
        if (uid, gid) == (0, 0) {
            return Identity(None);
        }
        let caps = capabilities();
        set_fs_ids(uid, gid);
        set_capabilities(caps);
        Identity(Some(caps))
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        if let Some(caps) = self.0 {
            set_fs_ids(0, 0);
            set_capabilities(caps);
        }
    }
}

/// Runs `make` with the context's owner and umask.
pub(super) fn acting_as<T>(cx: &Context, make: impl FnOnce() -> T) -> T {
    let _lock = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: no memory is passed.
    let old = unsafe { libc::umask(u32::from(cx.umask)) };
    let result = {
        let _identity = Identity::take(cx.uid, cx.gid);
        make()
    };
    // SAFETY: as above.
    unsafe { libc::umask(old) };
    result
}

/// Runs `change` as somebody in the file's group who may do all but keep set-ID bits.
pub(super) fn losing_privileges<T>(gid: u32, change: impl FnOnce() -> T) -> T {
    let mut caps = capabilities();
    let _identity = Identity(Some(caps));
    caps[0].effective &= !(1 << CAP_FSETID);
    set_fs_ids(0, gid);
    set_capabilities(caps);
    change()
}
