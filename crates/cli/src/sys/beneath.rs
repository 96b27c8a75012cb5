//! Files below a directory, by paths that a stranger may have made: nothing but directories is
//! passed through, and never the directory itself left.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The working directory is that of the open files: there is no /proc by name any more.
static AMONG_FILES: AtomicBool = AtomicBool::new(false);

/// The root directory becomes `dir`, for the whole process; what is open stays so. See chroot(2).
pub fn change_root(dir: &Path) -> io::Result<()> {
    std::env::set_current_dir("/proc/self/fd")?;
    std::os::unix::fs::chroot(dir)?;
    AMONG_FILES.store(true, Ordering::SeqCst);
    Ok(())
}

/// A path of an open file, for calls that know no descriptors.
fn path_of(file: &File) -> String {
    let dir = if AMONG_FILES.load(Ordering::SeqCst) { "." } else { "/proc/self/fd" };
    format!("{dir}/{}", file.as_raw_fd())
}

/// Opens `path` (empty for the directory itself) below `dir`. ELOOP: a symbolic link is in the
/// way; EXDEV: it leads out. One that is longer than the kernel takes at once is gone in steps.
pub fn open_beneath(dir: &File, path: &[u8], flags: i32, mode: u32) -> io::Result<File> {
    let (mut rest, mut step) = (path, None);
    while rest.len() >= libc::PATH_MAX as usize {
        let most = &rest[..libc::PATH_MAX as usize - 1];
        let Some(end) = most.iter().rposition(|byte| *byte == b'/').filter(|end| *end > 0) else {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        };
        let from = step.as_ref().unwrap_or(dir);
        step = Some(open_once(from, &rest[..end], libc::O_PATH | libc::O_DIRECTORY, 0)?);
        // More of them would be taken for the root directory.
        let name = rest[end..].iter().position(|byte| *byte != b'/');
        rest = name.map_or(&[][..], |at| &rest[end + at..]);
    }
    open_once(step.as_ref().unwrap_or(dir), rest, flags, mode)
}

/// The same, if it is of one of these kinds (of `S_IFMT`). EINVAL, EISDIR, ELOOP: it is another, and nothing was opened:
/// a device, which who made the name may have chosen, does something by that alone.
pub fn open_of_kind(dir: &File, path: &[u8], flags: i32, kinds: &[u32]) -> io::Result<File> {
    let found = open_beneath(dir, path, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    let kind = u32::from(stat(&found)?.stx_mode) & libc::S_IFMT;
    if !kinds.contains(&kind) {
        return Err(io::Error::from_raw_os_error(match kind {
            libc::S_IFDIR => libc::EISDIR,
            libc::S_IFLNK => libc::ELOOP,
            _ => libc::EINVAL,
        }));
    }
    let path = CString::new(path_of(&found))?;
    // SAFETY: the path is NUL-terminated.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
    // SAFETY: the call gave it to us alone.
    unsafe { opened(fd.into()) }
}

fn open_once(dir: &File, path: &[u8], flags: i32, mode: u32) -> io::Result<File> {
    let path = CString::new(if path.is_empty() { b"." } else { path })?;
    // SAFETY: plain data; all zeros is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.mode = mode.into();
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_XDEV;
    // SAFETY: the path is NUL-terminated, `how` is as long as is said, and both outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            dir.as_raw_fd(),
            path.as_ptr(),
            &how,
            size_of::<libc::open_how>(),
        )
    };
    // SAFETY: the call gave it to us alone.
    unsafe { opened(fd) }
}

/// What a system call answers that opens something.
///
/// # Safety
///
/// It was made just now, and nobody else has the descriptor.
pub(super) unsafe fn opened(fd: libc::c_long) -> io::Result<File> {
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as the caller says.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// A directory that names are made and looked up in; nothing below is passed through.
pub struct DirFd<'f>(pub &'f File);

