//! Who makes a request, where that decides: which of a file's special mode bits a change takes
//! away, and whether the caller administers the machine.
//!
//! A kernel that knows idmapped mounts tells user and group only of who makes a file, as they
//! are on the volume; all other requests have -1.
//!
//! Set-user-ID always goes, set-group-ID where group execution is allowed or the caller is
//! not in the file's group; neither goes for who has CAP_FSETID. Linux decides that a change
//! takes bits away and says so, but not which: groups and capabilities are not in a request.
//! They are looked up (`callers.rs`), and only where they decide.
//!
//! Of a caller that cannot be looked at (another process namespace, `hidepid`) only the
//! user and group of the request are known, if they are: root keeps the bits and administers,
//! others have no other groups.

use super::request::Request;
use crate::abi::record::InHeader;
use crate::callers::{Callers, Credentials};
use vfs::{Attr, SetAttr, Who};

const CAP_FOWNER: u64 = 1 << 3;
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
pub(super) fn killing(callers: &dyn Callers, request: &Request<'_>, attr: &Attr) -> SetAttr {
    let group_decides = attr.perm & (ISGID | IXGRP) == ISGID;
    let outside = || {
        let caller = Caller::of(callers, &request.header, attr.gid);
        !caller.in_group && !caller.keeps_bits
    };
    SetAttr { kill_priv: true, kill_sgid: group_decides && outside(), ..SetAttr::default() }
}

/// Whether it may be this caller's doing that bits go where the kernel names nothing. That is how
/// it asks before a write by somebody who may not keep them, and for `chown(-1, -1)`, which only
/// an owner may where there are such bits; the kernel leaves that to us and would let everybody.
pub(super) fn may_take_bits(callers: &dyn Callers, request: &Request<'_>, attr: &Attr) -> bool {
    let header = &request.header;
    // The group's bits are the most that an ACL gives to anybody.
    let others_write = attr.perm & (libc::S_IWGRP | libc::S_IWOTH) as u16 != 0;
    // Of whom nothing can be seen all may be.
    others_write
        || look(callers, header)
            .is_none_or(|seen| seen.user == attr.uid || has(&seen, CAP_FOWNER, header))
}

/// What goes where the kernel says nothing; `None` if nothing does.
pub(super) fn killing_unasked(
    callers: &dyn Callers,
    request: &Request<'_>,
    attr: &Attr,
) -> Option<SetAttr> {
    if attr.perm & (ISUID | ISGID) == 0 {
        return None;
    }
    let caller = Caller::of(callers, &request.header, attr.gid);
    let executed = attr.perm & IXGRP != 0;
    let kill_sgid = attr.perm & ISGID != 0 && !executed && !caller.in_group;
    let kills = attr.perm & ISUID != 0 || attr.perm & ISGID != 0 && executed || kill_sgid;
    let set = SetAttr { kill_priv: true, kill_sgid, ..SetAttr::default() };
    (kills && !caller.keeps_bits).then_some(set)
}

/// Whether the caller, who is in an ioctl of `command`, has CAP_SYS_ADMIN here.
pub(super) fn is_admin(callers: &dyn Callers, request: &Request<'_>, command: u32) -> bool {
    let header = &request.header;
    match look_in_ioctl(callers, header, command) {
        Some(seen) => has(&seen, CAP_SYS_ADMIN, header),
        None => header.uid == 0,
    }
}

/// Who the caller is, to somebody who decides himself. The ordinary user who mounted what is
/// served (`server`) may do with it what he likes, as he may with what is below it; of root the
/// capability decides.
pub(super) fn who(callers: &dyn Callers, request: &Request<'_>, command: u32, server: u32) -> Who {
    let header = &request.header;
    match look_in_ioctl(callers, header, command) {
        Some(seen) => Who {
            uid: seen.user,
            gid: seen.group,
            admin: server != 0 && seen.user == server || has(&seen, CAP_SYS_ADMIN, header),
            groups: seen.groups,
            umask: seen.umask,
        },
        None => Who {
            uid: header.uid,
            gid: header.gid,
            groups: Vec::new(),
            umask: 0o077,
            admin: header.uid == 0,
        },
    }
}

/// The mode of a shutdown, which the caller has at `address`.
pub(super) fn shutdown_mode(
    callers: &dyn Callers,
    request: &Request<'_>,
    address: u64,
) -> Option<u32> {
    let pid = request.header.pid;
    (pid != 0).then(|| callers.shutdown_mode(pid, address))?
}

fn look(callers: &dyn Callers, header: &InHeader) -> Option<Credentials> {
    (header.pid != 0).then(|| callers.credentials(header.pid))?
}

/// Whom the kernel does not ask for rights gets none by a program that took his place: nobody's
/// then, and no capabilities where that cannot be seen.
fn look_in_ioctl(callers: &dyn Callers, header: &InHeader, command: u32) -> Option<Credentials> {
    let seen = look(callers, header)?;
    Some(match callers.is_in_ioctl(header.pid, command) {
        Some(true) => seen,
        Some(false) => Credentials::default(),
        None => Credentials { capabilities: 0, ..seen },
    })
}

/// Capabilities of another user namespace are none here, be their holder root or not: who has none may make himself
/// such a namespace, and has all of them in there. Where that cannot be seen root's are taken for ours.
fn has(seen: &Credentials, capability: u64, header: &InHeader) -> bool {
    seen.capabilities & capability != 0 && seen.ours.unwrap_or(header.uid == 0)
}

impl Caller {
    fn of(callers: &dyn Callers, header: &InHeader, gid: u32) -> Caller {
        match look(callers, header) {
            Some(seen) => Caller {
                in_group: seen.group == gid || seen.groups.contains(&gid),
                keeps_bits: has(&seen, CAP_FSETID, header),
            },
            None => Caller { in_group: header.gid == gid, keeps_bits: header.uid == 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Capabilities that root made himself in another namespace count for nothing.
    #[test]
    fn capabilities_of_elsewhere_are_none() {
        let [root, other] = [0, 1000].map(|uid| InHeader { uid, ..InHeader::default() });
        let of = |ours| Credentials { capabilities: u64::MAX, ours, ..Credentials::default() };
        for (ours, expected) in
            [(Some(true), [true, true]), (Some(false), [false; 2]), (None, [true, false])]
        {
            let seen = of(ours);
            assert_eq!([&root, &other].map(|header| has(&seen, CAP_SYS_ADMIN, header)), expected);
        }
    }
}
