//! A file's path, for who reads the log: a number alone helps nobody to find what was lost.
//!
//! Only for messages: of several names it takes the first, and where the way up is damaged, or
//! changes meanwhile, it tells as much as is known. The path begins at the top of the volume,
//! whatever the mount shows.

use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::names::any_parent;
use btrfs_disk::ids::FIRST_FREE_OBJECTID;
use btrfs_disk::items::RootRef;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::View;
use vfs::Result;

/// A circle in a damaged volume ends here; a path that a program could open (4,096 bytes) has
/// half as many names.
const DEEPEST: usize = 4096;

pub(crate) fn path(view: &View<'_>, id: InodeId) -> String {
    let (mut at, mut names) = (id, Vec::new());
    let mut whole = false;
    while names.len() < DEEPEST {
        match above(view, at) {
            Ok(Some((parent, name))) => {
                names.push(name.escape_ascii().to_string());
                at = parent;
            }
            Ok(None) => {
                whole = at == InodeId::new(TreeId::FS, FIRST_FREE_OBJECTID);
                break;
            }
            Err(_) => break,
        }
    }
    names.reverse();
    let front = if whole { "/" } else { ".../" };
    format!("{front}{} (inode {} of subvolume {})", names.join("/"), id.objectid, id.tree)
}

/// The directory that it is in, and its name there.
fn above(view: &View<'_>, id: InodeId) -> Result<Option<(InodeId, Vec<u8>)>> {
    if id.objectid != FIRST_FREE_OBJECTID {
        let parent = any_parent(view, id)?;
        return Ok(parent.map(|(dir, name)| (InodeId::new(id.tree, dir), name)));
    }
    let from = Key::new(id.tree.0, kind::ROOT_BACKREF, 0);
    match view.next(TreeId::ROOT, &from).fs()? {
        Some((key, bytes)) if (key.objectid, key.kind) == (id.tree.0, kind::ROOT_BACKREF) => {
            let found = RootRef::parse(&bytes).fs()?;
            Ok(Some((InodeId::new(TreeId(key.offset), found.dirid), found.name.to_vec())))
        }
        _ => Ok(None),
    }
}
