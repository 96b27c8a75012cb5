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
use crate::callers::{Call, Callers, Credentials};
use vfs::{Attr, Exempt, Ino, NOBODY, SetAttr, Who};

const CAP_DAC_OVERRIDE: u64 = 1 << 1;
const CAP_DAC_READ_SEARCH: u64 = 1 << 2;
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
pub(super) fn is_admin(callers: &dyn Callers, request: &Request<'_>, call: (u32, Ino)) -> bool {
    let header = &request.header;
    match look_in_ioctl(callers, header, call) {
        Some((seen, _)) => has(&seen, CAP_SYS_ADMIN, header),
        None => header.uid == 0,
    }
}

/// Who the caller is, to somebody who decides himself. The ordinary user who mounted what is
/// served (`server`) may do with it what he likes, as he may with what is below it; of root the
/// capability decides.
///
/// What his numbers are through an idmapped mount is not known.
pub(super) fn who(callers: &dyn Callers, header: &InHeader, call: (u32, Ino), server: u32) -> Who {
    match look_in_ioctl(callers, header, call) {
        Some((seen, true)) => unnumbered(of_seen(seen, header, server)),
        Some((seen, false)) => of_seen(seen, header, server),
        None => of_the_request(header),
    }
}

fn of_seen(seen: Credentials, header: &InHeader, server: u32) -> Who {
    let mounted = server != 0 && seen.user == server;
    let may = |capability| mounted || has(&seen, capability, header);
    Who {
        uid: seen.user,
        gid: seen.group,
        unknown: seen.user == NOBODY,
        exempt: Exempt {
            bits: may(CAP_DAC_OVERRIDE),
            reading: may(CAP_DAC_READ_SEARCH),
            owners: may(CAP_FOWNER),
        },
        admin: may(CAP_SYS_ADMIN),
        groups: seen.groups,
        umask: seen.umask,
    }
}

/// Rules about files do not hold for administrators alone: the kernel exempts others from those about files that the
/// mount has numbers for.
fn unnumbered(who: Who) -> Who {
    let exempt = if who.admin { who.exempt } else { Exempt::default() };
    Who { uid: NOBODY, gid: NOBODY, unknown: true, groups: Vec::new(), exempt, ..who }
}

fn of_the_request(header: &InHeader) -> Who {
    let admin = header.uid == 0;
    Who {
        uid: header.uid,
        gid: header.gid,
        unknown: header.uid == NOBODY,
        exempt: if admin { Exempt::ALL } else { Exempt::default() },
        groups: Vec::new(),
        umask: 0o077,
        admin,
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
/// Also, whether he came by an idmapped mount.
fn look_in_ioctl(
    callers: &dyn Callers,
    header: &InHeader,
    (command, ino): (u32, Ino),
) -> Option<(Credentials, bool)> {
    let seen = look(callers, header)?;
    Some(match callers.call(header.pid, command, ino.0) {
        Some(Call::Plain) => (seen, false),
        Some(Call::Mapped) => (seen, true),
        Some(Call::Elsewhere) => (Credentials::default(), false),
        None => (Credentials { capabilities: 0, ..seen }, false),
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
    use std::sync::Arc;

    /// Tells the same of everybody.
    #[derive(Debug)]
    struct Seen(Option<Credentials>);
    impl Callers for Seen {
        fn credentials(&self, _: u32) -> Option<Credentials> {
            self.0.clone()
        }
        fn of_mount(&self, _: &str) -> Option<Arc<dyn Callers>> {
            None
        }
        fn call(&self, _: u32, command: u32, ino: u64) -> Option<Call> {
            assert_eq!(ino, 257);
            Some([Call::Plain, Call::Elsewhere, Call::Mapped][command as usize - 7])
        }
        fn shutdown_mode(&self, _: u32, _: u64) -> Option<u32> {
            None
        }
    }

    /// Who is not seen is not known where the request does not say him; and each capability is for what it is.
    #[test]
    fn who_asks_has_what_is_seen_of_him() {
        let asks = |seen, uid, command| {
            let header = InHeader { uid, gid: uid, pid: 5, ..InHeader::default() };
            who(&Seen(seen), &header, (command, Ino(257)), 1000)
        };
        assert!(asks(None, NOBODY, 7).unknown && !asks(None, NOBODY, 7).admin);
        assert!(!asks(None, 5, 7).unknown && asks(None, 0, 7).exempt == Exempt::ALL);
        let of = |user, capabilities| {
            Some(Credentials { user, capabilities, ours: Some(true), ..Credentials::default() })
        };
        let gone = asks(of(0, u64::MAX), NOBODY, 8);
        assert!(gone.unknown && !gone.admin && gone.exempt == Exempt::default());
        let exempt = |capability| {
            let who = asks(of(5, capability), NOBODY, 7);
            [who.exempt.bits, who.exempt.reading, who.exempt.owners, who.admin, who.unknown]
        };
        assert_eq!(exempt(CAP_DAC_OVERRIDE), [true, false, false, false, false]);
        assert_eq!(exempt(CAP_DAC_READ_SEARCH), [false, true, false, false, false]);
        assert_eq!(exempt(CAP_FOWNER), [false, false, true, false, false]);
        assert_eq!(exempt(CAP_SYS_ADMIN), [false, false, false, true, false]);
        let mapped = asks(of(5, !CAP_SYS_ADMIN), NOBODY, 9);
        assert!(mapped.unknown && mapped.uid == NOBODY && mapped.exempt == Exempt::default());
        assert!(!mapped.admin && asks(of(5, CAP_SYS_ADMIN), NOBODY, 9).admin);
        let server = asks(of(1000, 0), NOBODY, 7);
        assert!(server.admin && server.exempt == Exempt::ALL, "who mounted it");
    }

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
