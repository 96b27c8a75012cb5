//! The system calls, one safe function each.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, c_uint};
use vfs::{Attr, Errno, FileKind, FsError, Ino, Result, StatFs, Timestamp};

/// The calling thread's last error, as an `FsError` with the same errno.
pub(super) fn last_error() -> FsError {
    from_io(io::Error::last_os_error())
}

pub(super) fn from_io(error: io::Error) -> FsError {
    match error.raw_os_error().and_then(Errno::from_code) {
        Some(errno) => FsError::Posix(errno),
        None => FsError::Io { context: "system call".to_owned(), source: error },
    }
}

fn check(ret: c_int) -> Result<c_int> {
    if ret < 0 { Err(last_error()) } else { Ok(ret) }
}

fn check_len(ret: isize) -> Result<usize> {
    usize::try_from(ret).map_err(|_| last_error())
}

pub(super) fn cstring(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Errno::EINVAL.into())
}

/// A path that reaches the very inode of `fd`, whatever became of its name.
pub(super) fn proc_path(fd: &OwnedFd) -> CString {
    let text = format!("/proc/self/fd/{}", fd.as_raw_fd());
    CString::new(text).unwrap_or_default()
}

fn owned(ret: c_int) -> Result<OwnedFd> {
    // SAFETY: `check` passes only a descriptor that the kernel just made for us.
    check(ret).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn open(path: &CStr, flags: c_int, mode: c_uint) -> Result<OwnedFd> {
    // SAFETY: the path is NUL-terminated and lives through the call.
    owned(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) })
}

pub(super) fn openat(dir: &OwnedFd, name: &CStr, flags: c_int) -> Result<OwnedFd> {
    // SAFETY: as `open`; `dir` is an open descriptor.
    owned(unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC) })
}

pub(super) fn mknodat(dir: &OwnedFd, name: &CStr, mode: u32, rdev: u64) -> Result<()> {
    // SAFETY: the name is NUL-terminated; `dir` is open.
    check(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), mode, rdev) }).map(|_| ())
}

pub(super) fn mkdirat(dir: &OwnedFd, name: &CStr, mode: u32) -> Result<()> {
    // SAFETY: as `mknodat`.
    check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) }).map(|_| ())
}

pub(super) fn symlinkat(target: &CStr, dir: &OwnedFd, name: &CStr) -> Result<()> {
    // SAFETY: both strings are NUL-terminated; `dir` is open.
    check(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), name.as_ptr()) }).map(|_| ())
}

pub(super) fn link(from: &OwnedFd, dir: &OwnedFd, name: &CStr) -> Result<()> {
    let (from, flags) = (proc_path(from), libc::AT_SYMLINK_FOLLOW);
    let fd = dir.as_raw_fd();
    // SAFETY: both strings are NUL-terminated; `dir` is open.
    let ret = unsafe { libc::linkat(libc::AT_FDCWD, from.as_ptr(), fd, name.as_ptr(), flags) };
    check(ret).map(|_| ())
}

pub(super) fn unlinkat(dir: &OwnedFd, name: &CStr, flags: c_int) -> Result<()> {
    // SAFETY: as `mknodat`.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) }).map(|_| ())
}

pub(super) fn renameat2(
    from: &OwnedFd,
    name: &CStr,
    to: &OwnedFd,
    new_name: &CStr,
    flags: c_uint,
) -> Result<()> {
    let (a, b) = (from.as_raw_fd(), to.as_raw_fd());
    // SAFETY: both names are NUL-terminated and both descriptors open.
    check(unsafe { libc::renameat2(a, name.as_ptr(), b, new_name.as_ptr(), flags) }).map(|_| ())
}

pub(super) fn readlink(fd: &OwnedFd) -> Result<Vec<u8>> {
    let mut buf = vec![0u8; libc::PATH_MAX as usize];
    let (at, len) = (buf.as_mut_ptr().cast(), buf.len());
    // SAFETY: the kernel writes at most `len` bytes to `buf`.
    let len = check_len(unsafe { libc::readlinkat(fd.as_raw_fd(), c"".as_ptr(), at, len) })?;
    buf.truncate(len);
    Ok(buf)
}

