//! The system calls of the workloads, by directory descriptor and C name: what std
//! offers goes by path and would measure the building of paths too.
//!
//! The one module of this crate with `unsafe`. Descriptors are plain numbers here;
//! `target::posix` owns them.

use std::ffi::CStr;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

pub type Fd = libc::c_int;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub fn open(dir: Fd, name: &CStr, flags: libc::c_int) -> io::Result<Fd> {
    // SAFETY: `name` ends in NUL and lives through the call.
    check(unsafe { libc::openat(dir, name.as_ptr(), flags | libc::O_CLOEXEC, 0o644) })
}

pub fn close(fd: Fd) {
    // SAFETY: takes no memory. Callers close only what `open` gave them, once.
    unsafe { libc::close(fd) };
}

pub fn mkdir(dir: Fd, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` ends in NUL and lives through the call.
    check(unsafe { libc::mkdirat(dir, name.as_ptr(), 0o755) }).map(drop)
}

pub fn unlink(dir: Fd, name: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: `name` ends in NUL and lives through the call.
    check(unsafe { libc::unlinkat(dir, name.as_ptr(), flags) }).map(drop)
}

pub fn symlink(dir: Fd, name: &CStr, to: &CStr) -> io::Result<()> {
    // SAFETY: both strings end in NUL and live through the call.
    check(unsafe { libc::symlinkat(to.as_ptr(), dir, name.as_ptr()) }).map(drop)
}

pub fn rename(from: Fd, name: &CStr, to: Fd, new_name: &CStr) -> io::Result<()> {
    // SAFETY: both names end in NUL and live through the call.
    check(unsafe { libc::renameat(from, name.as_ptr(), to, new_name.as_ptr()) }).map(drop)
}

pub fn size(fd: Fd) -> io::Result<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` has room for what the call writes.
    check(unsafe { libc::fstat(fd, stat.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it filled `stat`.
    Ok(unsafe { stat.assume_init() }.st_size as u64)
}

pub fn touch(fd: Fd) -> io::Result<()> {
    // SAFETY: a null pointer stands for the present time.
    check(unsafe { libc::futimens(fd, std::ptr::null()) }).map(drop)
}

pub fn used_bytes(fd: Fd) -> io::Result<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `stat` has room for what the call writes.
    check(unsafe { libc::fstatvfs(fd, stat.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it is filled in.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize)
}

/// The size that `lstat` tells.
pub fn stat_size(dir: Fd, name: &CStr) -> io::Result<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `name` ends in NUL; `stat` has room for what the call writes.
    check(unsafe {
        libc::fstatat(dir, name.as_ptr(), stat.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW)
    })?;
    // SAFETY: the call succeeded, so it filled `stat`.
    Ok(unsafe { stat.assume_init() }.st_size as u64)
}

pub fn read_at(fd: Fd, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    // SAFETY: `buf` is writable for its length through the call.
    let n = unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), buf.len(), offset as i64) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

pub fn write_at(fd: Fd, buf: &[u8], offset: u64) -> io::Result<usize> {
    // SAFETY: `buf` is readable for its length through the call.
    let n = unsafe { libc::pwrite(fd, buf.as_ptr().cast(), buf.len(), offset as i64) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

pub fn truncate(fd: Fd, size: u64) -> io::Result<()> {
    // SAFETY: takes no memory.
    check(unsafe { libc::ftruncate(fd, size as i64) }).map(drop)
}

pub fn fsync(fd: Fd) -> io::Result<()> {
    // SAFETY: takes no memory.
    check(unsafe { libc::fsync(fd) }).map(drop)
}

/// Drops the clean pages of a file from the kernel's cache.
pub fn drop_pages(file: &std::fs::File) -> io::Result<()> {
    // SAFETY: takes no memory; the descriptor is open as long as `file`.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Syncs the file system. The kernel passes `syncfs` on to servers of `fuseblk` mounts alone, so a FUSE
/// mount is asked by btrfs' ioctl as well; a server that does not have that has nothing to sync.
pub fn syncfs(fd: Fd) -> io::Result<()> {
    // SAFETY: takes no memory.
    check(unsafe { libc::syncfs(fd) })?;
    if !is_fuse(fd)? {
        return Ok(());
    }
    // SAFETY: this request takes no memory.
    match check(unsafe { libc::ioctl(fd, BTRFS_IOC_SYNC) }) {
        Err(error) if error.raw_os_error() != Some(libc::ENOTTY) => Err(error),
        _ => Ok(()),
    }
}

/// `_IO(0x94, 8)` of the kernel's `linux/btrfs.h`.
const BTRFS_IOC_SYNC: libc::Ioctl = 0x9408;

fn is_fuse(fd: Fd) -> io::Result<bool> {
    // SAFETY: all zeros is a value of it.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is writable.
    check(unsafe { libc::fstatfs(fd, &mut about) })?;
    Ok(about.f_type == libc::FUSE_SUPER_MAGIC)
}

/// Calls `emit` with the name and `DT_*` type of each entry but `.` and `..`.
pub fn list(dir: Fd, emit: &mut dyn FnMut(&CStr, u8) -> io::Result<()>) -> io::Result<()> {
    let mut buf = vec![0u8; 32 * 1024];
    loop {
        // SAFETY: `buf` is writable for the length given.
        let n = unsafe { libc::syscall(libc::SYS_getdents64, dir, buf.as_mut_ptr(), buf.len()) };
        match n {
            0 => return Ok(()),
            1.. => each_dirent(&buf[..n as usize], emit)?,
            _ => return Err(io::Error::last_os_error()),
        }
    }
}

/// `struct linux_dirent64`: inode 8, offset 8, record length 2, type 1, name with NUL.
fn each_dirent(
    mut records: &[u8],
    emit: &mut dyn FnMut(&CStr, u8) -> io::Result<()>,
) -> io::Result<()> {
    let torn = || io::Error::other("getdents64 returned a torn record");
    while !records.is_empty() {
        let head = records.first_chunk::<19>().ok_or_else(torn)?;
        let len = usize::from(u16::from_ne_bytes([head[16], head[17]]));
        let name = records.get(19..len).ok_or_else(torn)?;
        let name = CStr::from_bytes_until_nul(name).map_err(|_| torn())?;
        if name != c"." && name != c".." {
            emit(name, head[18])?;
        }
        records = &records[len..];
    }
    Ok(())
}

/// Makes the file system mounted at `path` fail every request that is waiting or comes:
/// FUSE aborts its connection on a forced unmount. The mount itself may stay, as busy.
pub fn abort_mount(path: &CStr) -> io::Result<()> {
    // SAFETY: `path` ends in NUL and lives through the call.
    check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE) }).map(drop)
}

/// This process is a session of its own from now on, as a server is that nobody waits for.
pub fn leave_session() -> io::Result<()> {
    // SAFETY: takes nothing.
    check(unsafe { libc::setsid() }).map(drop)
}

/// The whole value of an extended attribute.
pub fn get_xattr(path: &std::path::Path, name: &CStr) -> io::Result<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut value = vec![0; 64 << 10];
    // SAFETY: the strings end in NUL and live through the call, as does `value`.
    let n = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    value.truncate(usize::try_from(n).map_err(|_| io::Error::last_os_error())?);
    Ok(value)
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From here on the first SIGINT or SIGTERM only sets what `interrupted` tells, so that
/// mounts and images are cleaned up; the second one ends the program.
pub fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the action is fully set up (zeroed, then handler and flags), and the
        // handler does nothing but one atomic store.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note_signal as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

pub fn is_root() -> bool {
    // SAFETY: takes no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Freed memory stays with this process, and new memory comes in the smallest pages: as the `spinney`
/// program has it (`cli/src/sys/memory.rs` says why), so that the library's side differs from the
/// mount's by FUSE alone.
pub(crate) fn keep_memory_as_the_server() {
    /// `mi_option_purge_delay` in mimalloc.h, and a day in its milliseconds.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    const A_DAY: libc::c_long = 24 * 3600 * 1000;
    // SAFETY: settings of this process, without pointers.
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
        libmimalloc_sys::mi_option_set(PURGE_DELAY, A_DAY);
    }
}