fn name_of(name: &[u8]) -> io::Result<CString> {
    let plain = !name.is_empty() && !name.contains(&b'/') && name != b"..";
    if !plain {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(CString::new(name)?)
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Each takes one name in the directory, `.` for the directory itself; a symbolic link of that name
/// is not followed.
impl DirFd<'_> {
    /// Opens a directory, without openat2(2). EXDEV: another file system is mounted on it.
    pub fn open_dir(&self, name: &[u8]) -> io::Result<File> {
        let name = name_of(name)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        let fd = unsafe { libc::openat(self.0.as_raw_fd(), name.as_ptr(), flags) };
        // SAFETY: the call gave it to us alone.
        let file = unsafe { opened(fd.into()) }?;
        match file.metadata()?.dev() == self.0.metadata()?.dev() {
            true => Ok(file),
            false => Err(io::Error::from_raw_os_error(libc::EXDEV)),
        }
    }

    /// See mkdirat(2).
    pub fn mkdir(&self, name: &[u8], mode: u32) -> io::Result<()> {
        let name = name_of(name)?;
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        done(unsafe { libc::mkdirat(self.0.as_raw_fd(), name.as_ptr(), mode) })
    }

    /// See mknodat(2).
    pub fn mknod(&self, name: &[u8], mode: u32, device: u64) -> io::Result<()> {
        let name = name_of(name)?;
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        done(unsafe { libc::mknodat(self.0.as_raw_fd(), name.as_ptr(), mode, device) })
    }

    /// See symlinkat(2).
    pub fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        let (name, target) = (name_of(name)?, CString::new(target)?);
        // SAFETY: the descriptor is open, and both strings NUL-terminated.
        done(unsafe { libc::symlinkat(target.as_ptr(), self.0.as_raw_fd(), name.as_ptr()) })
    }

    /// `new` in `to` becomes another name of `name`; see linkat(2).
    pub fn link(&self, name: &[u8], to: &DirFd<'_>, new: &[u8]) -> io::Result<()> {
        let (name, new) = (name_of(name)?, name_of(new)?);
        let (from, to) = (self.0.as_raw_fd(), to.0.as_raw_fd());
        // SAFETY: both descriptors are open, and both names NUL-terminated.
        done(unsafe { libc::linkat(from, name.as_ptr(), to, new.as_ptr(), 0) })
    }

    /// See renameat(2).
    pub fn rename(&self, name: &[u8], to: &DirFd<'_>, new: &[u8]) -> io::Result<()> {
        let (name, new) = (name_of(name)?, name_of(new)?);
        let (from, to) = (self.0.as_raw_fd(), to.0.as_raw_fd());
        // SAFETY: both descriptors are open, and both names NUL-terminated.
        done(unsafe { libc::renameat(from, name.as_ptr(), to, new.as_ptr()) })
    }

    /// See unlinkat(2).
    pub fn unlink(&self, name: &[u8], is_dir: bool) -> io::Result<()> {
        let name = name_of(name)?;
        let flags = if is_dir { libc::AT_REMOVEDIR } else { 0 };
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        done(unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), flags) })
    }

    /// See fchownat(2).
    pub fn chown(&self, name: &[u8], uid: u32, gid: u32) -> io::Result<()> {
        let name = name_of(name)?;
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        done(unsafe { libc::fchownat(self.0.as_raw_fd(), name.as_ptr(), uid, gid, flags) })
    }

    /// See utimensat(2): last read, last change of content.
    pub fn set_times(&self, name: &[u8], times: [(i64, u32); 2]) -> io::Result<()> {
        let name = name_of(name)?;
        let times = times.map(|(sec, nanos)| libc::timespec { tv_sec: sec, tv_nsec: nanos.into() });
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: the descriptor is open, the name NUL-terminated, and there are two times.
        done(unsafe { libc::utimensat(self.0.as_raw_fd(), name.as_ptr(), times.as_ptr(), flags) })
    }

    /// The mode; ELOOP for a symbolic link, which has none.
    pub fn chmod(&self, name: &[u8], mode: u32) -> io::Result<()> {
        name_of(name)?;
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let file = open_beneath(self.0, name, flags, 0)?;
        if u32::from(stat(&file)?.stx_mode) & libc::S_IFMT == libc::S_IFLNK {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        let path = CString::new(path_of(&file))?;
        // SAFETY: the path is NUL-terminated.
        done(unsafe { libc::chmod(path.as_ptr(), mode) })
    }

    /// Names of extended attributes.
    pub fn xattrs(&self, name: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let path = self.through_proc(name)?;
        let mut names = vec![0u8; 1 << 16];
        // SAFETY: the path is NUL-terminated; at most `names.len()` bytes are written to `names`.
        let len =
            unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        let all = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(all.map(<[u8]>::to_vec).collect())
    }

    /// See lsetxattr(2).
    pub fn set_xattr(&self, name: &[u8], xattr: &[u8], value: &[u8]) -> io::Result<()> {
        let (path, xattr) = (self.through_proc(name)?, CString::new(xattr)?);
        let (data, len) = (value.as_ptr().cast(), value.len());
        // SAFETY: both strings are NUL-terminated; `len` bytes are read from `value`.
        done(unsafe { libc::lsetxattr(path.as_ptr(), xattr.as_ptr(), data, len, 0) })
    }

    /// See lremovexattr(2).
    pub fn remove_xattr(&self, name: &[u8], xattr: &[u8]) -> io::Result<()> {
        let (path, xattr) = (self.through_proc(name)?, CString::new(xattr)?);
        // SAFETY: both strings are NUL-terminated.
        done(unsafe { libc::lremovexattr(path.as_ptr(), xattr.as_ptr()) })
    }

    /// For calls that know no directory: the name by way of the open directory.
    fn through_proc(&self, name: &[u8]) -> io::Result<CString> {
        name_of(name)?;
        let path = [path_of(self.0).as_bytes(), b"/", name].concat();
        Ok(CString::new(path)?)
    }
}

