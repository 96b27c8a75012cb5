//! The few system calls that the tests need beyond the standard library and `PosixFs`.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};
use std::slice;
use std::sync::RwLock;

/// Where a file has data or a hole, from `offset` on.
pub fn seek(file: &File, offset: i64, whence: libc::c_int) -> io::Result<u64> {
    // SAFETY: no memory is passed.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    u64::try_from(at).map_err(|_| io::Error::last_os_error())
}

/// A shared writable mapping of a whole file.
pub struct Mapping {
    base: *mut u8,
    len: usize,
}

impl Mapping {
    pub fn new(file: &File, len: usize) -> Mapping {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(base, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Mapping { base: base.cast(), len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length; the test is its only user.
        unsafe { slice::from_raw_parts_mut(self.base, self.len) }
    }

    pub fn sync(&self) {
        // SAFETY: the range is the mapping's.
        let rc = unsafe { libc::msync(self.base.cast(), self.len, libc::MS_SYNC) };
        assert_eq!(rc, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made in `new` with this length.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// The next names of a directory, as many as fit `room` bytes, each with the offset behind it.
pub fn getdents(dir: &File, room: usize) -> io::Result<Vec<(i64, String)>> {
    Ok(listed(dir, room)?.into_iter().map(|(_, offset, name)| (offset, name)).collect())
}

/// The same, each with its inode number in front.
pub fn listed(dir: &File, room: usize) -> io::Result<Vec<(u64, i64, String)>> {
    let mut bytes = vec![0u8; room];
    // SAFETY: `room` bytes may be written.
    let len = unsafe {
        libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), bytes.as_mut_ptr(), bytes.len())
    };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let (mut rest, mut all) = (&bytes[..len], Vec::new());
    while !rest.is_empty() {
        let ino = u64::from_ne_bytes(rest[..8].try_into().unwrap());
        let offset = i64::from_ne_bytes(rest[8..16].try_into().unwrap());
        let (record, next) = rest.split_at(u16::from_ne_bytes([rest[16], rest[17]]).into());
        let end = record[19..].iter().position(|byte| *byte == 0).unwrap();
        all.push((ino, offset, String::from_utf8_lossy(&record[19..19 + end]).into_owned()));
        rest = next;
    }
    Ok(all)
}

/// RENAME_EXCHANGE.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let [one, other] = [one, other].map(|path| CString::new(path.as_os_str().as_bytes()).unwrap());
    let (here, flags) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
    // SAFETY: NUL-terminated strings, alive.
    match unsafe { libc::renameat2(here, one.as_ptr(), here, other.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn syncfs(file: &File) -> io::Result<()> {
    // SAFETY: takes a descriptor only.
    match unsafe { libc::syncfs(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn statfs(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: statfs is plain numbers, for which zeros are valid.
    let mut figures: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated string and a record of the right size, both alive.
    match unsafe { libc::statfs(path.as_ptr(), &raw mut figures) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn getxattr(path: &Path, name: &str, room: usize) -> io::Result<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let name = CString::new(name).unwrap();
    let mut value = vec![0u8; room];
    // SAFETY: both strings end with NUL; `room` bytes may be written.
    let len =
        unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), room) };
    match usize::try_from(len) {
        Ok(len) if room == 0 => Ok(vec![0; len]),
        Ok(len) => {
            value.truncate(len);
            Ok(value)
        }
        Err(_) => Err(io::Error::last_os_error()),
    }
}

pub fn setxattr(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let name = CString::new(name).unwrap();
    let (data, len) = (value.as_ptr().cast(), value.len());
    // SAFETY: both strings end with NUL; `len` bytes may be read.
    match unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), data, len, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An ioctl that fills a buffer.
pub fn ioctl_read(file: &File, command: u64, room: &mut [u8]) -> io::Result<()> {
    // SAFETY: every command used here has the size of `room` in its number at most.
    match unsafe { libc::ioctl(file.as_raw_fd(), command, room.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Memory as direct input and output want it.
pub struct Aligned {
    room: Vec<u8>,
    at: usize,
    len: usize,
}

impl Aligned {
    pub fn new(len: usize) -> Aligned {
        let room = vec![0u8; len + 4096];
        let at = room.as_ptr().align_offset(4096);
        Aligned { room, at, len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.room[self.at..self.at + self.len]
    }
}

/// A context of the kernel's asynchronous input and output.
pub struct Aio(libc::c_ulong);

#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent {
    data: u64,
    obj: u64,
    res: i64,
    res2: i64,
}

const IOCB_CMD_PWRITE: u16 = 1;

impl Aio {
    pub fn new(depth: usize) -> Aio {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one number.
        let rc = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        assert_eq!(rc, 0, "{}", io::Error::last_os_error());
        Aio(context)
    }

    /// Begins to write `room`, which must be left alone until `wait` has seen the end.
    pub fn write(&self, file: &File, room: &mut Aligned, offset: u64) {
        let bytes = room.bytes();
        let mut iocb = Iocb {
            opcode: IOCB_CMD_PWRITE,
            fd: file.as_raw_fd() as u32,
            buf: bytes.as_ptr() as u64,
            len: bytes.len() as u64,
            offset: offset as i64,
            ..Iocb::default()
        };
        let mut list = [&raw mut iocb];
        // SAFETY: one control block, copied by the kernel; its memory lives until `wait`.
        let rc = unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, list.as_mut_ptr()) };
        assert_eq!(rc, 1, "{}", io::Error::last_os_error());
    }

    /// Waits for the ends of `count` writes, each of which must have written `len`.
    pub fn wait(&self, count: usize, len: i64) {
        let mut events = vec![IoEvent::default(); count];
        let none = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: room for `count` events.
        let rc = unsafe {
            let events = events.as_mut_ptr();
            libc::syscall(libc::SYS_io_getevents, self.0, count, count, events, none)
        };
        assert_eq!(rc, count as i64, "{}", io::Error::last_os_error());
        assert!(events.iter().all(|event| event.res == len), "{}", events[0].res);
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: made in `new`; nothing is under way, or the kernel waits for it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// Runs a shell command; panics with its output if it fails.
pub fn sh(script: &str) -> String {
    let output = try_sh(script);
    let text = String::from_utf8_lossy(&output.stdout).to_string();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {text}{errors}");
    text
}

pub fn try_sh(script: &str) -> Output {
    Command::new("sh").arg("-c").arg(script).output().unwrap()
}

/// Runs a program directly, without a shell that might look at it first.
pub fn run_as_nobody(program: &Path, argument: &str) -> String {
    use std::os::unix::process::CommandExt;
    let run = || Command::new(program).arg(argument).uid(65534).gid(65534).output();
    // What another test starts at this moment has what was written open, until it is that program.
    let busy = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ExecutableFileBusy;
    let mut output = run();
    for _ in 0..100 {
        if !output.as_ref().is_err_and(busy) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        output = run();
    }
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// As `sh`, as the user and group `nobody`.
pub fn sh_as_nobody(script: &str) -> Output {
    use std::os::unix::process::CommandExt;
    Command::new("sh").arg("-c").arg(script).uid(65534).gid(65534).output().unwrap()
}

/// Held for reading by who counts on caches; dropping them takes from every test at work.
pub static CACHES: RwLock<()> = RwLock::new(());

/// Drops the machine's caches of names, attributes and content.
pub fn drop_caches() {
    let _alone = CACHES.write();
    testkit::oracle::drop_caches(3);
}

/// The calling thread's number.
pub fn thread_id() -> i32 {
    // SAFETY: no arguments, no memory.
    unsafe { libc::gettid() }
}
