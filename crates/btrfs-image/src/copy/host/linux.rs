//! Extended attributes, device numbers and what is opened as no file, of Linux.

use super::dir::{HostStat, open_at};
use super::{c_path, done, link_by_path};
use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn length(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// To pass through a directory no right to list it is needed.
pub(super) const PASS: libc::c_int = libc::O_PATH;

pub(super) fn clear_errno() {
    // SAFETY: it is this thread's own number.
    unsafe { *libc::__errno_location() = 0 };
}

/// What is no file and no directory, open: that very thing, whatever has its name by now.
///
/// Without /proc it has no extended attributes here.
#[derive(Debug)]
pub(crate) struct Thing(File);

impl Thing {
    pub(crate) fn open(dir: &File, name: &CStr) -> io::Result<Thing> {
        open_at(dir, name, libc::O_PATH | libc::O_NOFOLLOW, 0).map(Thing)
    }

    pub(crate) fn stat(&self) -> io::Result<HostStat> {
        HostStat::of_file(&self.0)
    }

    pub(crate) fn link_target(&self) -> io::Result<Vec<u8>> {
        let (mut target, fd) = (vec![0; libc::PATH_MAX as usize], self.0.as_raw_fd());
        // SAFETY: the descriptor is open; at most so many bytes are written to `target` as it has.
        let len =
            unsafe { libc::readlinkat(fd, c"".as_ptr(), target.as_mut_ptr().cast(), target.len()) };
        target.truncate(length(len)?);
        Ok(target)
    }

    pub(crate) fn chown(&self, uid: Option<u32>, gid: u32) -> io::Result<()> {
        let (fd, uid) = (self.0.as_raw_fd(), uid.unwrap_or(u32::MAX));
        // SAFETY: the descriptor is open, and the path an empty string.
        done(unsafe { libc::fchownat(fd, c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH) })
    }

    /// A symbolic link has no permissions.
    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        let path = through_proc(&self.0)?;
        // SAFETY: the path is NUL-terminated and outlives the call.
        match done(unsafe { libc::chmod(path.as_ptr(), mode) }) {
            // No /proc here: since Linux 6.6 that needs none.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let (fd, flags) = (self.0.as_raw_fd(), libc::AT_EMPTY_PATH);
                let call = libc::SYS_fchmodat2;
                // SAFETY: the descriptor is open, and the path an empty string.
                let set = unsafe { libc::syscall(call, fd, c"".as_ptr(), mode, flags) };
                done(set as libc::c_int)
            }
            set => set,
        }
    }

    pub(crate) fn set_times(&self, times: &[libc::timespec; 2]) -> io::Result<()> {
        let (fd, flags) = (self.0.as_raw_fd(), libc::AT_EMPTY_PATH);
        // SAFETY: the descriptor is open, the path an empty string, and there are two times.
        let set = unsafe { libc::utimensat(fd, c"".as_ptr(), times.as_ptr(), flags) };
        match done(set) {
            // A kernel before 5.8.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                let path = through_proc(&self.0)?;
                let (dir, times) = (libc::AT_FDCWD, times.as_ptr());
                // SAFETY: the path is NUL-terminated, and there are two times.
                done(unsafe { libc::utimensat(dir, path.as_ptr(), times, 0) })
            }
            set => set,
        }
    }

    pub(crate) fn list_xattrs(&self) -> io::Result<Vec<Vec<u8>>> {
        let path = through_proc(&self.0)?;
        let list = sized(|buf| {
            // SAFETY: `path` is NUL-terminated; the kernel writes at most `buf.len()` bytes
            // into `buf`, which is borrowed for the call.
            unsafe { libc::listxattr(path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }
        });
        match list {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            list => names(list),
        }
    }

    pub(crate) fn get_xattr(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        let (path, name) = (through_proc(&self.0)?, CString::new(name)?);
        sized(|buf| {
            let (path, name) = (path.as_ptr(), name.as_ptr());
            // SAFETY: both strings are NUL-terminated and outlive the call; the kernel writes
            // at most `buf.len()` bytes into `buf`.
            unsafe { libc::getxattr(path, name, buf.as_mut_ptr().cast(), buf.len()) }
        })
    }

    pub(crate) fn set_xattr(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let (path, name) = (through_proc(&self.0)?, CString::new(name)?);
        let (path, name) = (path.as_ptr(), name.as_ptr());
        // SAFETY: both strings are NUL-terminated, `value` is readable for its length, and
        // all outlive the call.
        let set =
            done(unsafe { libc::setxattr(path, name, value.as_ptr().cast(), value.len(), 0) });
        set.map_err(|e| match e.kind() {
            ErrorKind::NotFound => io::Error::from_raw_os_error(libc::EOPNOTSUPP),
            _ => e,
        })
    }

    pub(crate) fn remove_xattr(&self, name: &[u8]) -> io::Result<()> {
        let (path, name) = (through_proc(&self.0)?, CString::new(name)?);
        // SAFETY: both strings are NUL-terminated and outlive the call.
        done(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })
    }
}

