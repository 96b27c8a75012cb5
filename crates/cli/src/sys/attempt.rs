//! For tests of the sandbox: what a thread is to try. Each is such that it does nothing where it
//! is not refused, or fails there with another error than EPERM. Standard input is open.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;

/// A process that there is not.
const NOBODY: libc::c_long = 0x7fff_fff0;

/// 0, or the error's number; -1 for what is not known.
pub fn attempt(what: &str) -> i32 {
    let number = |error: io::Error| error.raw_os_error().unwrap_or(-1);
    tried(what)
        .or_else(|| seldom(what))
        .or_else(|| raw(what))
        .map_or(-1, |result| result.err().map_or(0, number))
}

fn tried(what: &str) -> Option<io::Result<()>> {
    Some(match what {
        "open" => File::open("/proc/self/status").map(drop),
        "open itself" => File::open("/proc/self/exe").map(drop),
        "list" => fs::read_dir("/").map(drop),
        "make" => nameless(),
        "look" => fs::metadata("/").map(drop),
        "link" => fs::read_link("/proc/self/exe").map(drop),
        "remove" => fs::remove_file("/proc/nothing-of-that-name"),
        "start" => Command::new("/bin/true").status().map(drop),
        "fork" => super::fork_apart(|| {}),
        "tcp" => TcpListener::bind("127.0.0.1:0").map(drop),
        "udp" => UdpSocket::bind("127.0.0.1:0").map(drop),
        "unix" => UnixDatagram::unbound().map(drop),
        "pair" => UnixStream::pair().map(drop),
        "pipe" => io::pipe().map(drop),
        "thread" => std::thread::Builder::new().spawn(|| {}).map(drop),
        "panic" => panic!("asked to"),
        _ => return None,
    })
}

/// A file that is gone when it is closed.
fn nameless() -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).map(drop)
}

/// What a server does, but seldom.
fn seldom(what: &str) -> Option<io::Result<()>> {
    // SAFETY: the calls get numbers, and a record that outlives them, for which all zeros are valid.
    let done = unsafe {
        match what {
            "uncache" => libc::posix_fadvise(0, 0, 0, libc::POSIX_FADV_DONTNEED),
            "let go of a part" => {
                let mut part: libc::flock = std::mem::zeroed();
                part.l_type = libc::F_UNLCK as libc::c_short;
                match libc::fcntl(0, libc::F_OFD_SETLK, &raw const part) {
                    0 => 0,
                    _ => io::Error::last_os_error().raw_os_error().unwrap_or(-1),
                }
            }
            _ => return None,
        }
    };
    Some(if done == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(done)) })
}

fn raw(what: &str) -> Option<io::Result<()>> {
    // SAFETY: each call gets numbers and static strings, or memory that outlives it, and changes
    // nothing but what it is said to.
    let done = unsafe {
        match what {
            "execute" => {
                let none = [std::ptr::null::<libc::c_char>()];
                libc::syscall(libc::SYS_execve, c"/proc/nothing".as_ptr(), &none, &none)
            }
            "ring" => {
                // All zeros ask for nothing special.
                let parameters = [0u64; 15];
                keep_none(libc::syscall(libc::SYS_io_uring_setup, 1, &parameters))
            }
            "code" => {
                let (protection, flags) =
                    (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                let at = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
                if at == libc::MAP_FAILED { -1 } else { i64::from(libc::munmap(at, 4096)) }
            }
            "memory file" => keep_none(libc::syscall(libc::SYS_memfd_create, c"".as_ptr(), 0)),
            "connect" => libc::syscall(libc::SYS_connect, -1, 0, 0),
            "send to" => libc::syscall(libc::SYS_sendto, -1, 0, 0, 0, c"".as_ptr(), 1),
            "trace" => libc::syscall(libc::SYS_ptrace, libc::PTRACE_ATTACH, NOBODY, 0, 0),
            "read others" => libc::syscall(libc::SYS_process_vm_readv, NOBODY, 0, 0, 0, 0, 0),
            "signal" => libc::syscall(libc::SYS_kill, libc::getpid(), 0),
            "namespace" => libc::syscall(libc::SYS_unshare, 0),
            "enter namespace" => libc::syscall(libc::SYS_setns, -1, 0),
            "limits" => libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, 0),
            "real time" => {
                let parameter = libc::sched_param { sched_priority: -1 };
                libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &parameter)
            }
            "terminal" => libc::syscall(libc::SYS_ioctl, -1, libc::TIOCSTI, 0),
            _ => return None,
        }
    };
    Some(if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) })
}

/// Closes a descriptor that was got.
unsafe fn keep_none(descriptor: libc::c_long) -> libc::c_long {
    match i32::try_from(descriptor) {
        // SAFETY: the caller has just got it, and nobody else knows it.
        Ok(got) if got >= 0 => unsafe { libc::close(got).into() },
        _ => descriptor,
    }
}
