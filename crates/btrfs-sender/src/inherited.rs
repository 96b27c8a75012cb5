//! What the receiver's file system gives a new inode of its directory, unasked: ACLs and the
//! compression property.
//!
//! New directories get theirs at the end of the stream, when all is made in them. One that was
//! there before has them from the start: what is new in it is told to have none, and gets its own
//! later.

use crate::error::Result;
use crate::namespace::{Dir, Namespace};
use crate::sender::Out;
use btrfs_disk::items::{InodeItem, mode};
use btrfs_send::Command;

const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const PROPERTIES: &[u8] = b"btrfs.";
const COMPRESSION: &[u8] = b"btrfs.compression";
/// An ACL of version 2 without entries: the inode has none.
const NO_ACL: &[u8] = &[2, 0, 0, 0];

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
    acl: bool,
    compression: bool,
}

impl Inherited {
    pub(crate) fn of(names: impl Iterator<Item = Vec<u8>>) -> Inherited {
        names.fold(Inherited::default(), |found, name| Inherited {
            acl: found.acl || name == DEFAULT_ACL,
            compression: found.compression || name == COMPRESSION,
        })
    }
}

/// Behind the command that made `path` in `dir`.
pub(crate) fn take_back(
    space: &mut Namespace<'_>,
    dir: Dir,
    item: &InodeItem,
    path: &[u8],
    out: &mut Out<'_>,
) -> Result<()> {
    let kind = item.mode & mode::S_IFMT;
    let inherited = space.inherited(dir)?;
    if inherited.acl && kind != mode::S_IFLNK {
        out.put(&Command::SetXattr { path, name: ACCESS_ACL, value: NO_ACL })?;
        if kind == mode::S_IFDIR {
            out.put(&Command::SetXattr { path, name: DEFAULT_ACL, value: NO_ACL })?;
        }
    }
    if inherited.compression && matches!(kind, mode::S_IFDIR | mode::S_IFREG) {
        out.put(&Command::SetXattr { path, name: COMPRESSION, value: b"" })?;
    }
    Ok(())
}
