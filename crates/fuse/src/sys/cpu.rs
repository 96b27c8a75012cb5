//! Which processors there are, and what a server thread tells the kernel of itself.

use std::fs;
use std::io;
use std::mem;
use std::sync::OnceLock;

/// The numbers of all processors that could ever be online: the kernel makes a queue
/// for each, and a queue that nobody serves would hang its requests. Looked up once: a thread
/// that serves may not be allowed to open files.
pub(crate) fn possible_cpus() -> &'static [usize] {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    CPUS.get_or_init(look_up_cpus)
}

fn look_up_cpus() -> Vec<usize> {
    let listed = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let cpus = parse_list(listed.trim());
    if !cpus.is_empty() {
        return cpus;
    }
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// `0-3,8` as numbers; anything else as nothing.
fn parse_list(list: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) if first <= last && last < 1 << 16 => cpus.extend(first..=last),
            _ => return Vec::new(),
        }
    }
    cpus
}

/// Keeps the calling thread on one processor.
pub(crate) fn pin_to(cpu: usize) -> io::Result<()> {
    // SAFETY: cpu_set_t is a plain bit array, for which all zeros is a valid value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: `cpu` is below CPU_SETSIZE, so the bit lies inside `set`.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: `set` is a valid set of the size given; 0 means this thread.
    let rc = unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &set) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets the calling thread run on every processor again (a new thread inherits the
/// place of the one that made it).
pub(crate) fn unpin() {
    // SAFETY: cpu_set_t is a plain bit array, for which all zeros is a valid value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for &cpu in possible_cpus().iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: `cpu` is below CPU_SETSIZE, so the bit lies inside `set`.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is a valid set of the size given; 0 means this thread. A failure
    // leaves the thread where it is, which is slower and nothing else.
    unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &set) };
}

/// The calling thread's id.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: no arguments, no memory.
    unsafe { libc::gettid() }
}

/// Puts a thread of this process (0: the calling one) into the class of those that run
/// when nothing else wants to, or back into the normal one. Threads that it makes
/// inherit the class.
pub(crate) fn set_idle_class(thread: i32, idle: bool) -> io::Result<()> {
    let class = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` is a valid parameter block that the call only reads.
    let rc = unsafe { libc::sched_setscheduler(thread, class, &param) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether a thread that was put into the idle class can be brought back. Tries it with
/// the calling one.
pub(crate) fn may_leave_idle_class() -> bool {
    set_idle_class(0, true).is_ok() && set_idle_class(0, false).is_ok()
}

/// Leaves signals to the program's other threads.
pub(crate) fn block_signals() {
    // SAFETY: sigfillset fills the set that it is given; pthread_sigmask reads it and
    // changes only the calling thread's mask.
    unsafe {
        let mut all: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&mut all);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT] {
            libc::sigdelset(&mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// Says that this thread cleans dirty pages, so that its own allocations must not wait
/// for pages of our mount to be written (which this thread would have to do). Needs
/// CAP_SYS_RESOURCE; without it nothing changes.
pub(crate) fn mark_io_flusher() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: prctl with integer arguments only.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_is_set_and_left() {
        let class = || {
            // SAFETY: no memory; 0 means this thread.
            unsafe { libc::sched_getscheduler(0) }
        };
        std::thread::spawn(move || {
            set_idle_class(0, true).unwrap();
            assert_eq!(class(), libc::SCHED_IDLE);
            if may_leave_idle_class() {
                assert_eq!(class(), libc::SCHED_OTHER);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn lists_parse() {
        assert_eq!(parse_list("0-1"), [0, 1]);
        assert_eq!(parse_list("0,2-4"), [0, 2, 3, 4]);
        assert!(parse_list("").is_empty());
        assert!(parse_list("4-2").is_empty());
        assert!(possible_cpus().contains(&0));
    }
}
