//! The names that lead to an inode or a subvolume.

use super::{TreeInode, Trees};
use crate::error::Result;
use btrfs_disk::ids::{FIRST_FREE_OBJECTID, MAX_PATH_NAMES};
use btrfs_disk::items::{InodeExtRef, InodeRef, RootRef};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};

/// All ways to an inode, from its subvolume's root directory; none where nothing leads to it.
pub fn inode_paths(trees: &Trees, spot: TreeInode) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for (dir, name) in names(trees, spot)? {
        if let Some(above) = path_of(trees, TreeInode { ino: dir, ..spot })? {
            all.push(join(&above, &name));
        }
    }
    Ok(all)
}

/// Some way to a directory.
fn path_of(trees: &Trees, dir: TreeInode) -> Result<Option<Vec<u8>>> {
    let (mut at, mut path) = (dir, Vec::new());
    for _ in 0..MAX_PATH_NAMES {
        if at.ino == FIRST_FREE_OBJECTID {
            return Ok(Some(path));
        }
        let Some((above, name)) = names(trees, at)?.into_iter().next() else { return Ok(None) };
        path = join(&name, &path);
        at.ino = above;
    }
    Ok(None)
}

/// Directories, and the names in them.
fn names(trees: &Trees, TreeInode { tree, ino }: TreeInode) -> Result<Vec<(u64, Vec<u8>)>> {
    let range = Key::new(ino, kind::INODE_REF, 0)..=Key::new(ino, kind::INODE_EXTREF, u64::MAX);
    let mut all = Vec::new();
    trees.each(tree, range, |key, data| {
        if key.kind == kind::INODE_REF {
            for name in InodeRef::iter(data) {
                let name = name.map_err(|c| c.key(key))?.name.to_vec();
                all.push((key.offset, name));
            }
            return Ok(());
        }
        for name in InodeExtRef::iter(data) {
            let found = name.map_err(|c| c.key(key))?;
            all.push((found.parent, found.name.to_vec()));
        }
        Ok(())
    })?;
    // The root directory is said to lie in itself.
    all.retain(|(dir, _)| *dir != ino);
    Ok(all)
}

/// The way from the top level; empty for that, `None` where none leads to it.
pub fn subvolume_path(trees: &Trees, subvolume: TreeId) -> Result<Option<Vec<u8>>> {
    let (mut at, mut path) = (subvolume, Vec::new());
    for _ in 0..MAX_PATH_NAMES {
        if at == TreeId::FS {
            return Ok(Some(path));
        }
        let range =
            Key::new(at.0, kind::ROOT_BACKREF, 0)..=Key::new(at.0, kind::ROOT_BACKREF, u64::MAX);
        let mut found = None;
        trees.each(TreeId::ROOT, range, |key, data| {
            let reference = RootRef::parse(data).map_err(|c| c.key(key))?;
            found = Some((TreeId(key.offset), reference.dirid, reference.name.to_vec()));
            Ok(())
        })?;
        let Some((parent, dir, name)) = found else { return Ok(None) };
        let Some(above) = path_of(trees, TreeInode { tree: parent, ino: dir })? else {
            return Ok(None);
        };
        path = join(&join(&above, &name), &path);
        at = parent;
    }
    Ok(None)
}

/// With a slash between them, unless one is empty.
pub fn join(above: &[u8], name: &[u8]) -> Vec<u8> {
    match (above.is_empty(), name.is_empty()) {
        (true, _) => name.to_vec(),
        (_, true) => above.to_vec(),
        _ => [above, b"/", name].concat(),
    }
}
