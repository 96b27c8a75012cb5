//! The subvolumes of the volume: their flags, where their trees begin, how their inode
//! numbers go on.
//!
//! Invariants: what an operation changes of a subvolume is true here before its epoch can be
//! sealed, and [`Subvols::follow`] takes it back for no commit of an older epoch: one that no
//! commit knows stays, a dead one is not alive again, nothing becomes writable. So what a commit
//! says counts only for subvolumes that it has first.
//!
//! A new subvolume's number is above all that the root tree had when the volume was opened, not above
//! the subvolumes' alone: inodes of version 1 space caches are numbered beside them, and a kernel that erases one
//! takes all items of its number along, a subvolume's ROOT_ITEM among them.
//!
//! What it does not know: who changes subvolumes, and who commits.

mod find;
mod info;
mod uuids;

pub(crate) use find::{choose, default_subvolume, hangs_here, parent_of, place_of, root_ref};
pub use info::{
    Caller, Delete, NewSubvolume, ReceivedFrom, SubvolId, SubvolumeInfo, Time, known_as,
};

use crate::error::IntoFs;
use crate::numbers::Numbers;
use btrfs_disk::ids::{FIRST_FREE_OBJECTID, LAST_FREE_OBJECTID};
use btrfs_disk::items::{QGROUP_LEVEL_SHIFT, ROOT_SUBVOL_RDONLY, Timespec};
use btrfs_disk::{Generation, Key, TreeId};
use btrfs_tree::{Cursor, NodeStore};
use btrfs_txn::{Root, Roots, View};
use locks::{Rank, RwLock};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use uuids::Uuids;
use vfs::{Errno, FsError, Result};

/// Numbers from here on are of groups of quotas above the subvolumes': nobody makes such a tree, and to the kernel
/// it is none of files.
const TREES_END: u64 = 1 << QGROUP_LEVEL_SHIFT;

pub(crate) struct Subvolume {
    pub(crate) root_dir: u64,
    /// What its root item will say, until a commit has that.
    pub(crate) new_uuid: [u8; 16],
    read_only: AtomicBool,
    last_snapshot: AtomicU64,
    /// Its name is gone, and with it all that can be asked of it.
    dead: AtomicBool,
    /// A commit has it.
    committed: AtomicBool,
    /// Snapshots of it under way.
    snapshots: AtomicU32,
    /// Who makes a stream of it, or of what differs from it.
    sends: AtomicU32,
    numbers: Numbers,
}

/// What there is now, the last commit's and what came since.
pub(crate) struct Subvols {
    all: RwLock<FxHashMap<TreeId, Arc<Subvolume>>>,
    /// Snapshots that the next commit makes: their names are there, and nothing behind them. With those that come later
    /// than whoever makes them could wait for stands what keeps their sources as they are.
    coming: RwLock<FxHashMap<TreeId, Option<Snapshotting>>>,
    share_nodes: AtomicBool,
    /// Some became read-only since the volume was opened.
    some_closed: AtomicBool,
    /// Snapshots that this mount began to make.
    announced: AtomicU64,
    /// The highest number so far, of a tree or of what else the root tree has.
    highest: AtomicU64,
    uuids: Uuids,
}

/// A snapshot is being made: nothing of the source is written in place. Where it is not known whether there is one it
/// is kept until a commit has it ([`Subvols::comes_late`]).
pub(crate) struct Snapshotting(Arc<Subvolume>);

