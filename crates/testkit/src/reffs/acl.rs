//! POSIX access control lists as the kernel keeps them: the `system.posix_acl_*`
//! attribute bytes, their check, inheritance, and their tie to the mode bits.
//!
//! An ACL that says no more than the mode is never stored.

use vfs::{Errno, Result};

pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Debug)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Acl(Vec<AclEntry>);

fn le16(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn le32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl Acl {
    /// `None` for an ACL without entries, which means "remove". Only the form of the
    /// bytes is checked here.
    pub fn parse(bytes: &[u8]) -> Result<Option<Acl>> {
        if bytes.len() < 4 || !(bytes.len() - 4).is_multiple_of(8) {
            return Err(Errno::EINVAL.into());
        }
        if le32(bytes) != VERSION {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let entry = |raw: &[u8]| {
            let (tag, perm) = (le16(raw), le16(&raw[2..]));
            let id = if matches!(tag, USER | GROUP) { le32(&raw[4..]) } else { NO_ID };
            AclEntry { tag, perm, id }
        };
        let acl = Acl(bytes[4..].chunks_exact(8).map(entry).collect());
        Ok(if acl.0.is_empty() { None } else { Some(acl) })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.perm.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
        }
        bytes
    }

    /// The order is owner, users, owning group, groups, mask, others; a mask is there
    /// if anybody is named.
    pub fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let ordered = self.0.is_sorted_by_key(|entry| entry.tag);
        let known = self.0.iter().all(|entry| {
            entry.perm <= 7
                && matches!(entry.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER)
                && (!matches!(entry.tag, USER | GROUP) || entry.id != NO_ID)
        });
        let named = count(USER) + count(GROUP) > 0;
        let masks = count(MASK);
        known
            && ordered
            && [USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(|tag| count(tag) == 1)
            && (masks == 1 || (masks == 0 && !named))
    }

    /// True if the mode bits say all that the list says.
    pub fn is_plain(&self) -> bool {
        self.0.iter().all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// How far the entry's three bits stand from the right in the mode, for the entries
    /// that the mode mirrors. The mask, where there is one, takes the group's place.
    fn shift(&self, tag: u16) -> Option<u16> {
        let masked = self.0.iter().any(|entry| entry.tag == MASK);
        match tag {
            USER_OBJ => Some(6),
            MASK => Some(3),
            GROUP_OBJ if !masked => Some(3),
            OTHER => Some(0),
            _ => None,
        }
    }

    /// The nine permission bits that the list stands for.
    pub fn mode(&self) -> u16 {
        let bits = |entry: &AclEntry| self.shift(entry.tag).map(|shift| entry.perm << shift);
        self.0.iter().filter_map(bits).fold(0, |mode, bits| mode | bits)
    }

    /// Follows a chmod.
    pub fn set_mode(&mut self, perm: u16) {
        let shifts: Vec<_> = self.0.iter().map(|entry| self.shift(entry.tag)).collect();
        for (entry, shift) in self.0.iter_mut().zip(shifts) {
            if let Some(shift) = shift {
                entry.perm = perm >> shift & 7;
            }
        }
    }

    /// The access list of a new inode that asked for `perm` below a directory with this
    /// default list, and the permissions it really gets.
    pub fn inherit(&self, perm: u16) -> (Acl, u16) {
        let granted = perm & self.mode();
        let mut acl = self.clone();
        acl.set_mode(granted);
        (acl, perm & !0o777 | granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries.iter().map(|&(tag, perm, id)| AclEntry { tag, perm, id }).collect();
        Acl(entries).to_bytes()
    }

    #[test]
    fn the_mask_takes_the_place_of_the_group() {
        let bytes = acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 1000),
            (GROUP_OBJ, 7, NO_ID),
            (MASK, 5, NO_ID),
            (OTHER, 1, NO_ID),
        ]);
        let list = Acl::parse(&bytes).unwrap().unwrap();
        assert_eq!(list.mode(), 0o751);
        assert!(!list.is_plain());
        let (access, perm) = list.inherit(0o2640);
        assert_eq!(perm, 0o2640);
        assert_eq!(access.mode(), 0o640);
    }

    #[test]
    fn malformed_lists_are_refused() {
        let no_mask =
            acl(&[(USER_OBJ, 7, NO_ID), (USER, 6, 1000), (GROUP_OBJ, 7, NO_ID), (OTHER, 1, NO_ID)]);
        let unordered = acl(&[(GROUP_OBJ, 7, NO_ID), (USER_OBJ, 7, NO_ID), (OTHER, 1, NO_ID)]);
        for bytes in [no_mask, unordered] {
            assert!(!Acl::parse(&bytes).unwrap().unwrap().is_valid());
        }
        assert_eq!(Acl::parse(&[2, 0, 0]).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(Acl::parse(&[1, 0, 0, 0]).unwrap_err().errno(), libc::EOPNOTSUPP);
        assert!(Acl::parse(&[2, 0, 0, 0]).unwrap().is_none());
    }
}
