//! Who makes a request, where that decides: which of a file's special mode bits a change takes
//! away, and whether the caller administers the machine.
//!
//! A kernel that knows idmapped mounts tells user and group only of who makes a file, as they
//! are on the volume; all other requests have -1.
//!
//! Set-user-ID always goes, set-group-ID where group execution is allowed or the caller is
//! not in the file's group; neither goes for who has CAP_FSETID. Linux decides that a change
//! takes bits away and says so, but not which: groups and capabilities are not in a request.
//! They are read from `/proc`, and only where they decide.
//!
//! Of a caller that cannot be looked at (another process namespace, `hidepid`) only the
//! user and group of the request are known, if they are: root keeps the bits and administers,
//! others have no other groups.

use super::request::Request;
use crate::abi::record::InHeader;
use std::fs::File;
use std::os::unix::fs::FileExt;
use vfs::{Attr, SetAttr};

const CAP_FSETID: u64 = 1 << 4;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const ISUID: u16 = libc::S_ISUID as u16;
const ISGID: u16 = libc::S_ISGID as u16;
const IXGRP: u16 = libc::S_IXGRP as u16;

struct Caller {
    in_group: bool,
    keeps_bits: bool,
}

/// What goes where the kernel says that something does.
pub(super) fn killing(request: &Request<'_>, attr: &Attr) -> SetAttr {
    let group_decides = attr.perm & (ISGID | IXGRP) == ISGID;
    let outside = || {
        let caller = Caller::of(&request.header, attr.gid);
        !caller.in_group && !caller.keeps_bits
    };
    SetAttr { kill_priv: true, kill_sgid: group_decides && outside(), ..SetAttr::default() }
}

/// What goes where the kernel says nothing; `None` if nothing does.
pub(super) fn killing_unasked(request: &Request<'_>, attr: &Attr) -> Option<SetAttr> {
    if attr.perm & (ISUID | ISGID) == 0 {
        return None;
    }
    let caller = Caller::of(&request.header, attr.gid);
    let executed = attr.perm & IXGRP != 0;
    let kill_sgid = attr.perm & ISGID != 0 && !executed && !caller.in_group;
    let kills = attr.perm & ISUID != 0 || attr.perm & ISGID != 0 && executed || kill_sgid;
    let set = SetAttr { kill_priv: true, kill_sgid, ..SetAttr::default() };
    (kills && !caller.keeps_bits).then_some(set)
}

/// Whether the caller has CAP_SYS_ADMIN here.
pub(super) fn is_admin(request: &Request<'_>) -> bool {
    let header = &request.header;
    match status_of(header) {
        Some(status) => {
            effective(&status) & CAP_SYS_ADMIN != 0
                && (header.uid == 0 || in_our_user_namespace(header.pid))
        }
        None => header.uid == 0,
    }
}

/// Four bytes of the caller's memory.
pub(super) fn memory(request: &Request<'_>, at: u64) -> Option<[u8; 4]> {
    let pid = request.header.pid;
    let memory = (pid != 0).then(|| File::open(format!("/proc/{pid}/mem")).ok())??;
    let mut bytes = [0; 4];
    memory.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
}

fn status_of(header: &InHeader) -> Option<String> {
    let path = (header.pid != 0).then(|| format!("/proc/{}/status", header.pid))?;
    std::fs::read_to_string(path).ok()
}

fn line<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

fn effective(status: &str) -> u64 {
    let set = line(status, "CapEff:").and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.unwrap_or(0)
}

impl Caller {
    fn of(header: &InHeader, gid: u32) -> Caller {
        match status_of(header) {
            Some(status) => {
                let seen = Caller::from_status(&status, gid);
                // Capabilities of another user namespace are none here.
                let ours = || header.uid == 0 || in_our_user_namespace(header.pid);
                Caller { keeps_bits: seen.keeps_bits && ours(), ..seen }
            }
            None => Caller { in_group: header.gid == gid, keeps_bits: header.uid == 0 },
        }
    }

    fn from_status(status: &str, gid: u32) -> Caller {
        let line = |name: &str| line(status, name);
        let is_gid = |word: &str| word.parse() == Ok(gid);
        // Real, effective, saved, and that for file systems.
        let own = line("Gid:").and_then(|ids| ids.split_whitespace().nth(3)).is_some_and(is_gid);
        let more = line("Groups:").is_some_and(|ids| ids.split_whitespace().any(is_gid));
        Caller { in_group: own || more, keeps_bits: effective(status) & CAP_FSETID != 0 }
    }
}

fn in_our_user_namespace(pid: u32) -> bool {
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/user")).ok();
    let ours = of("self");
    ours.is_some() && of(&pid.to_string()) == ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_capabilities_are_read() {
        let status = "Name:\tx\nGid:\t1\t2\t3\t4\nGroups:\t7 20 \nCapEff:\t0000000000000010\n";
        let seen = |gid| Caller::from_status(status, gid);
        assert!(seen(4).in_group && seen(7).in_group && seen(20).in_group && seen(4).keeps_bits);
        assert!(!seen(1).in_group && !seen(2).in_group);
        assert!(!Caller::from_status("CapEff:\tffffffef\n", 4).keeps_bits);
        assert!(!Caller::from_status("", 0).in_group);
        assert!(in_our_user_namespace(std::process::id()));
    }
}
