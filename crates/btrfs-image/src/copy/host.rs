//! The system calls of the host's side that the standard library lacks. All `unsafe`
//! of this crate is here.
//!
//! What is on the host is reached by descriptors (`dir`). What systems do in their own ways each is in
//! `system`.

mod dir;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

pub(super) use dir::replaced;
pub use dir::{HostDir, HostPlace, HostStat};
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use other as system;
pub(super) use system::Thing;

use std::ffi::{CStr, CString};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::Path;
use vfs::{Errno, Timestamp};

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes `name` in `dir` another name of what is at `path` and was `key`, false if it is not. What comes in its
/// place at that moment is no copy: its new name goes again.
fn link_by_path(path: &CStr, key: (u64, u64), dir: &File, name: &CStr) -> io::Result<bool> {
    let to = dir.as_raw_fd();
    // SAFETY: the descriptor is open, and both names NUL-terminated.
    done(unsafe { libc::linkat(libc::AT_FDCWD, path.as_ptr(), to, name.as_ptr(), 0) })?;
    if HostStat::of_name(to, name, libc::AT_SYMLINK_NOFOLLOW)?.key == key {
        return Ok(true);
    }
    // SAFETY: the descriptor is open, and the name NUL-terminated.
    done(unsafe { libc::unlinkat(to, name.as_ptr(), 0) })?;
    Ok(false)
}

/// Hears what only who closes a file is told: a network's or a user's file system may find out then alone that it
/// has no room for what was written. The file stays open.
pub fn settled(file: impl AsFd) -> io::Result<()> {
    let copy = file.as_fd().try_clone_to_owned()?.into_raw_fd();
    // SAFETY: the descriptor is ours, and nobody else's.
    done(unsafe { libc::close(copy) })
}

pub(super) fn privileged() -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// What has attributes or is given some, open: it is that one, whatever has its name by now. Who owns the directory may
/// have put a program of his there, which must not become root's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'t> {
    /// A file or a directory.
    Open(&'t File),
    /// What is neither.
    Thing(&'t Thing),
}

impl Target<'_> {
    /// Gives owner and group; false where that is left to root, and only the group, if the
    /// caller is in it, could be given.
    pub(super) fn give(self, uid: u32, gid: u32) -> io::Result<bool> {
        let refused = |e: &io::Error| {
            !privileged() && matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL))
        };
        match self.chown(Some(uid), gid) {
            Err(e) if refused(&e) => match self.chown(None, gid) {
                Err(e) if !refused(&e) => Err(e),
                _ => Ok(false),
            },
            other => other.map(|()| true),
        }
    }

    fn chown(self, uid: Option<u32>, gid: u32) -> io::Result<()> {
        match self {
            Target::Open(file) => fchown(file, uid, Some(gid)),
            Target::Thing(thing) => thing.chown(uid, gid),
        }
    }

    pub(super) fn set_mode(self, mode: u32) -> io::Result<()> {
        match self {
            Target::Open(file) => file.set_permissions(Permissions::from_mode(mode)),
            Target::Thing(thing) => thing.set_mode(mode),
        }
    }

    pub(super) fn set_times(self, atime: Timestamp, mtime: Timestamp) -> io::Result<()> {
        let spec = |t: Timestamp| libc::timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
        let times = [spec(atime), spec(mtime)];
        match self {
            // SAFETY: takes a descriptor, which `file` owns; `times` has the two members that are read.
            Target::Open(file) => done(unsafe { libc::futimens(file.as_raw_fd(), times.as_ptr()) }),
            Target::Thing(thing) => thing.set_times(&times),
        }
    }

    /// Names of all extended attributes, sorted; empty where the host has none to offer.
    pub(super) fn list_xattrs(self) -> io::Result<Vec<Vec<u8>>> {
        match self {
            Target::Open(file) => system::list_xattrs_of(file),
            Target::Thing(thing) => thing.list_xattrs(),
        }
    }

    pub(super) fn get_xattr(self, name: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Target::Open(file) => system::get_xattr_of(file, name),
            Target::Thing(thing) => thing.get_xattr(name),
        }
    }

    pub(super) fn set_xattr(self, name: &[u8], value: &[u8]) -> io::Result<()> {
        match self {
            Target::Open(file) => system::set_xattr_of(file, name, value),
            Target::Thing(thing) => thing.set_xattr(name, value),
        }
    }

    pub(super) fn remove_xattr(self, name: &[u8]) -> io::Result<()> {
        match self {
            Target::Open(file) => system::remove_xattr_of(file, name),
            Target::Thing(thing) => thing.remove_xattr(name),
        }
    }
}

/// True for the attributes that a new file may inherit from its directory.
pub(super) fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// True where a name that was listed has no value that can be read.
pub(super) fn cannot_be_read(error: &io::Error) -> bool {
    let errno = error.raw_os_error().and_then(Errno::from_code);
    matches!(errno, Some(Errno::ENODATA | Errno::EOPNOTSUPP))
}

/// True where there is no such attribute, or none any more.
pub(super) fn has_gone(error: &io::Error) -> bool {
    error.raw_os_error().and_then(Errno::from_code) == Some(Errno::ENODATA)
}

/// True where the target cannot have the attribute at all: its file system does not know
/// the name, or only the privileged may set it.
pub(super) fn no_such_xattr_here(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => true,
        Some(libc::EPERM) => !privileged(),
        _ => false,
    }
}

