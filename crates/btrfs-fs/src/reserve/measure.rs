//! How large the trees are: looked up at the start and after each commit, for the bounds of
//! the next one; and the global reserve that follows from it.
//!
//! What it does not know: what operations change.

use super::bound::{self, Load, Trees, bound};
use super::{SMALL_STEP, UNLINK, removal_of};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ops::statfs;
use btrfs_disk::Key;
use btrfs_disk::TreeId;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_space::{Kept, Kind};
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::Result;

/// Bytes of a ROOT_ITEM and of the references beside it, names of 255 bytes among them.
const ROOT_RECORDS: u64 = 439 + 2 * (18 + 255) + 3 * 25;

/// Of the last commit; see [`Trees`].
#[derive(Default)]
pub(super) struct Measured {
    /// Bytes.
    sums: AtomicU64,
    accounts: AtomicU64,
    /// Bytes of all trees, of volumes whose block groups do not say it.
    all: AtomicU64,
    height: AtomicU64,
    paths: AtomicU64,
}

impl Engine {
    pub(super) fn trees(&self) -> Trees {
        let node_size = u64::from(self.geometry.node_size);
        let measured = &self.promises.measured;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let all = match self.space.mixed() {
            true => get(&measured.all),
            false => self.space.used_by(Kind::Metadata),
        };
        Trees {
            node_size,
            room: self.geometry.leaf_space() as u64,
            all: all / node_size,
            sums: get(&measured.sums) / node_size,
            height: get(&measured.height),
            accounts: get(&measured.accounts) / node_size,
            paths: get(&measured.paths),
            bitmaps: self.volume.superblock().fields.total_bytes / self.sector() / 8,
            shared: self.subvols.share_nodes(),
        }
    }

    /// Looks up how large the trees are, and sets the global reserve: at the start and
    /// after each commit.
    pub fn measure_trees(&self) -> Result<()> {
        let measured = &self.promises.measured;
        let set = |n: &AtomicU64, value| n.store(value, Ordering::Relaxed);
        set(&measured.sums, self.tree_size(TreeId::CSUM)?);
        set(&measured.accounts, self.account_bytes()?);
        set(&measured.height, self.height());
        set(&measured.paths, self.paths());
        if self.space.mixed() {
            set(&measured.all, statfs::tree_bytes(self)?);
        }
        let trees = self.trees();
        let unlink = Load { places: UNLINK, bytes: super::REWRITTEN, sums: 0 };
        let step = removal_of(SMALL_STEP);
        self.space.keep(Kept {
            commit: bound::accounts(&trees),
            removal: bound(&trees, &(step + step + unlink)),
            wish: statfs::global_reserve(self)?,
        });
        Ok(())
    }

    /// Bytes of the trees that any change of space changes, the checksum tree apart.
    fn account_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        for tree in [TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP] {
            bytes += self.tree_size(tree)?;
        }
        // No item says how large the root tree is.
        let roots = self.roots().trees.len() as u64;
        let node = u64::from(self.geometry.node_size);
        Ok(bytes + (2 * roots * ROOT_RECORDS).next_multiple_of(node))
    }

    fn tree_size(&self, tree: TreeId) -> Result<u64> {
        let key = Key::new(tree.0, kind::ROOT_ITEM, 0);
        match self.view().get(TreeId::ROOT, &key).fs()? {
            Some(data) => Ok(RootItem::parse(&data).fs()?.bytes_used),
            None => Ok(0),
        }
    }

    /// Interior levels of the highest tree that files or checksums are in.
    fn height(&self) -> u64 {
        let roots = self.roots();
        let counts = |id: &TreeId| id.is_subvolume() || *id == TreeId::CSUM;
        let levels = roots.trees.iter().filter(|(id, _)| counts(id)).map(|(_, r)| r.root.level);
        levels.max().map_or(0, u64::from)
    }

    /// Nodes from the root down to one leaf of each tree that every commit changes, and one
    /// more for each that grows a level.
    fn paths(&self) -> u64 {
        let roots = self.roots();
        let every = [TreeId::ROOT, TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::CSUM];
        let rare = [TreeId::BLOCK_GROUP, TreeId::DEV, TreeId::FS];
        let levels = |id: &TreeId| roots.get(*id).map_or(0, |r| u64::from(r.root.level) + 2);
        every.iter().chain(&rare).map(levels).sum()
    }
}