impl Drop for Snapshotting {
    fn drop(&mut self) {
        self.0.snapshots.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A stream is made of a subvolume, or of what differs from it: while this lives it is neither deleted nor made
/// writable.
#[must_use = "who drops it lets it be deleted"]
pub struct Sending(Arc<Subvolume>);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.sends.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Subvols {
    /// `highest` is the highest number that the root tree has. Of `seed` UUIDs are made; without one, of the
    /// machine's randomness.
    pub(crate) fn load(roots: &Roots, highest: u64, seed: Option<u64>) -> Subvols {
        let subvols = Subvols {
            all: RwLock::new(Rank::Leaf, FxHashMap::default()),
            coming: RwLock::new(Rank::Leaf, FxHashMap::default()),
            share_nodes: AtomicBool::new(false),
            some_closed: AtomicBool::new(false),
            announced: AtomicU64::new(0),
            highest: AtomicU64::new(highest.max(FIRST_FREE_OBJECTID - 1)),
            uuids: Uuids::new(seed),
        };
        subvols.follow(roots, roots.trees.iter().map(|(id, _)| id));
        subvols
    }

    /// `roots` are those of the last commit from now on: subvolumes come and go with it, all of them
    /// among `touched`.
    pub(crate) fn follow(&self, roots: &Roots, touched: impl IntoIterator<Item = TreeId>) {
        let mut all = self.all.write();
        for id in touched.into_iter().filter(|id| id.is_subvolume()) {
            let Some(root) = roots.get(id) else {
                if all.get(&id).is_some_and(|s| s.committed.load(Ordering::Relaxed)) {
                    all.remove(&id);
                }
                continue;
            };
            let subvolume = all.entry(id).or_insert_with(|| Arc::new(Subvolume::committed(root)));
            subvolume.committed.store(true, Ordering::Relaxed);
            subvolume.last_snapshot.fetch_max(root.item.last_snapshot.0, Ordering::SeqCst);
            self.highest.fetch_max(id.0, Ordering::Relaxed);
        }
        drop(all);
        let mut coming = self.coming.write();
        // The sources know of it by now.
        coming.retain(|id, _| roots.get(*id).is_none());
        let share = roots.trees.sum().shared || !coming.is_empty();
        self.share_nodes.store(share, Ordering::SeqCst);
    }

    /// One that is alive.
    pub(crate) fn get(&self, tree: TreeId) -> Option<Arc<Subvolume>> {
        self.known(tree).filter(|subvolume| !subvolume.is_dead())
    }

    /// Also one that is being deleted, whose name may be there still.
    pub(crate) fn known(&self, tree: TreeId) -> Option<Arc<Subvolume>> {
        self.all.read().get(&tree).cloned()
    }

    pub(crate) fn is_read_only(&self, tree: TreeId) -> bool {
        self.all.read().get(&tree).is_some_and(|s| s.is_read_only())
    }

    /// It is so from now on, for who asks again with inodes locked.
    pub(crate) fn close(&self, subvolume: &Subvolume) {
        subvolume.set_read_only(true);
        self.some_closed.store(true, Ordering::SeqCst);
    }

    /// Whether any became read-only since the volume was opened. If none did, who has seen that one
    /// was not needs not look again.
    pub(crate) fn some_closed(&self) -> bool {
        self.some_closed.load(Ordering::SeqCst)
    }

    /// True if some subvolume was snapshotted or is a snapshot, or will be with the next commit.
    pub(crate) fn share_nodes(&self) -> bool {
        self.share_nodes.load(Ordering::SeqCst)
    }

    /// A new inode number of `tree`.
    pub(crate) fn allocate(&self, store: &NodeStore, view: &View<'_>, tree: TreeId) -> Result<u64> {
        let subvol = self.get(tree).ok_or(FsError::Posix(Errno::ESTALE))?;
        subvol.numbers.take(|| Ok(highest_inode(store, view, tree)? + 1))
    }

    /// A number for a tree that is new `now`, and its UUID.
    pub(crate) fn new_tree(&self, now: Timespec) -> Result<(TreeId, [u8; 16])> {
        let below = |highest: u64| (highest + 1 < TREES_END).then_some(highest + 1);
        let highest = self.highest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below);
        let id = highest.map_err(|_| FsError::Posix(Errno::ENOSPC))? + 1;
        Ok((TreeId(id), self.uuids.of(TreeId(id), now)))
    }

    /// An empty subvolume that the current epoch makes.
    pub(crate) fn add(&self, tree: TreeId, uuid: [u8; 16]) {
        let new = Subvolume {
            root_dir: FIRST_FREE_OBJECTID,
            new_uuid: uuid,
            read_only: AtomicBool::new(false),
            last_snapshot: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            committed: AtomicBool::new(false),
            snapshots: AtomicU32::new(0),
            sends: AtomicU32::new(0),
            numbers: Numbers::default(),
        };
        self.all.write().insert(tree, Arc::new(new));
    }

    /// It could not be made after all.
    pub(crate) fn forget(&self, tree: TreeId) {
        self.all.write().remove(&tree);
        self.coming.write().remove(&tree);
    }

    /// A snapshot that the next commit makes.
    pub(crate) fn expect(&self, tree: TreeId) {
        self.announced.fetch_add(1, Ordering::SeqCst);
        self.coming.write().insert(tree, None);
    }

    /// No commit has it that its maker could wait for: `guard` is kept until one has, or it is given up.
    pub(crate) fn comes_late(&self, tree: TreeId, guard: Snapshotting) {
        if let Some(kept) = self.coming.write().get_mut(&tree) {
            *kept = Some(guard);
        }
    }

    /// Snapshots announced so far, ever counting up.
    pub(crate) fn announced(&self) -> u64 {
        self.announced.load(Ordering::SeqCst)
    }

    /// Some snapshot is announced that no commit has.
    pub(crate) fn any_coming(&self) -> bool {
        !self.coming.read().is_empty()
    }

    /// The name of `tree` is there, and a commit must come before anything behind it is.
    pub(crate) fn is_coming(&self, tree: TreeId) -> bool {
        self.coming.read().contains_key(&tree)
    }

    /// Some subvolume is there that no commit has.
    pub(crate) fn any_new(&self) -> bool {
        let new = |subvolume: &Arc<Subvolume>| !subvolume.committed.load(Ordering::Relaxed);
        !self.coming.read().is_empty() || self.all.read().values().any(new)
    }

    /// Commits from now on reckon with nodes that trees share.
    pub(crate) fn will_share(&self) {
        self.share_nodes.store(true, Ordering::SeqCst);
    }
}

impl Subvolume {
    fn committed(root: &Root) -> Subvolume {
        Subvolume {
            root_dir: root.item.root_dirid,
            new_uuid: [0; 16],
            read_only: AtomicBool::new(root.item.flags & ROOT_SUBVOL_RDONLY != 0),
            last_snapshot: AtomicU64::new(root.item.last_snapshot.0),
            dead: AtomicBool::new(root.item.is_deleted()),
            committed: AtomicBool::new(true),
            snapshots: AtomicU32::new(0),
            sends: AtomicU32::new(0),
            numbers: Numbers::default(),
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::SeqCst)
    }

