//! How subvolumes hang together: references in the root tree, the default one, and paths.

use super::Subvols;
use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::options::Subvol;
use btrfs_disk::items::{DirItem, RootRef};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::View;
use vfs::{Errno, FsError, Result};

/// The ROOT_REF by which `child` hangs in `parent`, as (directory, name).
pub(crate) fn root_ref(
    view: &View<'_>,
    parent: TreeId,
    child: TreeId,
) -> Result<Option<(u64, Vec<u8>)>> {
    let key = Key::new(parent.0, kind::ROOT_REF, child.0);
    let Some(bytes) = view.get(TreeId::ROOT, &key).fs()? else { return Ok(None) };
    let found = RootRef::parse(&bytes).fs()?;
    Ok(Some((found.dirid, found.name.to_vec())))
}

/// Whether the entry `name` of `dir` is where `child` really hangs. In a snapshot the entry
/// of a nested subvolume is only a copy.
pub(crate) fn hangs_here(
    view: &View<'_>,
    dir: InodeId,
    name: &[u8],
    child: TreeId,
) -> Result<bool> {
    Ok(root_ref(view, dir.tree, child)?.is_some_and(|(d, n)| d == dir.objectid && n == name))
}

/// The parent tree and directory of a subvolume.
pub(crate) fn parent_of(view: &View<'_>, child: TreeId) -> Result<Option<InodeId>> {
    Ok(place_of(view, child)?.map(|(parent, _)| parent))
}

/// The same, and its name there.
pub(crate) fn place_of(view: &View<'_>, child: TreeId) -> Result<Option<(InodeId, Vec<u8>)>> {
    let from = Key::new(child.0, kind::ROOT_BACKREF, 0);
    match view.next(TreeId::ROOT, &from).fs()? {
        Some((key, bytes)) if key.kind == kind::ROOT_BACKREF => {
            let found = RootRef::parse(&bytes).fs()?;
            Ok(Some((InodeId::new(TreeId(key.offset), found.dirid), found.name.to_vec())))
        }
        _ => Ok(None),
    }
}

/// Which subvolume a mount begins at.
pub(crate) fn choose(view: &View<'_>, subvols: &Subvols, wanted: &Subvol) -> Result<InodeId> {
    let tree = match wanted {
        Subvol::Id(id) if *id == TreeId(0) => TreeId::FS,
        Subvol::Id(id) => *id,
        Subvol::Default => default_subvolume(view)?,
        Subvol::Path(path) => return by_path(view, subvols, path),
        Subvol::Both(id, path) => {
            let found = by_path(view, subvols, path)?;
            return if found.tree == *id { Ok(found) } else { Err(Errno::EINVAL.into()) };
        }
    };
    root_of(subvols, tree)
}

fn root_of(subvols: &Subvols, tree: TreeId) -> Result<InodeId> {
    match subvols.get(tree) {
        Some(subvol) => Ok(InodeId::new(tree, subvol.root_dir)),
        None => Err(FsError::Posix(Errno::ENOENT)),
    }
}

/// The "default" entry of the root tree's directory.
pub(crate) fn default_subvolume(view: &View<'_>) -> Result<TreeId> {
    let key =
        Key::new(TreeId::ROOT_DIR.0, kind::DIR_ITEM, btrfs_disk::checksum::name_hash(b"default"));
    let Some(bytes) = view.get(TreeId::ROOT, &key).fs()? else { return Ok(TreeId::FS) };
    for entry in DirItem::iter(&bytes) {
        let entry = entry.fs()?;
        if entry.name == b"default" {
            return Ok(TreeId(entry.location.objectid));
        }
    }
    Ok(TreeId::FS)
}

/// ENOENT: there is no such name. EINVAL: no subvolume is there.
fn by_path(view: &View<'_>, subvols: &Subvols, path: &[u8]) -> Result<InodeId> {
    let mut at = Some(root_of(subvols, TreeId::FS)?);
    for name in path.split(|b| *b == b'/').filter(|n| !matches!(*n, b"" | b".")) {
        let dir = at.ok_or(FsError::Posix(Errno::ENOENT))?;
        at = below(view, subvols, dir, name)?;
    }
    let is_root = |at: &InodeId| subvols.get(at.tree).is_some_and(|s| s.root_dir == at.objectid);
    at.filter(is_root).ok_or(FsError::Posix(Errno::EINVAL))
}

/// `None`: the subvolume of this name does not hang here, and what the name stands for is empty.
fn below(view: &View<'_>, subvols: &Subvols, dir: InodeId, name: &[u8]) -> Result<Option<InodeId>> {
    let target = crate::names::lookup(view, dir, name)?.ok_or(FsError::Posix(Errno::ENOENT))?;
    if !target.is_subvolume() {
        return Ok(Some(InodeId::new(dir.tree, target.location.objectid)));
    }
    let child = TreeId(target.location.objectid);
    Ok(match subvols.get(child) {
        Some(subvolume) if hangs_here(view, dir, name, child)? => {
            Some(InodeId::new(child, subvolume.root_dir))
        }
        _ => None,
    })
}