/// A file without a name could not be given one: the next would not be, either.
static STAYS_NAMELESS: AtomicBool = AtomicBool::new(false);

/// A file in `dir`, to be written, for its owner alone, that has no name. Without /proc it could be given none.
pub(super) fn nameless(dir: &File) -> io::Result<File> {
    if STAYS_NAMELESS.load(Ordering::Relaxed) {
        return Err(ErrorKind::Unsupported.into());
    }
    let file = open_at(dir, c".", libc::O_WRONLY | libc::O_TMPFILE, 0o600)?;
    let there = through_proc(&file)?;
    HostStat::of_name(libc::AT_FDCWD, &there, libc::AT_SYMLINK_NOFOLLOW).map(|_| file)
}

pub(super) fn name_file(file: &File, dir: &File, name: &CStr) -> io::Result<()> {
    let (from, dir, flags) = (through_proc(file)?, dir.as_raw_fd(), libc::AT_SYMLINK_FOLLOW);
    // SAFETY: the descriptor is open, and both names NUL-terminated.
    let named =
        done(unsafe { libc::linkat(libc::AT_FDCWD, from.as_ptr(), dir, name.as_ptr(), flags) });
    named.inspect_err(|e| {
        let taken = e.kind() == ErrorKind::AlreadyExists;
        STAYS_NAMELESS.fetch_or(!taken, Ordering::Relaxed);
    })
}

/// For calls that take no such descriptor: what it leads to is the very thing, and followed no further.
fn through_proc(file: &File) -> io::Result<CString> {
    Ok(CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?)
}

/// Whether `name` in `dir`, or `dir` itself where that is empty, is append-only or immutable. What cannot
/// be asked is neither.
pub(super) fn is_kept(dir: &File, name: &CStr) -> io::Result<bool> {
    // SAFETY: plain data; all zeros is a valid value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW;
    let fd = dir.as_raw_fd();
    // SAFETY: the descriptor is open, the name NUL-terminated, and the call writes `stat`.
    match done(unsafe { libc::statx(fd, name.as_ptr(), flags, 0, &raw mut stat) }) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::ENOENT)) => Ok(false),
        // Profiles of containers that do not know the call.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) => Ok(false),
        Err(e) => Err(e),
        Ok(()) => {
            let kept = (libc::STATX_ATTR_APPEND | libc::STATX_ATTR_IMMUTABLE) as u64;
            Ok(stat.stx_attributes & kept != 0)
        }
    }
}

