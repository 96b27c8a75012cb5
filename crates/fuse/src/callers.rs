//! What a request does not say of who makes it: groups, capabilities, and what an ioctl points
//! at. Read from `/proc` (`Proc`), or by somebody else for a server that may not open files.
//!
//! It does not know what they decide (`dispatch/caller.rs`).

use std::fmt::Debug;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A process's, at the time of the look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The effective capabilities, as a set of bits.
    pub capabilities: u64,
    /// They are those of the user namespace that the server is in. Not looked at where there
    /// are none.
    pub ours: bool,
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
        Credentials { capabilities: 0, ours: false, user, group, groups: Vec::new(), umask: 0o777 }
    }
}

/// Looks at the processes (or threads) that make requests.
pub trait Callers: Debug + Send + Sync {
    /// `None` if the process cannot be looked at: another process namespace, `hidepid`.
    fn credentials(&self, process: u32) -> Option<Credentials>;

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
        let ours = seen.capabilities != 0 && in_our_user_namespace(process);
        Some(Credentials { ours, ..seen })
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
        ours: false,
        user: own("Uid:").unwrap_or(u32::MAX),
        group: own("Gid:").unwrap_or(u32::MAX),
        groups: numbers("Groups:"),
        umask: u16::from_str_radix(line("Umask:").trim(), 8).unwrap_or(0o777),
    }
}

fn in_our_user_namespace(process: u32) -> bool {
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/user")).ok();
    let ours = of("self");
    ours.is_some() && of(&process.to_string()) == ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_capabilities_are_read() {
        let status = "Name:\tx\nUmask:\t0027\nUid:\t5\t6\t7\t8\nGid:\t1\t2\t3\t4\nGroups:\t7 20 \nCapEff:\t0000000000000010\n";
        let (user, group, groups, umask) = (8, 4, vec![7, 20], 0o27);
        let expected = Credentials { capabilities: 16, ours: false, user, group, groups, umask };
        assert_eq!(from_status(status), expected);
        assert_eq!(from_status("CapEff:\tffffffef\n").capabilities, 0xffff_ffef);
        assert_eq!(from_status(""), Credentials::default());
        assert!(in_our_user_namespace(std::process::id()));
        let me = Proc.credentials(std::process::id()).unwrap();
        assert_eq!(me.ours, me.capabilities != 0);
    }

    #[test]
    fn no_more_than_a_mode_is_told_of_memory() {
        let here = |number: &u32| Proc.shutdown_mode(std::process::id(), &raw const *number as u64);
        assert_eq!((here(&0), here(&2)), (Some(0), Some(2)));
        assert_eq!((here(&3), here(&0x1234_5678)), (Some(u32::MAX), Some(u32::MAX)));
        assert_eq!(Proc.shutdown_mode(std::process::id(), 8), None);
    }
}
