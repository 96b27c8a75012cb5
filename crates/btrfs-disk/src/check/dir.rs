//! DIR_ITEM, DIR_INDEX and XATTR_ITEM.

use super::item::{Item, Rules, Verdict, name};
use super::{ensure, home, inode};
use crate::TreeId;
use crate::checksum::name_hash;
use crate::items::{DirItem, dir_type};
use crate::key::{Key, kind};

pub(super) fn entries(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    rules.follows_its_inode(item)?;
    let hashed = item.key.kind == kind::DIR_ITEM;
    let mut count = 0;
    for entry in DirItem::iter(item.data) {
        let entry = entry?;
        location(&entry.location)?;
        ensure!(
            (dir_type::REG_FILE..=dir_type::SYMLINK).contains(&entry.kind),
            "directory entry of type {}",
            entry.kind
        );
        name(entry.name)?;
        ensure!(entry.name != b"." && entry.name != b"..", "directory entry for a dot name");
        ensure!(entry.value.is_empty(), "directory entry with a value");
        ensure!(!hashed || name_hash(entry.name) == item.key.offset, "name of another hash");
        count += 1;
    }
    ensure!(count > 0, "directory item without an entry");
    ensure!(hashed || count == 1, "directory index with {count} entries");
    Ok(())
}

/// An inode of the same tree or a subvolume. The offset of a subvolume's key is -1 when
/// it was made and its root item's after a rename, so nobody may rely on it.
fn location(key: &Key) -> Verdict {
    match key.kind {
        kind::INODE_ITEM => inode::key(key),
        kind::ROOT_ITEM => {
            ensure!(
                home::is_fs_tree(TreeId(key.objectid)),
                "directory entry for the tree {}",
                key.objectid
            );
            Ok(())
        }
        other => {
            ensure!(false, "directory entry for an item of type {other}");
            Ok(())
        }
    }
}

/// Names are any bytes, as to the kernel's check of nodes: here a NUL was written in some once (`tar -x` of an archive
/// that had it), and the leaf of one has items of other files as well.
pub(super) fn xattrs(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    rules.follows_its_inode(item)?;
    ensure!(!item.data.is_empty(), "xattr item without an entry");
    for entry in DirItem::iter(item.data) {
        let entry = entry?;
        ensure!(entry.location == Key::MIN, "xattr with the location {}", entry.location);
        ensure!(entry.kind == dir_type::XATTR, "xattr of type {}", entry.kind);
        ensure!((1..=255).contains(&entry.name.len()), "xattr name of {} bytes", entry.name.len());
        ensure!(name_hash(entry.name) == item.key.offset, "name of another hash");
    }
    Ok(())
}
