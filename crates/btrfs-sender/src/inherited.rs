//! What the receiver's file system gives a new inode of its directory, unasked: ACLs, the
//! compression property, and the flag that content is written in place.

use btrfs_disk::items::inode_flags;

pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
const PROPERTIES: &[u8] = b"btrfs.";
pub(crate) const COMPRESSION: &[u8] = b"btrfs.compression";

/// Whether what is made in a directory with this attribute inherits something of it.
pub(crate) fn is_inherited(name: &[u8]) -> bool {
    name == DEFAULT_ACL || is_property(name)
}

/// Whether it rules how the inode is stored.
pub(crate) fn is_property(name: &[u8]) -> bool {
    name.starts_with(PROPERTIES)
}

/// What a directory hands down.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Inherited {
    pub(crate) acl: bool,
    pub(crate) compression: bool,
    pub(crate) nocow: bool,
}

impl Inherited {
    /// By its flags and attributes.
    pub(crate) fn of(flags: u64, names: impl Iterator<Item = Vec<u8>>) -> Inherited {
        let nocow = flags & inode_flags::NODATACOW != 0;
        names.fold(Inherited { nocow, ..Inherited::default() }, |found, name| Inherited {
            acl: found.acl || name == DEFAULT_ACL,
            compression: found.compression || name == COMPRESSION,
            ..found
        })
    }
}