/// Where the next data at or behind `offset` starts; `None` if there is none.
pub(super) fn seek_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, offset, libc::SEEK_DATA) {
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        // A file system that does not tell: all is data.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(Some(offset)),
        other => other.map(Some),
    }
}

/// Where the next hole behind `offset` starts, at the latest at `end`.
pub(super) fn seek_hole(file: &File, offset: u64, end: u64) -> io::Result<u64> {
    match seek(file, offset, libc::SEEK_HOLE) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENXIO)) => Ok(end),
        other => other.map(|at| at.min(end)),
    }
}

fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<u64> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: lseek takes a descriptor, which `file` owns, and integers.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    u64::try_from(at).map_err(|_| io::Error::last_os_error())
}

/// The 32-bit form of a device number that volumes store.
pub(super) fn rdev_to_volume(rdev: u64) -> u32 {
    let (major, minor) = system::numbers(rdev);
    minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xFFF00) << 12
}

/// The host's form of a device number from a volume.
pub(super) fn rdev_to_host(rdev: u32) -> libc::dev_t {
    system::device(rdev >> 8 & 0xFFF, rdev & 0xFF | rdev >> 12 & 0xFFF00)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::FileKind;

    /// Whoever owns the directory can put something else at the name of what was just made.
    #[test]
    fn attributes_go_to_what_was_made_and_not_to_what_has_its_name() {
        let top = testkit::oracle::TempDir::new("thing").unwrap();
        let dir = HostDir::open(top.path()).unwrap();
        for kind in [FileKind::Fifo, FileKind::Symlink] {
            let make = |name: &[u8]| match kind {
                FileKind::Fifo => dir.make_node(name, kind, 0).unwrap(),
                _ => dir.make_symlink(name, b"nowhere").unwrap(),
            };
            drop(make(b"other"));
            let made = make(b"name");
            dir.rename(b"name", b"away").unwrap();
            dir.rename(b"other", b"name").unwrap();
            let stat = |name: &[u8]| dir.stat(name, false).unwrap().unwrap();
            let (before, at) = (stat(b"name"), Timestamp { secs: 7, nanos: 9 });
            let target = Target::Thing(&made);
            if privileged() {
                target.give(12, 34).unwrap();
                target.set_xattr(b"trusted.x", b"1").unwrap();
                assert_eq!(target.get_xattr(b"trusted.x").unwrap(), b"1");
                assert_eq!(stat(b"away").gid, 34);
            }
            if kind == FileKind::Fifo {
                target.set_mode(0o666).unwrap();
                assert_eq!(stat(b"away").mode & 0o777, 0o666);
            }
            target.set_times(at, at).unwrap();
            assert_eq!((stat(b"away").atime, stat(b"away").mtime), (at, at));
            assert_eq!(stat(b"name"), before);
            dir.remove(b"name").unwrap();
            dir.remove(b"away").unwrap();
        }
    }

    #[test]
    fn paths_are_directories_with_a_name_or_directories() {
        let top = testkit::oracle::TempDir::new("place").unwrap();
        let (file, link) = (top.join("file"), top.join("link"));
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(top.path(), &link).unwrap();
        let place = |path: &Path| match HostDir::place(path) {
            Ok(HostPlace::Name(dir, name)) => {
                format!("{} in {}", name.escape_ascii(), dir.path().display())
            }
            Ok(HostPlace::NewDir(dir, name)) => {
                format!("{}/ in {}", name.escape_ascii(), dir.path().display())
            }
            Ok(HostPlace::Dir(dir)) => dir.path().display().to_string(),
            Err(error) => error.kind().to_string(),
        };
        let at = top.path().display().to_string();
        let below = |name: &str| place(Path::new(&format!("{at}/{name}")));
        for name in ["file", "link", "new"] {
            assert_eq!(below(name), format!("{name} in {at}/"));
        }
        assert_eq!(below("new//"), format!("new/ in {at}/"));
        assert_eq!((below("link/"), below(".")), (format!("{at}/link/"), format!("{at}/.")));
        assert_eq!(below("file/"), "not a directory");
        assert_eq!(below("none/file"), "entity not found");
        assert_eq!(place(Path::new("name")), "name in ");
        assert_eq!(place(Path::new("")), "entity not found");
    }

    /// The way up leads to the directory that it was, or nowhere.
    #[test]
    fn a_directory_is_left_to_the_one_that_it_was_in() {
        let top = testkit::oracle::TempDir::new("above").unwrap();
        let dir = HostDir::open(top.path()).unwrap();
        let key = HostStat::of_file(dir.file()).unwrap().key;
        let (one, other) = (dir.make_dir(b"one").unwrap(), dir.make_dir(b"other").unwrap());
        assert_eq!(one.above(key, top.path()).unwrap().path(), top.path());
        std::fs::rename(one.path(), other.path().join("moved")).unwrap();
        assert!(one.above(key, top.path()).is_err());
    }

    #[test]
    fn device_numbers_survive_the_way_there_and_back() {
        for (major, minor) in [(1, 3), (8, 17), (259, 0), (4095, 1_048_575), (0, 0), (7, 256)] {
            let host = libc::makedev(major, minor);
            assert_eq!(rdev_to_host(rdev_to_volume(host)), host);
        }
        assert_eq!(rdev_to_volume(libc::makedev(8, 1)), 0x801);
        assert_eq!(rdev_to_volume(libc::makedev(1, 0x12345)), 0x1230_0145);
    }
}
