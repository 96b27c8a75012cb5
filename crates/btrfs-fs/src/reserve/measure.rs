//! How large the trees are: looked up at the start and after each commit, for the bounds of
//! the next one; and the global reserve that follows from it.
//!
//! What it does not know: what operations change.

use super::bound::{self, Trees, bound};
use super::reach::{Inner, Leaves};
use super::records::ROOT_RECORDS;
use super::{Reservations, cost, sizes};
use crate::error::IntoFs;
use btrfs_disk::Key;
use btrfs_disk::TreeId;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_space::{Kept, Kind};
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::Result;

/// Trees that any change of space changes, beside the root tree.
const ACCOUNTS: [TreeId; 4] =
    [TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP, TreeId::QUOTA];

/// Where less is free than so many times what keeps account of space, it matters what of that a commit
/// can reach.
/// Chosen, not measured.
const SHORT: u64 = 8;

/// Of the last commit; see [`Trees`].
#[derive(Default)]
pub(super) struct Measured {
    /// Bytes.
    sums: AtomicU64,
    accounts: AtomicU64,
    /// Bytes of all trees, of volumes whose block groups do not say it.
    all: AtomicU64,
    subvolumes: AtomicU64,
    height: AtomicU64,
    paths: AtomicU64,
    leaves: Leaves,
    /// Bytes of nodes that the commit at work may add to all of that; 0 between commits.
    growing: AtomicU64,
}

impl Reservations {
    pub(super) fn trees(&self) -> Trees {
        let node_size = u64::from(self.core.geometry.node_size);
        let measured = &self.measured;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        // What changes meanwhile is committed on top of what the commit at work makes of the trees. This
        // first: where it has ended, the rest is what it has made.
        let growing = measured.growing.load(Ordering::Acquire);
        let all = match self.core.space.mixed() {
            true => get(&measured.all),
            false => self.core.space.used_by(Kind::Metadata),
        };
        let Inner { leaves: inner, coming } = measured.leaves.now(self.subvols.announced());
        let accounts = get(&measured.accounts) / node_size;
        Trees {
            node_size,
            room: self.core.geometry.leaf_space() as u64,
            all: all / node_size,
            sums: get(&measured.sums) / node_size,
            subvolumes: get(&measured.subvolumes),
            height: get(&measured.height),
            accounts: accounts.saturating_sub(inner),
            inner,
            coming,
            paths: get(&measured.paths),
            bitmaps: self.core.volume.total_bytes() / self.core.sector() / 8,
            shared: self.subvols.share_nodes(),
        }
        .larger_by(growing)
    }

    /// Looks up how large the trees are, and sets the global reserve: at the start and
    /// after each commit.
    pub(crate) fn measure_trees(&self) -> Result<()> {
        let measured = &self.measured;
        let set = |n: &AtomicU64, value| n.store(value, Ordering::Relaxed);
        set(&measured.sums, self.tree_size(TreeId::CSUM)?);
        set(&measured.accounts, self.account_bytes()?);
        let all = self.core.roots().trees.sum();
        set(&measured.subvolumes, all.subvolumes);
        set(&measured.height, u64::from(all.height));
        set(&measured.paths, self.paths());
        if self.core.space.mixed() {
            set(&measured.all, sizes::tree_bytes(&self.core)?);
        }
        self.look_at_leaves();
        measured.growing.store(0, Ordering::Release);
        self.limits.follow(&self.core).fs()?;
        let trees = self.trees();
        let step = cost::removal_of_items(cost::SMALL_STEP);
        self.core.space.keep(Kept {
            commit: bound::accounts(&trees),
            removal: bound(&trees, &(step + step + cost::unlink())),
            in_place: bound(&trees, &cost::most_in_place(&self.core.geometry)),
            wish: sizes::global_reserve(&self.core)?,
        });
        Ok(())
    }

    /// Whether there are leaves of the extent tree that not every commit may rewrite, many of one extent.
    pub(crate) fn leaves_lie_apart(&self) -> bool {
        self.trees().inner > 0
    }

    /// Where room may run short, which leaves of the extent tree a commit need not be able to write anew.
    fn look_at_leaves(&self) {
        let measured = &self.measured;
        let totals = self.core.space.totals();
        let free = totals.metadata.free + totals.unallocated / totals.metadata.copies.max(1);
        let short = free < SHORT * measured.accounts.load(Ordering::Relaxed);
        // This first: a snapshot that is announced meanwhile makes of no use what is found.
        let announced = self.subvols.announced();
        let alone = !self.subvols.any_coming();
        match short {
            true => measured.leaves.look(&self.core, announced, alone),
            false => measured.leaves.forget(),
        }
    }

    /// What is known of limits is what the whole quota tree of the last commit says.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn limits_are_right(&self) -> Result<bool> {
        self.limits.are_those_of(&self.core).fs()
    }

    /// A commit is at work that adds up to `bytes` of nodes to the trees.
    pub(crate) fn trees_grow(&self, bytes: u64) {
        self.measured.growing.store(bytes, Ordering::Release);
    }

    /// A commit is at work, and what it makes of the trees is not measured yet.
    pub(crate) fn trees_are_growing(&self) -> bool {
        self.measured.growing.load(Ordering::Relaxed) > 0
    }

    /// Bytes of the trees that any change of space changes, the checksum tree apart. Any change of
    /// sharing may change what all groups of the quota tree count, and every commit its status.
    fn account_bytes(&self) -> Result<u64> {
        let mut bytes = 0u64;
        for tree in ACCOUNTS {
            bytes = bytes.saturating_add(self.tree_size(tree)?);
        }
        let bytes = bytes.min(sizes::all_nodes(&self.core));
        // No item says how large the root tree is.
        let roots = self.core.roots().trees.sum().trees;
        let node = u64::from(self.core.geometry.node_size);
        Ok(bytes + (2 * roots * ROOT_RECORDS).next_multiple_of(node))
    }

    /// As its root item says, which may say anything: no more than there is.
    fn tree_size(&self, tree: TreeId) -> Result<u64> {
        let key = Key::new(tree.0, kind::ROOT_ITEM, 0);
        let Some(data) = self.core.view().get(TreeId::ROOT, &key).fs()? else { return Ok(0) };
        Ok(RootItem::parse(&data).fs()?.bytes_used.min(sizes::all_nodes(&self.core)))
    }

    /// Nodes from the root down to one leaf of each tree that any commit may change whatever it is for, and
    /// one more for each that grows a level. Of trees that are rewritten whole ([`bound::accounts`]) that is
    /// a root alone; what changes in trees of files and of checksums has its places.
    fn paths(&self) -> u64 {
        let roots = self.core.roots();
        let levels = |id: &TreeId| roots.get(*id).map_or(0, |r| u64::from(r.root.level) + 2);
        let paths: u64 = [TreeId::ROOT, TreeId::DEV].iter().map(levels).sum();
        let whole = ACCOUNTS.iter().filter(|id| roots.get(**id).is_some());
        paths + whole.count() as u64
    }
}
