//! The trees of a volume, to be read: those of an image, or of a mount's last commit.
//!
//! A mount's come from its server node by node, each as of the last commit of its own time: of a
//! volume that others change a walk may meet a node that is no more, and then ends with an error.

mod children;
mod mount;
mod names;

pub use children::Child;
pub use mount::MountTrees;
pub use names::{inode_paths, join, subvolume_path};

use crate::commands::offline::Offline;
use crate::commands::subvolume::place::VolumePath;
use crate::door::Door;
use crate::error::{Error, Result, io_text};
use crate::image::Access;
use btrfs_disk::items::{DirItem, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId, checksum};
use btrfs_tree::{NodeReader, TreeRoot};
use std::os::unix::fs::MetadataExt;

pub struct Trees {
    kind: Kind,
    place: VolumePath,
}

enum Kind {
    Image(Offline),
    Mount(MountTrees),
}

/// A file or directory of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TreeInode {
    pub tree: TreeId,
    pub ino: u64,
}

impl Trees {
    /// What was done before is found.
    pub fn open(place: &VolumePath) -> Result<Trees> {
        let kind = match place {
            VolumePath::Image(inside) => Kind::Image(Offline::open(&inside.image, Access::Peek)?),
            VolumePath::Mount(path) => {
                let door = Door::open(path)?;
                door.sync_all()?;
                Kind::Mount(MountTrees::new(door, path)?)
            }
        };
        Ok(Trees { kind, place: place.clone() })
    }

    pub fn reader(&self) -> &dyn NodeReader {
        match &self.kind {
            Kind::Image(offline) => &offline.store,
            Kind::Mount(mount) => mount,
        }
    }

    /// `None`: there is no such tree.
    pub fn root(&self, tree: TreeId) -> Result<Option<TreeRoot>> {
        match &self.kind {
            Kind::Image(offline) => offline.root(tree),
            Kind::Mount(mount) => match mount.tree(tree) {
                Ok(found) => Ok(Some(found.root)),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
                Err(error) => Err(Error::about(self.place.show(), io_text(&error))),
            },
        }
    }

    /// A tree that every volume has.
    pub fn must(&self, tree: TreeId) -> Result<TreeRoot> {
        self.root(tree)?.ok_or_else(|| {
            let name = crate::commands::offline::tree_name(tree);
            Error::about(self.place.show(), format!("there is no tree {name}"))
        })
    }

    /// All trees that the root tree names, with their items.
    pub fn roots(&self) -> Result<Vec<(TreeRoot, RootItem)>> {
        let mut all = Vec::new();
        self.each(TreeId::ROOT, Key::MIN..=Key::MAX, |key, data| {
            if key.kind == kind::ROOT_ITEM {
                let item = RootItem::parse(data).map_err(|c| c.key(key))?;
                let (id, logical) = (TreeId(key.objectid), item.bytenr);
                let (generation, level) = (item.generation, item.level);
                all.push((TreeRoot { id, logical, generation, level }, item));
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Subvolumes that have a name, or are the top level.
    pub fn subvolumes(&self) -> Result<Vec<TreeRoot>> {
        let all = self.roots()?.into_iter();
        Ok(all
            .filter(|(root, item)| root.id.is_subvolume() && !item.is_deleted())
            .map(|f| f.0)
            .collect())
    }

    /// Items of a tree, in order. Without such a tree there are none.
    pub fn each(
        &self,
        tree: TreeId,
        range: std::ops::RangeInclusive<Key>,
        mut take: impl FnMut(Key, &[u8]) -> btrfs_disk::Result<()>,
    ) -> Result<()> {
        let Some(root) = self.root(tree)? else { return Ok(()) };
        for item in btrfs_tree::scan(self.reader(), &root, range) {
            let item = self.explain(item)?;
            self.explain(take(item.key(), item.data()))?;
        }
        Ok(())
    }

    /// Items of one kind of an inode.
    pub fn each_of(
        &self,
        at: TreeInode,
        kind: u8,
        take: impl FnMut(Key, &[u8]) -> btrfs_disk::Result<()>,
    ) -> Result<()> {
        let range = Key::new(at.ino, kind, 0)..=Key::new(at.ino, kind, u64::MAX);
        self.each(at.tree, range, take)
    }

    pub fn explain<T>(&self, result: btrfs_disk::Result<T>) -> Result<T> {
        match &self.kind {
            Kind::Image(offline) => offline.explain(result),
            Kind::Mount(_) => result.map_err(|error| Error::about(self.place.show(), error)),
        }
    }

    /// What the place is that the trees were opened by. In an image its path begins at the top level.
    pub fn spot(&self) -> Result<TreeInode> {
        match &self.place {
            VolumePath::Mount(path) => {
                let (info, _) = Door::open(path)?.around()?;
                let ino = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?.ino();
                Ok(TreeInode { tree: TreeId(info.id.0), ino: ino & ((1 << 40) - 1) })
            }
            VolumePath::Image(inside) => {
                let mut at =
                    TreeInode { tree: TreeId::FS, ino: btrfs_disk::ids::FIRST_FREE_OBJECTID };
                let names = inside.path.split(|b| *b == b'/');
                for name in names.filter(|name| !matches!(*name, b"" | b".")) {
                    let found = self.entry(at, name)?;
                    at = found.ok_or_else(|| {
                        Error::about(self.place.show(), "no such file or directory")
                    })?;
                }
                Ok(at)
            }
        }
    }

    fn entry(&self, dir: TreeInode, name: &[u8]) -> Result<Option<TreeInode>> {
        let key = Key::new(dir.ino, kind::DIR_ITEM, checksum::name_hash(name));
        let mut found = None;
        self.each(dir.tree, key..=key, |key, data| {
            for entry in DirItem::iter(data) {
                let entry = entry.map_err(|c| c.key(key))?;
                if entry.name == name {
                    found = Some(entry.location);
                }
            }
            Ok(())
        })?;
        found.map(|location| self.leads_to(dir, name, location)).transpose()
    }
}
