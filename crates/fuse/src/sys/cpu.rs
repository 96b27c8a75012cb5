//! Which processors there are, and what a server thread tells the kernel of itself.

use std::fs;
use std::io;
use std::mem;
use std::sync::OnceLock;

/// Bytes of the kernel's pages, which it counts requests in.
pub(crate) fn page_size() -> u32 {
    // SAFETY: asks for a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

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

/// The processors that this process may use, as it was when this was first asked.
pub(crate) fn usable_cpus() -> Vec<usize> {
    let set = usable();
    // SAFETY: each number is below CPU_SETSIZE, so the bit lies inside `set`.
    let is_in = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, set) };
    let cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(is_in).collect();
    // More processors than a set of this size has.
    if cpus.is_empty() { vec![0] } else { cpus }
}

fn usable() -> &'static libc::cpu_set_t {
    static SET: OnceLock<libc::cpu_set_t> = OnceLock::new();
    SET.get_or_init(|| {
        // SAFETY: cpu_set_t is a plain bit array, for which all zeros is a valid value.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: `set` is a set of the size given, which the call fills; the number is that of
        // the process, whose first thread nobody pins. On a failure the set stays empty.
        unsafe {
            libc::sched_getaffinity(libc::getpid(), mem::size_of_val(&set), &mut set);
        }
        set
    })
}

/// Lets the calling thread run wherever the process may again (a new thread inherits the
/// place of the one that made it).
pub(crate) fn unpin() {
    let set = usable();
    // SAFETY: `set` is a valid set of the size given; 0 means this thread. A failure
    // leaves the thread where it is, which is slower and nothing else.
    unsafe { libc::sched_setaffinity(0, mem::size_of_val(set), set) };
}

/// The processor that this runs on.
pub(crate) fn this_cpu() -> usize {
    // SAFETY: takes nothing; an error is a negative number.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
}

/// Gives the calling thread the lowest priority of the normal class: all others go first.
pub(crate) fn lowest_priority() -> io::Result<()> {
    const LOWEST: libc::c_int = 19;
    // SAFETY: numbers only; 0 means this thread.
    let rc = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
    fn a_pinned_thread_gets_away_again() {
        let usable = usable_cpus();
        let here = || std::thread::available_parallelism().unwrap().get();
        std::thread::spawn(move || {
            let before = here();
            pin_to(usable[0]).unwrap();
            assert_eq!(here(), 1);
            unpin();
            assert_eq!(here(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_lowest_priority_is_one_threads() {
        let priority = || {
            // SAFETY: numbers only; 0 means this thread.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        };
        let before = priority();
        std::thread::spawn(move || {
            lowest_priority().unwrap();
            assert_eq!(priority(), 19);
        })
        .join()
        .unwrap();
        assert_eq!(priority(), before);
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
