//! Acting as another user, with another umask, or without root's right to keep
//! set-ID bits: for one call, on the calling thread.
//!
//! A umask belongs to the whole process, so a thread that needs one of its own first
//! leaves the shared one (and the shared working directory) for good.
#![allow(unsafe_code)]

use std::cell::Cell;

use vfs::Context;

thread_local! {
    static OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

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

/// Sets the umask of this thread alone and returns the old one.
fn set_umask(umask: u32) -> u32 {
    OWN_UMASK.with(|own| {
        if !own.get() {
            // SAFETY: no memory is passed; only this thread's view of umask and working
            // directory is split off.
            own.set(unsafe { libc::unshare(libc::CLONE_FS) } == 0);
            assert!(own.get(), "unshare: {}", std::io::Error::last_os_error());
        }
    });
    // SAFETY: no memory is passed.
    unsafe { libc::umask(umask) }
}

/// Runs `make` with the context's owner and umask.
pub(super) fn acting_as<T>(cx: &Context, make: impl FnOnce() -> T) -> T {
    let old = set_umask(u32::from(cx.umask));
    let result = {
        let _identity = Identity::take(cx.uid, cx.gid);
        make()
    };
    set_umask(old);
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
