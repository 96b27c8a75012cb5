//! Processes and signals.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;

/// The signals that end a mount.
const ENDING: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

pub enum Fork {
    Child,
    Parent { child: i32 },
}

/// Splits the process in two. Must be called while it has one thread: the child has only
/// the calling one, and locks that others hold would never be released.
pub fn fork() -> io::Result<Fork> {
    // SAFETY: the caller has no other threads, so the child may go on as usual.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent { child }),
    }
}

/// How the child ended, in words.
pub fn wait_for(child: i32) -> io::Result<String> {
    let mut status = 0;
    loop {
        // SAFETY: waitpid writes one integer, to `status`.
        if unsafe { libc::waitpid(child, &mut status, 0) } == child {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(match libc::WIFSIGNALED(status) {
        true => format!("was ended by signal {}", libc::WTERMSIG(status)),
        false => format!("ended with exit code {}", libc::WEXITSTATUS(status)),
    })
}

/// Leaves the terminal: signals from it no longer reach this process.
pub fn new_session() -> io::Result<()> {
    // SAFETY: setsid has no arguments.
    if unsafe { libc::setsid() } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Where Linux shares the processors out between sessions first (`sched_autogroup`), gives the
/// calling process's more. Alone in its session the server has what one caller's has, and the
/// callers wait for it: when a thread of it lost its processor in a request, that request took
/// 30 ms and more. The kernel's file systems work in their callers' share.
pub fn favour_session() -> io::Result<()> {
    std::fs::write("/proc/self/autogroup", "-10")
}

/// Puts `/dev/null` in the place of standard input, output and error.
pub fn null_stdio() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    for number in 0..3 {
        // SAFETY: dup2 takes two numbers; what stood at 0 to 2 is nobody's property.
        if unsafe { libc::dup2(null.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Closes all descriptors from 3 on but `keep`, which the caller got from whoever
/// started it and knows nothing of. Must be called before anything is opened.
pub fn close_others(keep: i32) {
    let close = |first: u32, last: u32| {
        if first <= last {
            // SAFETY: takes numbers only; nothing of ours is open in the range (see above).
            // A failure (an old kernel) leaves descriptors open, which is harmless.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    let keep = keep as u32;
    close(3, keep.saturating_sub(1));
    close(keep.saturating_add(1), u32::MAX);
}

fn ending_set() -> libc::sigset_t {
    // SAFETY: sigemptyset makes a valid set of any bytes, zeros among them; sigaddset
    // changes that set.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in ENDING {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Blocks the ending signals in this thread and those that it will start.
pub fn block_signals() {
    let set = ending_set();
    // SAFETY: reads the set; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

/// Waits for one of the (blocked) ending signals; its name.
pub fn wait_for_signal() -> &'static str {
    let set = ending_set();
    loop {
        let mut signal = 0;
        // SAFETY: reads the set, writes one integer to `signal`.
        if unsafe { libc::sigwait(&set, &mut signal) } == 0 {
            return match signal {
                libc::SIGTERM => "SIGTERM",
                libc::SIGINT => "SIGINT",
                _ => "SIGHUP",
            };
        }
    }
}

/// The effective user and group.
pub fn user_and_group() -> (u32, u32) {
    // SAFETY: both have no arguments and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// The permission bits that new files do not get.
pub fn umask() -> u32 {
    // SAFETY: umask takes and returns a number; it is put back at once. A thread that
    // makes a file in between makes it with the strictest permissions.
    unsafe {
        let mask = libc::umask(0o777);
        libc::umask(mask);
        mask
    }
}

pub fn is_root() -> bool {
    user_and_group().0 == 0
}
