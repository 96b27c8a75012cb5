//! The subvolumes of the volume: their flags, where their trees begin, how their inode
//! numbers go on, and how they hang together.

use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::numbers::Numbers;
use crate::options::Subvol;
use btrfs_disk::ids::{FIRST_FREE_OBJECTID, LAST_FREE_OBJECTID};
use btrfs_disk::items::{DirItem, ROOT_SUBVOL_RDONLY, RootRef};
use btrfs_disk::key::kind;
use btrfs_disk::{Generation, Key, TreeId};
use btrfs_tree::{Cursor, NodeStore};
use btrfs_txn::{Root, Roots, View};
use locks::{Rank, RwLock};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vfs::{Errno, FsError, Result};

pub struct Subvolume {
    pub read_only: bool,
    pub root_dir: u64,
    pub last_snapshot: Generation,
    /// Goes on where it was when the rest changes.
    numbers: Arc<Numbers>,
}

/// As the last commit has them.
pub struct Subvols {
    all: RwLock<FxHashMap<TreeId, Arc<Subvolume>>>,
    share_nodes: AtomicBool,
}

impl Subvols {
    pub fn load(roots: &Roots) -> Subvols {
        let subvols = Subvols {
            all: RwLock::new(Rank::Leaf, FxHashMap::default()),
            share_nodes: AtomicBool::new(false),
        };
        subvols.follow(roots);
        subvols
    }

    /// `roots` are those of the last commit from now on: subvolumes come, go and change with it.
    pub fn follow(&self, roots: &Roots) {
        let shared = |root: &Root| root.item.last_snapshot.0 != 0;
        self.share_nodes.store(roots.trees.values().any(shared), Ordering::Relaxed);
        let now = || roots.trees.iter().filter(|(id, _)| id.is_subvolume());
        let is_known = {
            let all = self.all.read();
            let known = |(id, root): (&TreeId, &Root)| all.get(id).is_some_and(|s| s.says(root));
            now().count() == all.len() && now().all(known)
        };
        if is_known {
            return;
        }
        let mut all = self.all.write();
        let before = std::mem::take(&mut *all);
        *all = now()
            .map(|(id, root)| {
                let numbers = before.get(id).map(|known| known.numbers.clone());
                (*id, Arc::new(Subvolume::new(root, numbers.unwrap_or_default())))
            })
            .collect();
    }

    pub fn get(&self, tree: TreeId) -> Option<Arc<Subvolume>> {
        self.all.read().get(&tree).cloned()
    }

    pub fn is_read_only(&self, tree: TreeId) -> bool {
        self.all.read().get(&tree).is_some_and(|s| s.read_only)
    }

    /// True if some subvolume was snapshotted or is a snapshot.
    pub fn share_nodes(&self) -> bool {
        self.share_nodes.load(Ordering::Relaxed)
    }

    /// A new inode number of `tree`.
    pub fn allocate(&self, store: &NodeStore, view: &View<'_>, tree: TreeId) -> Result<u64> {
        let subvol = self.get(tree).ok_or(FsError::Posix(Errno::ESTALE))?;
        subvol.numbers.take(|| Ok(highest_inode(store, view, tree)? + 1))
    }
}

impl Subvolume {
    fn new(root: &Root, numbers: Arc<Numbers>) -> Subvolume {
        Subvolume {
            read_only: root.item.flags & ROOT_SUBVOL_RDONLY != 0,
            root_dir: root.item.root_dirid,
            last_snapshot: root.item.last_snapshot,
            numbers,
        }
    }

    fn says(&self, root: &Root) -> bool {
        let other = Subvolume::new(root, Arc::default());
        (self.read_only, self.root_dir, self.last_snapshot)
            == (other.read_only, other.root_dir, other.last_snapshot)
    }
}

/// Highest object id of an inode in the tree. Runs before the first inode of this mount is
/// made in the subvolume, so the deltas have none above it.
fn highest_inode(store: &NodeStore, view: &View<'_>, tree: TreeId) -> Result<u64> {
    let Some(root) = view.layers.roots.get(tree) else { return Err(Errno::ESTALE.into()) };
    let mut cursor = Cursor::new(store, &root.root);
    cursor.seek_back(&Key::new(LAST_FREE_OBJECTID, u8::MAX, u64::MAX)).fs()?;
    Ok(cursor.item().map_or(FIRST_FREE_OBJECTID, |(key, _)| key.objectid.max(FIRST_FREE_OBJECTID)))
}

/// The ROOT_REF by which `child` hangs in `parent`, as (directory, name).
fn root_ref(view: &View<'_>, parent: TreeId, child: TreeId) -> Result<Option<(u64, Vec<u8>)>> {
    let key = Key::new(parent.0, kind::ROOT_REF, child.0);
    let Some(bytes) = view.get(TreeId::ROOT, &key).fs()? else { return Ok(None) };
    let found = RootRef::parse(&bytes).fs()?;
    Ok(Some((found.dirid, found.name.to_vec())))
}

/// Whether the entry `name` of `dir` is where `child` really hangs. In a snapshot the entry
/// of a nested subvolume is only a copy.
pub fn hangs_here(view: &View<'_>, dir: InodeId, name: &[u8], child: TreeId) -> Result<bool> {
    Ok(root_ref(view, dir.tree, child)?.is_some_and(|(d, n)| d == dir.objectid && n == name))
}

/// The parent tree and directory of a subvolume.
pub fn parent_of(view: &View<'_>, child: TreeId) -> Result<Option<InodeId>> {
    let from = Key::new(child.0, kind::ROOT_BACKREF, 0);
    match view.next(TreeId::ROOT, &from).fs()? {
        Some((key, bytes)) if key.kind == kind::ROOT_BACKREF => {
            let found = RootRef::parse(&bytes).fs()?;
            Ok(Some(InodeId::new(TreeId(key.offset), found.dirid)))
        }
        _ => Ok(None),
    }
}

/// Which subvolume a mount begins at.
pub fn choose(view: &View<'_>, subvols: &Subvols, wanted: &Subvol) -> Result<InodeId> {
    let tree = match wanted {
        Subvol::Id(id) if *id == TreeId(0) => TreeId::FS,
        Subvol::Id(id) => *id,
        Subvol::Default => default_subvolume(view)?,
        Subvol::Path(path) => return by_path(view, subvols, path),
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
fn default_subvolume(view: &View<'_>) -> Result<TreeId> {
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

fn by_path(view: &View<'_>, subvols: &Subvols, path: &[u8]) -> Result<InodeId> {
    let mut at = root_of(subvols, TreeId::FS)?;
    for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
        let target = crate::names::lookup(view, at, name)?.ok_or(FsError::Posix(Errno::ENOENT))?;
        at = if target.is_subvolume() {
            root_of(subvols, TreeId(target.location.objectid))?
        } else {
            InodeId::new(at.tree, target.location.objectid)
        };
    }
    if subvols.get(at.tree).is_none_or(|s| s.root_dir != at.objectid) {
        return Err(FsError::Posix(Errno::EINVAL));
    }
    Ok(at)
}