fn timestamp(time: libc::statx_timestamp) -> Timestamp {
    Timestamp { secs: time.tv_sec, nanos: time.tv_nsec }
}

/// The kernel's 32-bit encoding of a device number.
fn encode_rdev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Device numbers of the inode's file system, its inode number there, and its
/// attributes with that number.
pub(super) fn statx(fd: &OwnedFd) -> Result<((u32, u32), Attr)> {
    // SAFETY: all-zero bytes are a valid `statx`.
    let mut raw: libc::statx = unsafe { std::mem::zeroed() };
    let (mask, flags) = (libc::STATX_BASIC_STATS | libc::STATX_BTIME, libc::AT_EMPTY_PATH);
    // SAFETY: the kernel fills `raw`, which lives through the call.
    check(unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, mask, &mut raw) })?;
    let kind = FileKind::from_mode(u32::from(raw.stx_mode)).ok_or(Errno::EUCLEAN)?;
    let attr = Attr {
        ino: Ino(raw.stx_ino),
        kind,
        perm: raw.stx_mode & 0o7777,
        nlink: raw.stx_nlink,
        uid: raw.stx_uid,
        gid: raw.stx_gid,
        rdev: encode_rdev(raw.stx_rdev_major, raw.stx_rdev_minor),
        size: raw.stx_size,
        blocks: raw.stx_blocks,
        blksize: raw.stx_blksize,
        atime: timestamp(raw.stx_atime),
        mtime: timestamp(raw.stx_mtime),
        ctime: timestamp(raw.stx_ctime),
        btime: timestamp(raw.stx_btime),
        attributes: raw.stx_attributes,
    };
    Ok(((raw.stx_dev_major, raw.stx_dev_minor), attr))
}

pub(super) fn chown(fd: &OwnedFd, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    let (uid, gid) = (uid.unwrap_or(u32::MAX), gid.unwrap_or(u32::MAX));
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: the path is a NUL-terminated literal.
    check(unsafe { libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), uid, gid, flags) }).map(|_| ())
}

pub(super) fn chmod(fd: &OwnedFd, perm: u16) -> Result<()> {
    // SAFETY: the path is NUL-terminated and lives through the call.
    check(unsafe { libc::chmod(proc_path(fd).as_ptr(), u32::from(perm)) }).map(|_| ())
}

pub(super) fn utimens(fd: &OwnedFd, times: [libc::timespec; 2]) -> Result<()> {
    let (path, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
    // SAFETY: `times` are two timespecs, as the call expects.
    check(unsafe { libc::utimensat(fd.as_raw_fd(), path, times.as_ptr(), flags) }).map(|_| ())
}

pub(super) fn truncate(fd: &OwnedFd, size: i64) -> Result<()> {
    // SAFETY: the path is NUL-terminated and lives through the call.
    check(unsafe { libc::truncate(proc_path(fd).as_ptr(), size) }).map(|_| ())
}

/// The same by an open file: then times are set in any case.
pub(super) fn truncate_open(fd: &OwnedFd, size: i64) -> Result<()> {
    let file = std::fs::File::from(open(&proc_path(fd), libc::O_WRONLY, 0)?);
    file.set_len(size as u64).map_err(from_io)
}

pub(super) fn fallocate(fd: &OwnedFd, mode: c_int, offset: i64, len: i64) -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset, len) }).map(|_| ())
}

pub(super) fn lseek(fd: &OwnedFd, offset: i64, whence: c_int) -> Result<u64> {
    // SAFETY: no memory is passed.
    let at = unsafe { libc::lseek(fd.as_raw_fd(), offset, whence) };
    u64::try_from(at).map_err(|_| last_error())
}

pub(super) fn copy_file_range(
    from: &OwnedFd,
    mut from_offset: i64,
    to: &OwnedFd,
    mut to_offset: i64,
    len: usize,
) -> Result<usize> {
    let (a, b) = (from.as_raw_fd(), to.as_raw_fd());
    // SAFETY: both offsets live through the call.
    check_len(unsafe { libc::copy_file_range(a, &mut from_offset, b, &mut to_offset, len, 0) })
}

