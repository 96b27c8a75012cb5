//! Processes and signals.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The signals that end a mount.
pub const ENDING: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

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

/// Runs `work` in a process that is nobody's child, so that nobody need wait for it. To be
/// called as `fork` is.
pub fn fork_apart(work: impl FnOnce()) -> io::Result<()> {
    match fork()? {
        Fork::Parent { child } => {
            // SAFETY: waitpid may be told to store nothing; the child ends at once.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            Ok(())
        }
        Fork::Child => {
            if let Ok(Fork::Child) = fork() {
                work();
            }
            // SAFETY: ends the process; what the parent would do at its end is not done here.
            unsafe { libc::_exit(0) }
        }
    }
}

/// How the child ended, in words; `None` while it has not.
pub fn ended(child: i32) -> Option<String> {
    let mut status = 0;
    // SAFETY: waitpid writes one integer, to `status`.
    match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
        0 => None,
        -1 => Some("ended".into()),
        _ if libc::WIFSIGNALED(status) => {
            Some(format!("was ended by signal {}", libc::WTERMSIG(status)))
        }
        _ => Some(format!("ended with exit code {}", libc::WEXITSTATUS(status))),
    }
}

/// Ends a process that does not end by itself.
pub fn kill(process: i32) {
    // SAFETY: kill takes two numbers.
    unsafe { libc::kill(process, libc::SIGKILL) };
}

/// Stops this process until another wakes it.
#[cfg(feature = "fault-injection")]
pub fn stop_myself() {
    // SAFETY: raise takes a number.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// By the one way that a sandbox leaves.
#[cfg(feature = "fault-injection")]
pub fn kill_myself() {
    // SAFETY: raise takes a number.
    unsafe { libc::raise(libc::SIGKILL) };
}

/// Lets a stopped process go on.
pub fn wake(process: i32) {
    // SAFETY: kill takes two numbers.
    unsafe { libc::kill(process, libc::SIGCONT) };
}

/// The letter by which the kernel tells what a process does: `T` if it is stopped, `Z` if it
/// has ended and its parent does not know. `None` if there is no such process.
pub fn state(process: i32) -> Option<char> {
    let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    let name_ends = stat.iter().rposition(|b| *b == b')')?;
    stat.get(name_ends + 2).map(|letter| char::from(*letter))
}

pub fn is_alive(process: i32) -> bool {
    !matches!(state(process), None | Some('Z' | 'X'))
}

/// True when there is something to read, or an end; false when that took too long.
pub fn wait_readable(file: &impl AsRawFd, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis() + 1;
        let mut waiting = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let left = i32::try_from(left).unwrap_or(i32::MAX);
        // SAFETY: one valid entry, alive during the call.
        match unsafe { libc::poll(&raw mut waiting, 1, left) } {
            0 => return Ok(false),
            1 => return Ok(true),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// The other side of a connection is gone, or the connection was shut down for both directions.
pub fn has_hung_up(connection: &impl AsRawFd) -> bool {
    let mut asked = libc::pollfd { fd: connection.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one valid entry, alive during the call.
    let found = unsafe { libc::poll(&raw mut asked, 1, 0) } > 0;
    found && asked.revents & (libc::POLLHUP | libc::POLLERR) != 0
}

/// Waits until the kernel says that a table in /proc, which polls as having something urgent
/// when it changes, has changed.
pub fn wait_for_change(table: &impl AsRawFd) -> io::Result<()> {
    let mut waiting = libc::pollfd { fd: table.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
    loop {
        // SAFETY: one valid entry, alive during the call.
        if unsafe { libc::poll(&raw mut waiting, 1, -1) } > 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The process and user on the other side of a socket: for one that was connected to, who
/// listened.
pub fn peer(socket: &impl AsRawFd) -> io::Result<(i32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `peer`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if done == 0 { Ok((peer.pid, peer.uid)) } else { Err(io::Error::last_os_error()) }
}

/// Leaves the terminal: signals from it no longer reach this process.
pub fn new_session() -> io::Result<()> {
    // SAFETY: setsid has no arguments.
    if unsafe { libc::setsid() } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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

/// Closes all descriptors from 3 on but those to `keep`, which the caller got from whoever
/// started it and knows nothing of. Must be called before anything else is opened.
pub fn close_others(keep: &mut [i32]) {
    keep.sort_unstable();
    let mut first: u32 = 3;
    let close = |first: u32, last: u32| {
        if first <= last {
            // SAFETY: takes numbers only; nothing of ours is open in the range (see above).
            // A failure (an old kernel) leaves descriptors open, which is harmless.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    for kept in keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd >= 3) {
        close(first, kept - 1);
        first = kept + 1;
    }
    close(first, u32::MAX);
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

/// As many descriptors as this process may have: a mount over io_uring has some for each processor that the machine
/// could have, which are more than the usual 1024 where those are a hundred.
pub fn allow_descriptors() {
    /// For a thousand processors; programs that this one starts may close as many one by one.
    const MANY: libc::rlim_t = 16 << 10;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is a local one.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max.min(limit.rlim_cur.max(MANY));
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// A terminal cannot stop this process any more (Ctrl-Z, or writing in its background).
pub fn ignore_stops() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        // SAFETY: takes two numbers; no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// To write behind what `ulimit -f` allows is an error (EFBIG), which can be told and cleared up after, and
/// no end of the process. Programs that this one starts have it as ever.
pub fn outlive_file_limit() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler does nothing, so it may come at any time.
    unsafe {
        if libc::signal(libc::SIGXFSZ, handler) == libc::SIG_IGN {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
    }
}

/// Waits for one of the (blocked) ending signals; its name.
pub fn wait_for_signal() -> &'static str {
    let set = ending_set();
    loop {
        let mut signal = 0;
        // SAFETY: reads the set, writes one integer to `signal`.
        if unsafe { libc::sigwait(&set, &mut signal) } == 0 {
            return name_of(signal);
        }
    }
}

/// One of them that is pending or comes so soon.
pub fn signal_within(limit: Duration) -> Option<&'static str> {
    let set = ending_set();
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = libc::timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        // SAFETY: reads the set and the time; nothing more is asked for.
        let signal = unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &left) };
        if signal > 0 {
            return Some(name_of(signal));
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
}

fn name_of(signal: libc::c_int) -> &'static str {
    match signal {
        libc::SIGTERM => "SIGTERM",
        libc::SIGINT => "SIGINT",
        _ => "SIGHUP",
    }
}

/// Ends a listening socket, whoever has a copy of it; who waits in it returns.
pub fn shut_down(socket: &impl AsRawFd) {
    // SAFETY: shutdown takes two numbers.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// The effective user and group.
pub fn user_and_group() -> (u32, u32) {
    // SAFETY: both have no arguments and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Whether the user namespace of this process has that user, to whom files can belong.
pub fn has_user(uid: u32) -> bool {
    // Systems without such namespaces have all users.
    std::fs::read_to_string("/proc/self/uid_map").map_or(true, |map| is_mapped(&map, uid))
}

/// Lines of the first user inside, the first outside, and how many (user_namespaces(7)).
fn is_mapped(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (first, count) = (numbers.next(), numbers.nth(1));
        match (first, count) {
            (Some(Ok(first)), Some(Ok(count))) => {
                (first..first.saturating_add(count)).contains(&uid.into())
            }
            _ => false,
        }
    })
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