/// Number, type, mode and owner; see statx(2). Unlike fstat(2) it asks for nothing that a mount
/// would have to ask its server for once the file was written.
pub fn stat(file: &File) -> io::Result<libc::statx> {
    // SAFETY: plain data; all zeros is a valid value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, flags) = (file.as_raw_fd(), libc::AT_EMPTY_PATH);
    let mask =
        libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID | libc::STATX_GID | libc::STATX_INO;
    // SAFETY: the descriptor is open, the path an empty string, and the call writes `stat`.
    done(unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, &mut stat) })?;
    Ok(stat)
}

/// See futimens(2): last read, last change of content.
pub fn set_file_times(file: &File, times: [(i64, u32); 2]) -> io::Result<()> {
    let times = times.map(|(sec, nanos)| libc::timespec { tv_sec: sec, tv_nsec: nanos.into() });
    // SAFETY: the descriptor is open, and there are two times.
    done(unsafe { libc::futimens(file.as_raw_fd(), times.as_ptr()) })
}

/// `FS_IOC_GETFLAGS`.
pub fn inode_flags(file: &File) -> io::Result<u32> {
    let mut flags: libc::c_long = 0;
    // SAFETY: writes at most a long.
    done(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &mut flags) })?;
    Ok(flags as u32)
}

/// `FS_IOC_SETFLAGS`.
pub fn set_inode_flags(file: &File, flags: u32) -> io::Result<()> {
    let flags = libc::c_long::from(flags);
    // SAFETY: reads at most a long.
    done(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &flags) })
}

/// An attribute of at most 64 KiB; `None`: it has none of that name. See fgetxattr(2).
pub fn xattr_of(file: &File, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0u8; 1 << 16];
    let (fd, room) = (file.as_raw_fd(), value.as_mut_ptr().cast());
    // SAFETY: the name is NUL-terminated; at most `value.len()` bytes are written to `value`.
    let len = unsafe { libc::fgetxattr(fd, name.as_ptr(), room, value.len()) };
    let Ok(len) = usize::try_from(len) else {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENODATA) { Ok(None) } else { Err(error) };
    };
    value.truncate(len);
    Ok(Some(value))
}

/// See fsetxattr(2).
pub fn set_xattr_of(file: &File, name: &CStr, value: &[u8]) -> io::Result<()> {
    let (fd, data) = (file.as_raw_fd(), value.as_ptr().cast());
    // SAFETY: the name is NUL-terminated; `len` bytes are read from `value`.
    done(unsafe { libc::fsetxattr(fd, name.as_ptr(), data, value.len(), 0) })
}

/// See fallocate(2).
pub fn fallocate(file: &File, mode: i32, offset: u64, len: u64) -> io::Result<()> {
    let signed = |n: u64| i64::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG));
    // SAFETY: takes a descriptor that is open.
    done(unsafe { libc::fallocate(file.as_raw_fd(), mode, signed(offset)?, signed(len)?) })
}

/// Copies inside of the file system; bytes copied, 0 at the end of the source. See
/// copy_file_range(2).
pub fn copy_range(from: (&File, u64), to: (&File, u64), len: u64) -> io::Result<u64> {
    let signed = |n: u64| i64::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG));
    let (mut at, mut target) = (signed(from.1)?, signed(to.1)?);
    let most = usize::try_from(len).unwrap_or(usize::MAX).min(1 << 30);
    let (source, file) = (from.0.as_raw_fd(), to.0.as_raw_fd());
    // SAFETY: both descriptors are open, and both offsets are ours.
    let copied = unsafe { libc::copy_file_range(source, &mut at, file, &mut target, most, 0) };
    u64::try_from(copied).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_opened_beside_openat2_and_nothing_that_is_mounted() {
        let top = File::open("/").unwrap();
        let opened = |dir: &File, name: &str| {
            let opened = DirFd(dir).open_dir(name.as_bytes());
            opened.map(drop).map_err(|e| e.raw_os_error())
        };
        // Not so where the tests have no /proc.
        if !top.metadata().is_ok_and(|meta| meta.dev() == std::fs::metadata("/proc").unwrap().dev())
        {
            assert_eq!(opened(&top, "proc"), Err(Some(libc::EXDEV)));
        }
        let here = File::open(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert_eq!(opened(&here, "src"), Ok(()));
        assert_eq!(opened(&here, "Cargo.toml"), Err(Some(libc::ENOTDIR)));
        assert_eq!(opened(&here, ".."), Err(Some(libc::EINVAL)));
    }
}