/// Makes `name` in `dir` another name of what is at `path`, if that is `key`; false if it is not.
pub(super) fn link(path: &Path, key: (u64, u64), dir: &File, name: &CStr) -> io::Result<bool> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let there = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(e) if e.raw_os_error() == Some(libc::ENAMETOOLONG) => return Err(e),
        Err(_) => return Ok(false),
        Ok(there) => there,
    };
    if HostStat::of_file(&there)?.key != key {
        return Ok(false);
    }
    let (from, to) = (through_proc(&there)?, dir.as_raw_fd());
    let link = |from_dir: libc::c_int, from: &CStr, flags: libc::c_int| {
        // SAFETY: the descriptors are open, and both names NUL-terminated.
        done(unsafe { libc::linkat(from_dir, from.as_ptr(), to, name.as_ptr(), flags) })
    };
    let is_missing = |e: &io::Error| e.kind() == ErrorKind::NotFound;
    match link(libc::AT_FDCWD, &from, libc::AT_SYMLINK_FOLLOW) {
        // No /proc here: root may do it so, and since Linux 6.10 everybody.
        Err(e) if is_missing(&e) => match link(there.as_raw_fd(), c"", libc::AT_EMPTY_PATH) {
            Err(e) if is_missing(&e) => link_by_path(&c_path(path)?, key, dir, name),
            made => made.map(|()| true),
        },
        made => made.map(|()| true),
    }
}

/// Names of all extended attributes, sorted; empty where the host has none to offer.
pub(crate) fn list_xattrs_of(file: &File) -> io::Result<Vec<Vec<u8>>> {
    names(sized(|buf| {
        // SAFETY: takes a descriptor, which `file` owns; the kernel writes at most
        // `buf.len()` bytes into `buf`, which is borrowed for the call.
        unsafe { libc::flistxattr(file.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) }
    }))
}

fn names(list: io::Result<Vec<u8>>) -> io::Result<Vec<Vec<u8>>> {
    let list = match list {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Vec::new(),
        other => other?,
    };
    let names = list.split(|b| *b == 0).filter(|n| !n.is_empty());
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.sort();
    Ok(names)
}

/// Of an open file.
pub(crate) fn get_xattr_of(file: &File, name: &[u8]) -> io::Result<Vec<u8>> {
    let name = CString::new(name)?;
    sized(|buf| {
        let (fd, value) = (file.as_raw_fd(), buf.as_mut_ptr().cast());
        // SAFETY: takes a descriptor, which `file` owns; `name` is NUL-terminated and outlives the call; the
        // kernel writes at most `buf.len()` bytes into `buf`.
        unsafe { libc::fgetxattr(fd, name.as_ptr(), value, buf.len()) }
    })
}

/// Calls with growing buffers until the answer fits.
fn sized(call: impl Fn(&mut [u8]) -> libc::ssize_t) -> io::Result<Vec<u8>> {
    let mut size = 1024;
    loop {
        let mut buf = vec![0; size];
        match length(call(&mut buf)) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            // 64 KiB is the kernel's limit for values and lists.
            Err(e) if e.raw_os_error() == Some(libc::ERANGE) && size < 1 << 17 => size *= 8,
            Err(e) => return Err(e),
        }
    }
}

/// Of an open file.
pub(crate) fn set_xattr_of(file: &File, name: &[u8], value: &[u8]) -> io::Result<()> {
    let (fd, name) = (file.as_raw_fd(), CString::new(name)?);
    let (data, len) = (value.as_ptr().cast(), value.len());
    // SAFETY: takes a descriptor, which `file` owns; `name` is NUL-terminated, `value` is
    // readable for its length, and both outlive the call.
    done(unsafe { libc::fsetxattr(fd, name.as_ptr(), data, len, 0) })
}

pub(crate) fn remove_xattr_of(file: &File, name: &[u8]) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: takes a descriptor, which `file` owns; `name` is NUL-terminated and outlives the call.
    done(unsafe { libc::fremovexattr(file.as_raw_fd(), name.as_ptr()) })
}

/// Major and minor number.
pub(super) fn numbers(rdev: u64) -> (u32, u32) {
    (libc::major(rdev), libc::minor(rdev))
}

pub(super) fn device(major: u32, minor: u32) -> libc::dev_t {
    libc::makedev(major, minor)
}
