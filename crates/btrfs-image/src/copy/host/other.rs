//! Systems other than Linux: their extended attributes are not carried over (each is told as
//! left out), and device numbers are as their C library makes them.

use super::dir::HostStat;
use super::{c_path, done, link_by_path};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

fn none<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// A directory is opened to be listed: not all systems know another way.
pub(super) const PASS: libc::c_int = libc::O_RDONLY;

pub(super) fn clear_errno() {
    // SAFETY: it is this thread's own number.
    unsafe { *libc::__error() = 0 };
}

/// There are none.
pub(super) fn nameless(_: &File) -> io::Result<File> {
    none()
}

pub(super) fn name_file(_: &File, _: &File, _: &CStr) -> io::Result<()> {
    none()
}

/// What is no file and no directory: a name in a directory that is open. It is never what a link of that
/// name leads to, but who may rename there can put something else in its place.
#[derive(Debug)]
pub(crate) struct Thing {
    dir: File,
    name: CString,
}

impl Thing {
    pub(crate) fn open(dir: &File, name: &CStr) -> io::Result<Thing> {
        Ok(Thing { dir: dir.try_clone()?, name: name.to_owned() })
    }

    pub(crate) fn stat(&self) -> io::Result<HostStat> {
        HostStat::of_name(self.dir.as_raw_fd(), &self.name, libc::AT_SYMLINK_NOFOLLOW)
    }

    pub(crate) fn link_target(&self) -> io::Result<Vec<u8>> {
        let (mut target, dir) = (vec![0; libc::PATH_MAX as usize], self.dir.as_raw_fd());
        let (name, place) = (self.name.as_ptr(), target.as_mut_ptr().cast());
        // SAFETY: the descriptor is open, the name NUL-terminated; at most so many bytes are written to
        // `target` as it has.
        let len = unsafe { libc::readlinkat(dir, name, place, target.len()) };
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        target.truncate(len);
        Ok(target)
    }

    pub(crate) fn chown(&self, uid: Option<u32>, gid: u32) -> io::Result<()> {
        let (dir, name, flags) =
            (self.dir.as_raw_fd(), self.name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        done(unsafe { libc::fchownat(dir, name, uid.unwrap_or(u32::MAX), gid, flags) })
    }

    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        let (dir, name, flags) =
            (self.dir.as_raw_fd(), self.name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        done(unsafe { libc::fchmodat(dir, name, mode as libc::mode_t, flags) })
    }

    pub(crate) fn set_times(&self, times: &[libc::timespec; 2]) -> io::Result<()> {
        let (dir, name, flags) =
            (self.dir.as_raw_fd(), self.name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
        // SAFETY: the descriptor is open, the name NUL-terminated, and there are two times.
        done(unsafe { libc::utimensat(dir, name, times.as_ptr(), flags) })
    }

    pub(crate) fn list_xattrs(&self) -> io::Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    pub(crate) fn get_xattr(&self, _: &[u8]) -> io::Result<Vec<u8>> {
        none()
    }

    pub(crate) fn set_xattr(&self, _: &[u8], _: &[u8]) -> io::Result<()> {
        none()
    }

    pub(crate) fn remove_xattr(&self, _: &[u8]) -> io::Result<()> {
        none()
    }
}

/// Here the rename tells.
pub(super) fn is_kept(_: &File, _: &CStr) -> io::Result<bool> {
    Ok(false)
}

/// Makes `name` in `dir` another name of what is at `path`, if that is `key`; false if it is not.
pub(super) fn link(path: &Path, key: (u64, u64), dir: &File, name: &CStr) -> io::Result<bool> {
    let path = c_path(path)?;
    match HostStat::of_name(libc::AT_FDCWD, &path, libc::AT_SYMLINK_NOFOLLOW) {
        Err(e) if e.raw_os_error() == Some(libc::ENAMETOOLONG) => Err(e),
        Ok(stat) if stat.key == key => link_by_path(&path, key, dir, name),
        _ => Ok(false),
    }
}

pub(crate) fn list_xattrs_of(_: &File) -> io::Result<Vec<Vec<u8>>> {
    Ok(Vec::new())
}

pub(crate) fn get_xattr_of(_: &File, _: &[u8]) -> io::Result<Vec<u8>> {
    none()
}

pub(crate) fn set_xattr_of(_: &File, _: &[u8], _: &[u8]) -> io::Result<()> {
    none()
}

pub(crate) fn remove_xattr_of(_: &File, _: &[u8]) -> io::Result<()> {
    none()
}

/// Major and minor number.
pub(crate) fn numbers(rdev: u64) -> (u32, u32) {
    let rdev = rdev as libc::dev_t;
    (libc::major(rdev) as u32, libc::minor(rdev) as u32)
}

pub(crate) fn device(major: u32, minor: u32) -> libc::dev_t {
    libc::makedev(major as _, minor as _)
}
