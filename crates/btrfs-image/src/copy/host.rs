//! The system calls of the host's side that the standard library lacks. All `unsafe`
//! of this crate is here.
//!
//! No function follows a symbolic link in the last component of its path. What systems do in
//! their own ways each is in `system`.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use other as system;
pub(super) use system::{get_xattr, get_xattr_of, list_xattrs, list_xattrs_of};

use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown, lchown};
use std::path::Path;
use vfs::{Errno, FileKind, Timestamp};

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn privileged() -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// What is given attributes. A file that we have open is that file, whatever stands at its path by
/// now: who owns the directory may have put a program of his there, which must not become root's.
#[derive(Clone, Copy)]
pub(super) enum Target<'t> {
    Open(&'t File),
    /// Of this kind; not what a symbolic link there leads to.
    At(&'t Path, FileKind),
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
            Target::At(path, _) => lchown(path, uid, Some(gid)),
        }
    }

    pub(super) fn set_mode(self, mode: u32) -> io::Result<()> {
        match self {
            Target::Open(file) => file.set_permissions(Permissions::from_mode(mode)),
            Target::At(path, kind) => set_mode(path, mode, kind),
        }
    }

    pub(super) fn set_times(self, atime: Timestamp, mtime: Timestamp) -> io::Result<()> {
        let spec = |t: Timestamp| libc::timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
        let times = [spec(atime), spec(mtime)];
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        match self {
            // SAFETY: takes a descriptor, which `file` owns; `times` has the two members that are read.
            Target::Open(file) => done(unsafe { libc::futimens(file.as_raw_fd(), times.as_ptr()) }),
            Target::At(path, _) => {
                let path = c_path(path)?;
                let (dir, times) = (libc::AT_FDCWD, times.as_ptr());
                // SAFETY: `path` is NUL-terminated, and there are the two times that are read.
                done(unsafe { libc::utimensat(dir, path.as_ptr(), times, flags) })
            }
        }
    }

    /// Names of all extended attributes, sorted; empty where the host has none to offer.
    pub(super) fn list_xattrs(self) -> io::Result<Vec<Vec<u8>>> {
        match self {
            Target::Open(file) => system::list_xattrs_of(file),
            Target::At(path, _) => system::list_xattrs(path),
        }
    }

    pub(super) fn set_xattr(self, name: &[u8], value: &[u8]) -> io::Result<()> {
        match self {
            Target::Open(file) => system::set_xattr_of(file, name, value),
            Target::At(path, _) => system::set_xattr(path, name, value),
        }
    }

    pub(super) fn remove_xattr(self, name: &[u8]) -> io::Result<()> {
        match self {
            Target::Open(file) => system::remove_xattr_of(file, name),
            Target::At(path, _) => system::remove_xattr(path, name),
        }
    }
}

/// Sets the permissions of what is at `path`, if it is of that `kind`; a symbolic link there is not
/// followed, and has none itself.
pub fn set_mode(path: &Path, mode: u32, kind: FileKind) -> io::Result<()> {
    let fits = |meta: &Metadata| match FileKind::from_mode(meta.mode()) == Some(kind) {
        true => Ok(()),
        false => Err(io::Error::other("something else is there by now")),
    };
    system::set_mode(path, mode, kind, fits)
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

/// True where the target cannot have the attribute at all: its file system does not know
/// the name, or only the privileged may set it.
pub(super) fn no_such_xattr_here(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => true,
        Some(libc::EPERM) => !privileged(),
        _ => false,
    }
}

/// Opens a regular file to be read; never waits for the other end of a FIFO.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Makes a device, FIFO or socket; fails if the name is taken.
pub(super) fn make_node(path: &Path, mode: u32, rdev: libc::dev_t) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is NUL-terminated and outlives the call.
    done(unsafe { libc::mknod(path.as_ptr(), mode as libc::mode_t, rdev) })
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

    #[test]
    fn permissions_are_given_to_no_link_and_to_no_other_kind() {
        let dir = testkit::oracle::TempDir::new("set-mode").unwrap();
        let (file, link) = (dir.join("file"), dir.join("link"));
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mode = || std::fs::metadata(&file).unwrap().mode() & 0o7777;
        set_mode(&file, 0o640, FileKind::File).unwrap();
        assert_eq!(mode(), 0o640);
        for (path, kind) in [
            (&link, FileKind::File),
            (&link, FileKind::Symlink),
            (&link, FileKind::Dir),
            (&file, FileKind::Dir),
            (&file, FileKind::Fifo),
        ] {
            assert!(set_mode(path, 0o4777, kind).is_err(), "{kind:?}");
            assert_eq!(mode(), 0o640, "{kind:?}");
        }
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
