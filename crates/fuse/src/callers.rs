//! What a request does not say of who makes it: groups, capabilities, and what an ioctl points
//! at. Read from `/proc` (`Proc`), or by somebody else for a server that may not open files.
//!
//! It does not know what they decide (`dispatch/caller.rs`).

use std::fmt::Debug;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// A process's, at the time of the look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The effective capabilities, as a set of bits.
    pub capabilities: u64,
    /// Whether they are those of the user namespace that the server is in; `None` if that cannot be seen. Not looked
    /// at where there are none.
    pub ours: Option<bool>,
    /// The user that decides about files.
    pub user: u32,
    /// The group that does.
    pub group: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// Permission bits that new files do not get.
    pub umask: u16,
}

/// Nobody.
impl Default for Credentials {
    fn default() -> Credentials {
        let (user, group) = (u32::MAX, u32::MAX);
        Credentials {
            capabilities: 0,
            ours: Some(false),
            user,
            group,
            groups: Vec::new(),
            umask: 0o777,
        }
    }
}

/// Looks at the processes (or threads) that make requests.
pub trait Callers: Debug + Send + Sync {
    /// `None` if the process cannot be looked at: another process namespace, `hidepid`.
    fn credentials(&self, process: u32) -> Option<Credentials>;

    /// Whether the thread waits in an ioctl of `command`. Only then what was looked at before is of
    /// who made the request: meanwhile another thread may have made another program of the
    /// process (`execve`), with more rights than who asked (set-user-ID), which has that number
    /// from then on. `None` if nobody may see it: another user's, Yama.
    fn is_in_ioctl(&self, thread: u32, command: u32) -> Option<bool>;

    /// The mode of `FS_IOC_SHUTDOWN` at `address` of the caller's memory; `u32::MAX` stands for
    /// whatever is none, so that nobody learns more of that memory than this.
    fn shutdown_mode(&self, process: u32, address: u64) -> Option<u32>;
}

/// From `/proc`, with the rights of this process.
#[derive(Clone, Copy, Debug)]
pub struct Proc;

impl Callers for Proc {
    fn credentials(&self, process: u32) -> Option<Credentials> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let seen = from_status(&status);
        let ours =
            if seen.capabilities == 0 { Some(false) } else { is_in_our_user_namespace(process) };
        Some(Credentials { ours, ..seen })
    }

    fn is_in_ioctl(&self, thread: u32, command: u32) -> Option<bool> {
        // Its request may be here before it sleeps.
        /// Chosen, not measured.
        const LOOKS: u32 = 200;
        for _ in 0..LOOKS {
            let call = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
            if call.trim_end() != "running" {
                return Some(is_ioctl(&call, command));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(false)
    }

    fn shutdown_mode(&self, process: u32, address: u64) -> Option<u32> {
        const LAST: u32 = 2;
        let memory = File::open(format!("/proc/{process}/mem")).ok()?;
        let mut bytes = [0; 4];
        memory.read_exact_at(&mut bytes, address).ok()?;
        let mode = u32::from_ne_bytes(bytes);
        Some(if mode <= LAST { mode } else { u32::MAX })
    }
}

/// But for `ours`. What is not told is none, and no group.
fn from_status(status: &str) -> Credentials {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    let numbers =
        |name: &str| -> Vec<u32> { line(name).split_whitespace().flat_map(str::parse).collect() };
    // Real, effective, saved, and that for file systems.
    let own = |name: &str| -> Option<u32> { numbers(name).get(3).copied() };
    Credentials {
        capabilities: u64::from_str_radix(line("CapEff:").trim(), 16).unwrap_or(0),
        ours: Some(false),
        user: own("Uid:").unwrap_or(u32::MAX),
        group: own("Gid:").unwrap_or(u32::MAX),
        groups: numbers("Groups:"),
        umask: u16::from_str_radix(line("Umask:").trim(), 8).unwrap_or(0o777),
    }
}

/// A line of `/proc/TID/syscall`: the number, then the arguments. The numbers are not looked at, as
/// they differ by the caller's kind of program: no other call has such a second argument.
fn is_ioctl(call: &str, command: u32) -> bool {
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    // A number's upper half is whatever was in the register.
    call.split_whitespace().nth(2).and_then(hex).is_some_and(|second| second as u32 == command)
}

fn is_in_our_user_namespace(process: u32) -> Option<bool> {
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/user")).ok();
    Some(of(&process.to_string())? == of("self")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_elsewhere_by_now_did_not_ask() {
        let call = "16 0x3 0x5000940e 0x7ffd1 0x0 0x0 0x0 0x7ffd0 0x7f01\n";
        assert!(is_ioctl(call, 0x5000_940e));
        assert!(is_ioctl("16 0x3 0xffffffff9000940e 0x1 0x0 0x0 0x0 0x1 0x1", 0x9000_940e));
        for other in ["-1 0x7ffd1 0x7f01", "0 0x3 0x7ffd1 0x10", "", "59"] {
            assert!(!is_ioctl(other, 0x5000_940e), "{other}");
        }
        // A thread that waits for something else.
        let (id, known) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            id.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            let _ = wait.recv();
        });
        let thread = known.recv().unwrap();
        let thread = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert_ne!(Proc.is_in_ioctl(thread, 0x5000_940e), Some(true));
        drop(end);
        other.join().unwrap();
        assert_eq!(Proc.is_in_ioctl(u32::MAX, 0x5000_940e), None);
    }

    #[test]
    fn groups_and_capabilities_are_read() {
        let status = "Name:\tx\nUmask:\t0027\nUid:\t5\t6\t7\t8\nGid:\t1\t2\t3\t4\nGroups:\t7 20 \nCapEff:\t0000000000000010\n";
        let (user, group, groups, umask) = (8, 4, vec![7, 20], 0o27);
        let expected =
            Credentials { capabilities: 16, ours: Some(false), user, group, groups, umask };
        assert_eq!(from_status(status), expected);
        assert_eq!(from_status("CapEff:\tffffffef\n").capabilities, 0xffff_ffef);
        assert_eq!(from_status(""), Credentials::default());
        assert_eq!(is_in_our_user_namespace(std::process::id()), Some(true));
        let me = Proc.credentials(std::process::id()).unwrap();
        assert_eq!(me.ours, Some(me.capabilities != 0));
    }

    #[test]
    fn no_more_than_a_mode_is_told_of_memory() {
        let here = |number: &u32| Proc.shutdown_mode(std::process::id(), &raw const *number as u64);
        assert_eq!((here(&0), here(&2)), (Some(0), Some(2)));
        assert_eq!((here(&3), here(&0x1234_5678)), (Some(u32::MAX), Some(u32::MAX)));
        assert_eq!(Proc.shutdown_mode(std::process::id(), 8), None);
    }
}
