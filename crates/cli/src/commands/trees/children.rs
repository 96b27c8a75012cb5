//! What is in a directory, by the trees.

use super::{TreeInode, Trees};
use crate::error::Result;
use btrfs_disk::ids::FIRST_FREE_OBJECTID;
use btrfs_disk::items::{DirItem, InodeItem, RootRef};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};

/// The kernel's number of an empty directory where a snapshot has the name of a subvolume.
const EMPTY_SUBVOLUME: u64 = 2;

/// Something with a name.
pub struct Child {
    pub name: Vec<u8>,
    pub at: TreeInode,
    /// As in a directory's entry ([`btrfs_disk::items::dir_type`]).
    pub kind: u8,
}

impl Trees {
    /// All of a directory, in the order of its index. The place of a subvolume of which a snapshot has
    /// the name alone is an empty directory with the number 2, as in the kernel.
    pub fn children(&self, dir: TreeInode) -> Result<Vec<Child>> {
        let (mut all, mut subvolumes) = (Vec::new(), Vec::new());
        self.each_of(dir, kind::DIR_INDEX, |key, data| {
            for entry in DirItem::iter(data) {
                let entry = entry.map_err(|c| c.key(key))?;
                let (location, name) = (entry.location, entry.name.to_vec());
                if location.kind == kind::ROOT_ITEM {
                    subvolumes.push((all.len(), location));
                }
                let at = TreeInode { ino: location.objectid, ..dir };
                all.push(Child { name, at, kind: entry.kind });
            }
            Ok(())
        })?;
        for (n, location) in subvolumes {
            all[n].at = self.leads_to(dir, &all[n].name, location)?;
        }
        Ok(all)
    }

    /// Where the entry `name` of `dir` leads.
    pub(super) fn leads_to(&self, dir: TreeInode, name: &[u8], to: Key) -> Result<TreeInode> {
        let child = TreeId(to.objectid);
        Ok(match to.kind {
            kind::ROOT_ITEM if self.is_below(dir, name, child)? => {
                TreeInode { tree: child, ino: FIRST_FREE_OBJECTID }
            }
            kind::ROOT_ITEM => TreeInode { ino: EMPTY_SUBVOLUME, ..dir },
            _ => TreeInode { ino: to.objectid, ..dir },
        })
    }

    /// Whether the subvolume has this place.
    fn is_below(&self, dir: TreeInode, name: &[u8], child: TreeId) -> Result<bool> {
        let key = Key::new(dir.tree.0, kind::ROOT_REF, child.0);
        let mut found = false;
        self.each(TreeId::ROOT, key..=key, |key, data| {
            let to = RootRef::parse(data).map_err(|c| c.key(key))?;
            found = to.dirid == dir.ino && to.name == name;
            Ok(())
        })?;
        Ok(found)
    }

    /// The mode of an inode; 0 where there is none.
    pub fn mode(&self, at: TreeInode) -> Result<u32> {
        let mut mode = 0;
        self.each_of(at, kind::INODE_ITEM, |key, data| {
            mode = InodeItem::read(data).map_err(|c| c.key(key))?.mode;
            Ok(())
        })?;
        Ok(mode)
    }
}
