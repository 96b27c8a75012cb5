//! What the server lets go: it parses strangers' volumes, and once the mount stands it has all
//! that it needs open.
//!
//! Two steps, since Linux keeps rights by thread. Each thread, before it does anything
//! (`enter`): no new privileges, no capability but those named here, no file, no TCP port and no
//! abstract socket of others (Landlock). The thread that opens and mounts does so last. Then
//! all at once (`close`), when no thread is on its way any more: no system call but those listed here (seccomp); others fail with
//! EPERM. The list has none that opens or names a file, makes a socket or a ring of io_uring,
//! or starts a program. What the server still wants from outside its monitor does
//! (`monitor.rs`).
//!
//! A call that is refused ends nobody: it has done no harm, and a server that is killed takes
//! everybody's changes of the last seconds along, for which a stranger's volume would need
//! no more than one wrong call.
//!
//! What this kernel lacks is left away and told. Invariant: nothing here can fail a mount.

use super::fault;
use crate::sys::{self, CAP_SYS_RESOURCE};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreated, RulesetStatus, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::c_long;
use std::io;
use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

type Failed = Box<dyn Error + Send + Sync>;

/// Root's server may write to the image where the host's quotas would keep its owner from
/// that, as before: a write that fails there is somebody's loss.
const KEPT: u64 = 1 << CAP_SYS_RESOURCE;

/// A ruleset without rules; `None` where the kernel has none.
static RULESET: OnceLock<Option<RulesetCreated>> = OnceLock::new();
static LACKING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// From here on threads can `enter`; who does so before goes in nowhere. To be called before
/// there are any.
pub fn prepare() {
    let ruleset = match fault::lacks("landlock") {
        false => no_files().inspect_err(|error| lacks(format!("Landlock: {error}"))).ok(),
        true => None,
    };
    let _ = RULESET.set(ruleset);
}

/// The calling thread, and those that it will make, let go what is a thread's.
pub fn enter() {
    let Some(ruleset) = RULESET.get() else { return };
    match ruleset.as_ref().map(restrict) {
        Some(Ok(RulesetStatus::FullyEnforced)) => {}
        Some(Ok(RulesetStatus::PartiallyEnforced)) => lacks("what Landlock learned later".into()),
        Some(Ok(RulesetStatus::NotEnforced)) | None => lacks("Landlock".into()),
        Some(Err(error)) => lacks(format!("Landlock: {error}")),
    }
    if fault::lacks("capabilities") {
        return lacks("capabilities".into());
    }
    if let Err(error) = sys::keep_capabilities(KEPT) {
        lacks(format!("capabilities: {error}"));
    }
}

/// Starts a thread that ends with the process; it has entered when this returns.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (coming, there) = channel::<()>();
    thread::Builder::new().name(name.into()).spawn(move || {
        enter();
        drop(coming);
        body();
    })?;
    // Nobody sends: it ends with the other side.
    let _ = there.recv();
    Ok(())
}

/// The last thread enters, and no thread makes another call than those listed. Logs how that
/// went.
pub fn close() {
    if RULESET.get().is_none() {
        return tracing::warn!("no sandbox, as no-sandbox asks: the server keeps all its rights");
    }
    enter();
    if fault::lacks("seccomp") {
        lacks("seccomp".into());
    } else if let Err(error) = only_listed_calls() {
        lacks(format!("seccomp: {error}"));
    }
    let lacking = LACKING.lock().unwrap_or_else(PoisonError::into_inner);
    if lacking.is_empty() {
        return tracing::info!("in the sandbox: it opens no file, program or socket any more");
    }
    let lacking: Vec<&str> = lacking.iter().map(String::as_str).collect();
    tracing::warn!("in the sandbox, as far as this kernel has it; without {}", lacking.join(", "));
}

fn lacks(what: String) {
    LACKING.lock().unwrap_or_else(PoisonError::into_inner).insert(what);
}

fn no_files() -> Result<RulesetCreated, Failed> {
    // Linux 6.12; what came later concerns sockets, of which there will be none.
    const KNOWN: ABI = ABI::V6;
    Ok(Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::AbstractUnixSocket)?
        .create()?)
}

