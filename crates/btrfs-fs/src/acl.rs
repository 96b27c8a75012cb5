//! POSIX ACLs: what a new inode inherits, and how mode and access ACL follow each other.
//!
//! The stored form is that of the `system.posix_acl_*` attributes ([`vfs::posix_acl`]).

pub(crate) use vfs::posix_acl::{ACCESS, DEFAULT};
use vfs::posix_acl::{GROUP, GROUP_OBJ, MASK, NO_ID, OTHER, USER, USER_OBJ, VERSION, to_bytes};
use vfs::{Errno, Result};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Checks the form of the bytes only: EINVAL for what is not an ACL, EOPNOTSUPP for
    /// another version.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Acl> {
        let bad = || vfs::FsError::Posix(Errno::EINVAL);
        let (head, rest) = bytes.split_at_checked(4).ok_or_else(bad)?;
        if !rest.len().is_multiple_of(8) {
            return Err(bad());
        }
        if u32::from_le_bytes(head.try_into().expect("4 bytes")) != VERSION {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let entry = |e: &[u8]| {
            let tag = u16::from_le_bytes([e[0], e[1]]);
            let named = matches!(tag, USER | GROUP);
            let id = u32::from_le_bytes([e[4], e[5], e[6], e[7]]);
            let perm = u16::from_le_bytes([e[2], e[3]]);
            Entry { tag, perm, id: if named { id } else { NO_ID } }
        };
        Ok(Acl(rest.chunks_exact(8).map(entry).collect()))
    }

    /// The ACL that stands for "remove it".
    pub(crate) fn empty() -> Acl {
        Acl(Vec::new())
    }

    /// Whether the ACL of an inode of `owner` (user, group) grants all of `wanted` to a user, who says
    /// which numbers are his: one that stands for nobody is not.
    pub(crate) fn granted(
        &self,
        owner: (u32, u32),
        is: impl Fn(u32) -> bool,
        in_group: impl Fn(u32) -> bool,
        wanted: u16,
    ) -> bool {
        let find = |tag| self.0.iter().find(|e| e.tag == tag);
        let has = |perm: u16| perm & wanted == wanted;
        let mask = find(MASK).map_or(0o7, |e| e.perm);
        if is(owner.0) {
            return find(USER_OBJ).is_some_and(|e| has(e.perm));
        }
        if let Some(user) = self.0.iter().find(|e| e.tag == USER && is(e.id)) {
            return has(user.perm & mask);
        }
        let mine = |e: &&Entry| match e.tag {
            GROUP_OBJ => in_group(owner.1),
            GROUP => in_group(e.id),
            _ => false,
        };
        let mut groups = self.0.iter().filter(mine).peekable();
        if groups.peek().is_some() {
            return groups.any(|e| has(e.perm & mask));
        }
        find(OTHER).is_some_and(|e| has(e.perm))
    }

    pub(crate) fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        let known = self.0.iter().all(|e| {
            e.perm & !7 == 0 && matches!(e.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER)
        });
        let named = count(USER) + count(GROUP) > 0;
        let ordered = self.0.windows(2).all(|w| w[0].tag <= w[1].tag);
        known
            && ordered
            && count(USER_OBJ) == 1
            && count(GROUP_OBJ) == 1
            && count(OTHER) == 1
            && count(MASK) <= 1
            && (!named || count(MASK) == 1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        to_bytes(self.0.iter().map(|entry| (entry.tag, entry.perm, entry.id)))
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    fn set(&mut self, tag: u16, perm: u16) {
        self.0.iter_mut().filter(|e| e.tag == tag).for_each(|e| e.perm = perm);
    }

    fn group_class(&self) -> u16 {
        if self.perm(MASK).is_some() { MASK } else { GROUP_OBJ }
    }

    /// The nine permission bits that the ACL stands for.
    pub(crate) fn mode(&self) -> u32 {
        let part = |tag| u32::from(self.perm(tag).unwrap_or(0));
        part(USER_OBJ) << 6 | part(self.group_class()) << 3 | part(OTHER)
    }

    /// True if the nine bits say all that the ACL says.
    pub(crate) fn is_plain(&self) -> bool {
        self.0.len() == 3
    }

    /// `chmod`: owner, group class and others get the bits of `mode`.
    pub(crate) fn chmod(&mut self, mode: u32) {
        self.set(USER_OBJ, (mode >> 6 & 7) as u16);
        self.set(self.group_class(), (mode >> 3 & 7) as u16);
        self.set(OTHER, (mode & 7) as u16);
    }

    /// Cuts a default ACL to what the creator asked for; returns the resulting mode.
    fn create(&mut self, mode: u32) -> u32 {
        let cut = |perm: Option<u16>, bits: u32| perm.unwrap_or(0) & (bits & 7) as u16;
        let owner = cut(self.perm(USER_OBJ), mode >> 6);
        let class = self.group_class();
        let group = cut(self.perm(class), mode >> 3);
        let other = cut(self.perm(OTHER), mode);
        self.set(USER_OBJ, owner);
        self.set(class, group);
        self.set(OTHER, other);
        mode & !0o777 | u32::from(owner) << 6 | u32::from(group) << 3 | u32::from(other)
    }
}

/// What a new inode gets.
pub(crate) struct Inherited {
    pub mode: u32,
    pub access: Option<Vec<u8>>,
    pub default: Option<Vec<u8>>,
}

/// `parent_default` is the directory's default ACL. Without one the umask counts.
pub(crate) fn inherit(
    parent_default: Option<&[u8]>,
    mode: u32,
    umask: u16,
    is_dir: bool,
) -> Result<Inherited> {
    let plain = Inherited { mode: mode & !u32::from(umask & 0o777), access: None, default: None };
    let Some(bytes) = parent_default else { return Ok(plain) };
    let mut acl = Acl::parse(bytes)?;
    if acl.is_empty() {
        return Ok(plain);
    }
    let default = is_dir.then(|| bytes.to_vec());
    let mode = acl.create(mode);
    let access = (!acl.is_plain()).then(|| acl.to_vec());
    Ok(Inherited { mode, access, default })
}
