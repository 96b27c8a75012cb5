//! How POSIX ACLs stand in the `system.posix_acl_*` attributes (linux/posix_acl_xattr.h): a
//! little-endian version, then entries of tag, permissions and id.

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

pub const VERSION: u32 = 2;
/// Bytes of the version.
pub const HEAD: usize = 4;
/// Bytes of an entry.
pub const ENTRY: usize = 8;

pub const USER_OBJ: u16 = 0x01;
pub const USER: u16 = 0x02;
pub const GROUP_OBJ: u16 = 0x04;
pub const GROUP: u16 = 0x08;
pub const MASK: u16 = 0x10;
pub const OTHER: u16 = 0x20;
/// The id of entries that name nobody.
pub const NO_ID: u32 = u32::MAX;