/// With no new privileges, which Landlock demands and which seccomp gives to all threads.
fn restrict(ruleset: &RulesetCreated) -> Result<RulesetStatus, Failed> {
    Ok(ruleset.try_clone()?.restrict_self()?.ruleset)
}

fn only_listed_calls() -> Result<(), Failed> {
    // What allows clone3 cannot see what it makes; libraries that are told that there is none
    // use clone.
    let none = SeccompAction::Errno(libc::ENOSYS as u32);
    let hidden = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    seccompiler::apply_filter_all_threads(&program(hidden, SeccompAction::Allow, none)?)?;
    if fault::lacks("mercy") {
        seccompiler::apply_filter_all_threads(&merciless()?)?;
    }
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let listed = program(allowed()?, refused, SeccompAction::Allow)?;
    Ok(seccompiler::apply_filter_all_threads(&listed)?)
}

/// For tests that have a server do what it does seldom: a call that is refused and that nobody expects to
/// be ends the process. Expected are those by paths: the standard library looks for what it can do without.
fn merciless() -> Result<BpfProgram, Failed> {
    let mut rules = allowed()?;
    // The filter that comes next is made by two of them.
    for call in [libc::SYS_openat, libc::SYS_getcwd, libc::SYS_seccomp, libc::SYS_prctl] {
        rules.insert(call, Vec::new());
    }
    program(rules, SeccompAction::KillProcess, SeccompAction::Allow)
}

fn program(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    other: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, Failed> {
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, other, listed, arch)?.try_into()?)
}

fn allowed() -> Result<BTreeMap<c_long, Vec<SeccompRule>>, Failed> {
    let whole = CALLS.iter().chain([&OLD_CALLS]).flat_map(|group| group.iter());
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        whole.map(|call| (*call, Vec::new())).collect();
    for (call, argument, values) in NARROWED {
        let each = values.iter().map(|value| rule(*argument, value));
        rules.insert(*call, each.collect::<Result<_, _>>()?);
    }
    // A signal to itself: abort.
    let process = Value::Is(u64::from(std::process::id()));
    rules.insert(libc::SYS_tgkill, vec![rule(0, &process)?]);
    Ok(rules)
}

/// What an argument must be.
enum Value {
    Is(u64),
    /// Of these bits, those.
    Bits(u64, u64),
    Null,
}

