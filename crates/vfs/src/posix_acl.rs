//! How POSIX ACLs stand in the `system.posix_acl_*` attributes (linux/posix_acl_xattr.h): a
//! little-endian version, then entries of tag, permissions and id.

/// Of any inode: who may do what.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Of a directory: what its children get.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The only version there is.
pub const VERSION: u32 = 2;
/// Bytes of the version.
pub const HEAD: usize = 4;
/// Bytes of an entry.
pub const ENTRY: usize = 8;

/// Tag: the owner.
pub const USER_OBJ: u16 = 0x01;
/// Tag: a user by id.
pub const USER: u16 = 0x02;
/// Tag: the owner's group.
pub const GROUP_OBJ: u16 = 0x04;
/// Tag: a group by id.
pub const GROUP: u16 = 0x08;
/// Tag: the most that users and groups by id, and the owner's group, can have.
pub const MASK: u16 = 0x10;
/// Tag: all others.
pub const OTHER: u16 = 0x20;
/// The id of entries that name nobody.
pub const NO_ID: u32 = u32::MAX;

/// Whether the attribute of this name is an ACL.
pub fn is_acl(name: &[u8]) -> bool {
    matches!(name, ACCESS | DEFAULT)
}

/// An attribute of these entries: tag, permissions and id of each, in order.
pub fn to_bytes(entries: impl IntoIterator<Item = (u16, u16, u32)>) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}
