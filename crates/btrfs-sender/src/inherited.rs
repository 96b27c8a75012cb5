//! What the receiver's file system gives a new inode of its directory, unasked: ACLs, the
//! compression property, and the flag that content is written in place.
//!
//! New directories get theirs at the end of the stream, when all is made in them. One that was
//! there before has them from the start: what is new in it is told to have none, and gets its own
//! later.

use crate::error::Result;
use crate::namespace::{Dir, Namespace};
use crate::sender::Out;
use btrfs_disk::items::{InodeItem, inode_flags, mode};
use btrfs_send::{Command, Protocol};

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
    nocow: bool,
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
    let keeps_content = matches!(kind, mode::S_IFDIR | mode::S_IFREG);
    if inherited.nocow && keeps_content && out.protocol() >= Protocol::V2 {
        out.put(&Command::FileAttr { path, flags: 0 })?;
    }
    if inherited.compression && keeps_content {
        out.put(&Command::SetXattr { path, name: COMPRESSION, value: b"" })?;
    }
    Ok(())
}