fn rule(argument: u8, value: &Value) -> Result<SeccompRule, Failed> {
    let word = SeccompCmpArgLen::Dword;
    let (len, how, value) = match *value {
        Value::Is(value) => (word, SeccompCmpOp::Eq, value),
        Value::Bits(mask, value) => (word, SeccompCmpOp::MaskedEq(mask), value),
        Value::Null => (SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0),
    };
    let condition = SeccompCondition::new(argument, len, how, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

/// Calls that are allowed whatever is given to them. None takes a path.
const CALLS: [&[c_long]; 6] = [
    // The volume, the connection, the log, the mount table, the monitor: open files.
    &[
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_preadv,
        libc::SYS_pwritev,
        libc::SYS_preadv2,
        libc::SYS_pwritev2,
        libc::SYS_lseek,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_sync_file_range,
        libc::SYS_fallocate,
        // What the machine's cache is to forget: what a device that failed did not take.
        libc::SYS_fadvise64,
        libc::SYS_flock,
        libc::SYS_ppoll,
        libc::SYS_close,
    ],
    // FUSE by rings that are there. Their making is not listed.
    &[libc::SYS_io_uring_enter],
    // Who asks at the control socket, and the system's log. Sockets are not made, and go nowhere
    // but where they are connected.
    &[libc::SYS_accept4, libc::SYS_recvfrom, libc::SYS_shutdown, libc::SYS_getsockopt],
    // Memory, but for code: `NARROWED`.
    &[libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk],
    // Threads, their signals and their waiting.
    &[
        libc::SYS_futex,
        libc::SYS_set_robust_list,
        libc::SYS_rseq,
        // Answered by the other filter.
        libc::SYS_clone3,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_sigaltstack,
        libc::SYS_restart_syscall,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ],
    // Time, chance, and who this is.
    &[
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_getrandom,
        libc::SYS_getcpu,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_getuid,
        libc::SYS_geteuid,
        libc::SYS_getgid,
        libc::SYS_getegid,
    ],
];

/// Which later machines have under new names alone.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[c_long] = &[libc::SYS_poll, libc::SYS_time, libc::SYS_gettimeofday];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[c_long] = &[];

const PR_SET_IO_FLUSHER: u64 = 57;
const PR_SET_VMA: u64 = 0x5356_4d41;
const BLKDISCARD: u64 = 0x1277;
const IORING_REGISTER_ENABLE_RINGS: u64 = 12;
const NOT_CODE: Value = Value::Bits(libc::PROT_EXEC as u64, 0);
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;
const THREAD: u64 = libc::CLONE_THREAD as u64;

/// Calls of which one argument (counted from 0) must have one of these values.
const NARROWED: &[(c_long, u8, &[Value])] = &[
    // What is code was mapped before.
    (libc::SYS_mmap, 2, &[NOT_CODE]),
    (libc::SYS_mprotect, 2, &[NOT_CODE]),
    // Threads, and no processes.
    (libc::SYS_clone, 0, &[Value::Bits(THREAD | NAMESPACES, THREAD)]),
    // To whom a socket is connected, and not to an address.
    (libc::SYS_sendto, 4, &[Value::Null]),
    // A ring that was made before is put to use; it takes FUSE's commands alone
    // (`fuse/src/uring/ring.rs`).
    (libc::SYS_io_uring_register, 1, &[Value::Is(IORING_REGISTER_ENABLE_RINGS)]),
    // Patience with who does not read.
    (libc::SYS_setsockopt, 2, &[Value::Is(libc::SO_SNDTIMEO as u64)]),
    // Giving up blocks of a device; a listener that looks whether somebody is there.
    (libc::SYS_ioctl, 1, &[Value::Is(BLKDISCARD), Value::Is(libc::FIONBIO)]),
    (
        libc::SYS_fcntl,
        1,
        &[
            Value::Is(libc::F_DUPFD_CLOEXEC as u64),
            Value::Is(libc::F_GETFD as u64),
            Value::Is(libc::F_GETFL as u64),
            Value::Is(libc::F_SETFL as u64),
            // A part of an image is let go.
            Value::Is(libc::F_OFD_SETLK as u64),
        ],
    ),
    // Names of threads and of memory; threads that clean pages.
    (
        libc::SYS_prctl,
        0,
        &[Value::Is(libc::PR_SET_NAME as u64), Value::Is(PR_SET_VMA), Value::Is(PR_SET_IO_FLUSHER)],
    ),
    // The calling thread's own place.
    (libc::SYS_sched_setaffinity, 0, &[Value::Is(0)]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_list_becomes_a_program() {
        let rules = allowed().unwrap();
        for never in [
            libc::SYS_openat,
            libc::SYS_execve,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_io_uring_setup,
            libc::SYS_ptrace,
            libc::SYS_statx,
        ] {
            assert!(!rules.contains_key(&never), "{never}");
        }
        for (call, _, _) in NARROWED {
            assert!(!CALLS.iter().any(|group| group.contains(call)), "{call} is listed twice");
            assert!(!rules[call].is_empty());
        }
        let refused = SeccompAction::Errno(libc::EPERM as u32);
        program(rules, refused, SeccompAction::Allow).unwrap();
    }

    /// On a thread of its own, which takes it along to its end.
    #[test]
    fn a_thread_that_may_not_open_files_opens_none() {
        let confined = std::thread::spawn(|| {
            let status = restrict(&no_files().unwrap()).unwrap();
            sys::keep_capabilities(KEPT).unwrap();
            (status, std::fs::read("/etc/passwd").map(drop))
        });
        let (status, read) = confined.join().unwrap();
        match status {
            RulesetStatus::NotEnforced => testkit::oracle::record_skip("Landlock", "none here"),
            _ => assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied),
        }
        std::fs::read("/etc/passwd").unwrap();
    }

    /// What libraries' names of calls come to, where a server uses them behind its start.
    const SERVING: &[(&str, c_long)] = &[
        ("clock_gettime", libc::SYS_clock_gettime),
        ("fallocate", libc::SYS_fallocate),
        ("fcntl", libc::SYS_fcntl),
        ("getegid", libc::SYS_getegid),
        ("geteuid", libc::SYS_geteuid),
        ("getgid", libc::SYS_getgid),
        ("getpid", libc::SYS_getpid),
        ("getsockopt", libc::SYS_getsockopt),
        ("getuid", libc::SYS_getuid),
        ("ioctl", libc::SYS_ioctl),
        ("madvise", libc::SYS_madvise),
        ("mmap", libc::SYS_mmap),
        ("munmap", libc::SYS_munmap),
        ("poll", libc::SYS_ppoll),
        ("posix_fadvise64", libc::SYS_fadvise64),
        ("prctl", libc::SYS_prctl),
        ("preadv2", libc::SYS_preadv2),
        ("pthread_sigmask", libc::SYS_rt_sigprocmask),
        ("pwritev", libc::SYS_pwritev),
        ("pwritev2", libc::SYS_pwritev2),
        ("sched_getaffinity", libc::SYS_sched_getaffinity),
        ("sched_getcpu", libc::SYS_getcpu),
        ("sched_setaffinity", libc::SYS_sched_setaffinity),
        ("shutdown", libc::SYS_shutdown),
        ("sigtimedwait", libc::SYS_rt_sigtimedwait),
        ("sigwait", libc::SYS_rt_sigtimedwait),
        ("sync_file_range", libc::SYS_sync_file_range),
        ("write", libc::SYS_write),
    ];
    /// What makes no call, and what only a start, the monitor, another command or a test makes.
    const NOT_SERVING: &[&str] = &[
        "__errno_location",
        "__error",
        "_exit",
        "dup2",
        "fnmatch",
        "fork",
        "fstatat",
        "getpriority",
        "getrlimit",
        "kill",
        "localtime_r",
        "major",
        "makedev",
        "mincore",
        "minor",
        "mktime",
        "mount",
        "openat",
        "raise",
        "readlinkat",
        "recvmsg",
        // A thread that polls is of lowest priority before the start is over.
        "setpriority",
        "setrlimit",
        "setsid",
        "sigaddset",
        "sigdelset",
        "sigemptyset",
        "sigfillset",
        "signal",
        "statx",
        "sysconf",
        // By a number, in `fuse/src/sys/mount.rs` and in this crate's `confine` and `process`: mounts, rights
        // and `close_range`, all at a start.
        "syscall",
        "umask",
        "umount2",
        "unlinkat",
        "waitpid",
    ];

    /// A call that is new to what serves is to be thought of here: refused, nobody would hear of it.
    #[test]
    fn each_call_of_what_serves_is_listed_or_made_before() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let not = ["cli", "btrfs-check", "btrfs-image", "blocksim", "fuzzing", "suites", "testkit"];
        let here = ["sys/confine.rs", "sys/memory.rs", "sys/process.rs", "sys/time.rs", "mount"];
        let here = here.map(|place| crates.join("cli/src").join(place));
        let others = std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path());
        let others = others.filter(|path| !not.iter().any(|name| path.ends_with(name)));
        let places = others.map(|path| path.join("src")).chain(here);
        let (rules, mut found) = (allowed().unwrap(), BTreeSet::new());
        places.for_each(|place| calls_in(&place, &mut found));
        assert!(found.len() > 30, "{found:?}");
        for name in found {
            let call = SERVING.iter().find(|(known, _)| *known == name).map(|(_, call)| call);
            assert!(
                call.is_some() || NOT_SERVING.contains(&&*name),
                "{name} is new: see this test"
            );
            assert!(call.is_none_or(|call| rules.contains_key(call)), "{name} would be refused");
        }
    }

    /// The names behind `libc::` that are called.
    fn calls_in(place: &Path, found: &mut BTreeSet<String>) {
        if place.is_dir() {
            std::fs::read_dir(place)
                .unwrap()
                .for_each(|entry| calls_in(&entry.unwrap().path(), found));
        }
        let text = std::fs::read_to_string(place).unwrap_or_default();
        for behind in text.split("libc::").skip(1) {
            let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            let (name, rest) =
                behind.split_at(behind.find(|l| !is_of_name(l)).unwrap_or(behind.len()));
            if rest.starts_with('(')
                && name.starts_with(|l: char| l.is_ascii_lowercase() || l == '_')
            {
                found.insert(name.to_owned());
            }
        }
    }
}