    pub(crate) fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::SeqCst);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    pub(crate) fn set_dead(&self, dead: bool) {
        self.dead.store(dead, Ordering::SeqCst);
    }

    /// Extents of this generation and older ones may be another's, too; the last one while that is
    /// being made so.
    pub(crate) fn last_snapshot(&self) -> Generation {
        match self.snapshots.load(Ordering::SeqCst) {
            0 => Generation(self.last_snapshot.load(Ordering::SeqCst)),
            _ => Generation(u64::MAX),
        }
    }

    /// See [`Sending`]. Who changes subvolumes has his turn before or behind it.
    pub(crate) fn sending(self: &Arc<Self>) -> Sending {
        self.sends.fetch_add(1, Ordering::SeqCst);
        Sending(self.clone())
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.sends.load(Ordering::SeqCst) > 0
    }

    /// See [`Snapshotting`]. Who has looked before holds an inode's lock until he has written.
    pub(crate) fn snapshotting(self: &Arc<Self>) -> Snapshotting {
        self.snapshots.fetch_add(1, Ordering::SeqCst);
        Snapshotting(self.clone())
    }
}

/// Highest object id of an inode in the tree. Runs before the first inode of this mount is
/// made in the subvolume, so the deltas have none above it.
fn highest_inode(store: &NodeStore, view: &View<'_>, tree: TreeId) -> Result<u64> {
    // Without a root it is made in this epoch or the one at work.
    let Some(root) = view.layers.roots.get(tree) else { return Ok(FIRST_FREE_OBJECTID) };
    let mut cursor = Cursor::new(store, &root.root);
    cursor.seek_back(&Key::new(LAST_FREE_OBJECTID, u8::MAX, u64::MAX)).fs()?;
    Ok(cursor.item().map_or(FIRST_FREE_OBJECTID, |(key, _)| key.objectid.max(FIRST_FREE_OBJECTID)))
}