pub(super) fn clone_range(
    from: &OwnedFd,
    from_offset: u64,
    to: &OwnedFd,
    to_offset: u64,
    len: u64,
) -> Result<()> {
    let range = libc::file_clone_range {
        src_fd: i64::from(from.as_raw_fd()),
        src_offset: from_offset,
        src_length: len,
        dest_offset: to_offset,
    };
    // SAFETY: FICLONERANGE reads one `file_clone_range`.
    check(unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &range) }).map(|_| ())
}

pub(super) fn fsync(fd: &OwnedFd, datasync: bool) -> Result<()> {
    let fd = fd.as_raw_fd();
    // SAFETY: no memory is passed.
    check(unsafe { if datasync { libc::fdatasync(fd) } else { libc::fsync(fd) } }).map(|_| ())
}

pub(super) fn syncfs(fd: &OwnedFd) -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::syncfs(fd.as_raw_fd()) }).map(|_| ())
}

/// One buffer of directory records; empty at the end.
pub(super) fn getdents(fd: &OwnedFd) -> Result<Vec<u8>> {
    let mut buf = vec![0u8; 32 << 10];
    let (at, len) = (buf.as_mut_ptr(), buf.len());
    // SAFETY: the kernel writes at most `len` bytes to `buf`.
    let ret = unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), at, len) };
    buf.truncate(check_len(ret as isize)?);
    Ok(buf)
}

pub(super) fn getxattr(fd: &OwnedFd, name: &CStr) -> Result<Vec<u8>> {
    let mut buf = vec![0u8; 65536];
    let (path, at, len) = (proc_path(fd), buf.as_mut_ptr().cast(), buf.len());
    // SAFETY: the kernel writes at most `len` bytes to `buf`.
    let ret = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), at, len) };
    buf.truncate(check_len(ret)?);
    Ok(buf)
}

pub(super) fn listxattr(fd: &OwnedFd) -> Result<Vec<u8>> {
    let mut buf = vec![0u8; 65536];
    let (path, at, len) = (proc_path(fd), buf.as_mut_ptr().cast(), buf.len());
    // SAFETY: the kernel writes at most `len` bytes to `buf`.
    let ret = unsafe { libc::listxattr(path.as_ptr(), at, len) };
    buf.truncate(check_len(ret)?);
    Ok(buf)
}

pub(super) fn setxattr(fd: &OwnedFd, name: &CStr, value: &[u8], flags: c_int) -> Result<()> {
    let (path, at, len) = (proc_path(fd), value.as_ptr().cast(), value.len());
    // SAFETY: the kernel reads `len` bytes of `value`.
    check(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), at, len, flags) }).map(|_| ())
}

pub(super) fn removexattr(fd: &OwnedFd, name: &CStr) -> Result<()> {
    // SAFETY: both strings are NUL-terminated and live through the call.
    check(unsafe { libc::removexattr(proc_path(fd).as_ptr(), name.as_ptr()) }).map(|_| ())
}

pub(super) fn get_flags(fd: &OwnedFd) -> Result<u32> {
    let mut flags: c_uint = 0;
    // SAFETY: FS_IOC_GETFLAGS writes an int (whatever its number says).
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FS_IOC_GETFLAGS, &mut flags) })?;
    Ok(flags)
}

pub(super) fn set_flags(fd: &OwnedFd, flags: u32) -> Result<()> {
    // SAFETY: FS_IOC_SETFLAGS reads an int (whatever its number says).
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FS_IOC_SETFLAGS, &flags) }).map(|_| ())
}

pub(super) fn statfs(fd: &OwnedFd) -> Result<StatFs> {
    // SAFETY: all-zero bytes are a valid `statvfs`.
    let mut raw: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills `raw`, which lives through the call.
    check(unsafe { libc::fstatvfs(fd.as_raw_fd(), &mut raw) })?;
    Ok(StatFs {
        block_size: raw.f_frsize as u32,
        blocks: raw.f_blocks,
        blocks_free: raw.f_bfree,
        blocks_available: raw.f_bavail,
        files: raw.f_files,
        files_free: raw.f_ffree,
        name_max: raw.f_namemax as u32,
    })
}

/// As many descriptors as the hard limit allows.
pub(super) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls use one `rlimit` that lives through them. A failure leaves the
    // limit as it is, which the caller will notice only if it needs more.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}
