//! What a new inode inherited of its directory (`inherited`) is taken back.
//!
//! New directories get theirs at the end of the stream, when all is made in them. One that was
//! there before has them from the start: what is new in it is told to have none, and gets its own
//! later.

use crate::error::Result;
use crate::inherited::{COMPRESSION, DEFAULT_ACL};
use crate::namespace::{Dir, Namespace};
use crate::out::Out;
use btrfs_disk::items::{InodeItem, mode};
use btrfs_send::{Command, Protocol};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// An ACL of version 2 without entries: the inode has none.
const NO_ACL: &[u8] = &[2, 0, 0, 0];

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
