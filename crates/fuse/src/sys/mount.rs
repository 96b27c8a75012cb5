//! mount(2), umount2(2), a mount of the control files of FUSE, and the one ioctl of `/dev/fuse`.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
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

/// The control files of all connections, mounted nowhere: gone when nobody has them open. Needs
/// CAP_SYS_ADMIN, and Linux 5.2.
pub(crate) fn control_files() -> io::Result<OwnedFd> {
    const CLOEXEC: libc::c_uint = 1;
    const CREATE: libc::c_uint = 6;
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: a NUL-terminated name; what returns is a descriptor or an error.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, c"fusectl".as_ptr(), CLOEXEC) };
    let context = owned(context)?;
    // SAFETY: no memory is passed.
    let made =
        unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, none, none, 0) };
    check(made as libc::c_int)?;
    // SAFETY: no memory is passed; what returns is a descriptor or an error.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOEXEC, 0) })
}

fn owned(descriptor: libc::c_long) -> io::Result<OwnedFd> {
    let descriptor = RawFd::try_from(descriptor).ok().filter(|number| *number >= 0);
    let descriptor = descriptor.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel just made it, for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// How a mount is taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// EBUSY while something is open.
    Now,
    /// Detaches at once and finishes when the last user is gone.
    Lazily,
    /// Ends the connection first: nobody is asked any more. Then as `Lazily`.
    ByForce,
}

impl How {
    fn flags(self) -> libc::c_int {
        let flags = match self {
            How::Now => 0,
            How::Lazily => libc::MNT_DETACH,
            How::ByForce => libc::MNT_DETACH | libc::MNT_FORCE,
        };
        flags | libc::UMOUNT_NOFOLLOW
    }
}

/// Unmounts, in a process of its own that has nothing of the connection.
///
/// umount2(2) of a `fuseblk` mount waits, uninterruptibly, for the server's answer to
/// DESTROY. A thread of the server in there would keep the connection open when the server
/// is killed: the process could not end, nor could sync(2) of anybody on the machine. The
/// child closes its copies of this process's descriptors, and does not inherit the rings, which
/// would hold the connection as well: they are mapped so that a fork leaves them out
/// (`uring/ring.rs`). The rest of the memory it has a copy of, and lets alone.
pub(crate) fn unmount(target: &Path, how: How) -> io::Result<()> {
    let target = c_string(target.as_os_str().as_bytes())?;
    let (mut told, tell) = io::pipe()?;
    // SAFETY: the child makes system calls only, and ends by _exit.
    match unsafe { libc::fork() } {
        // No more processes here: better so than not at all.
        -1 => umount2(&target, how),
        0 => carry_out(&target, how, tell.as_raw_fd()),
        child => {
            drop(tell);
            let mut errno = [0];
            let read = told.read_exact(&mut errno);
            // SAFETY: waitpid may be told to store nothing. Its failure (SIGCHLD is ignored,
            // the kernel cleans up) tells nothing that matters.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            match (read, errno) {
                (Err(error), _) => Err(error),
                (Ok(()), [0]) => Ok(()),
                (Ok(()), [errno]) => Err(io::Error::from_raw_os_error(errno.into())),
            }
        }
    }
}

fn umount2(target: &CStr, how: How) -> io::Result<()> {
    // SAFETY: the pointer is to a NUL-terminated string that outlives the call.
    check(unsafe { libc::umount2(target.as_ptr(), how.flags()) })
}

/// The child of `unmount`: neither allocates nor takes locks, which others of the parent's
/// threads may have held.
fn carry_out(target: &CStr, how: How, tell: RawFd) -> ! {
    let keep = tell as libc::c_uint;
    // SAFETY: the descriptors are this process's copies, which nothing else here uses; the
    // byte that is written is alive.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, keep - 1, 0);
        libc::syscall(libc::SYS_close_range, keep + 1, libc::c_uint::MAX, 0);
        let done = libc::umount2(target.as_ptr(), how.flags());
        let errno = if done == 0 { 0 } else { *libc::__errno_location() as u8 };
        libc::write(tell, (&raw const errno).cast(), 1);
        libc::_exit(0)
    }
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
