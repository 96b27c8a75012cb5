//! Replay: what the log says becomes delta of the epoch that begins with the mount.
//!
//! The order of the work is the format's, since a log is written for it: first every
//! logged inode comes into being, with what was deleted from directories and attributes
//! since the commit; then the names that directories list; then, item by item,
//! attributes, names by their inodes' references, and extents; link counts are counted
//! anew in the end, and what has none left becomes an orphan.
//!
//! Invariants: nothing is written here, so an error leaves the volume as it was; at every
//! moment each name has its DIR_ITEM, its DIR_INDEX and its reference (all changes go
//! through `names`); nodes of the log, and extents that only the log refers to, are taken
//! from the allocator before anything else can have them.
//!
//! It does not know commits: the caller makes the result durable, then `release`s the log.

mod extents;
mod inodes;
mod links;
mod names;
mod sums;

use super::read::{Forest, LogTree};
use super::state::release;
use crate::error::{IntoFs, from_corrupt};
use crate::ino::InodeId;
use crate::inode::{State, put_inode};
use btrfs_disk::items::InodeItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, FixedSize, Key, Logical};
use btrfs_space::{Extent, Kind};
use btrfs_tree::{Item, NodeStore, Scan, scan};
use btrfs_txn::{Core, Op};
use std::collections::BTreeSet;
use sums::Sums;
use vfs::{Damage, FsError, Result};

/// What a replay did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Replayed {
    pub subvolumes: u64,
    pub inodes: u64,
    pub items: u64,
    pub extents: u64,
}

/// Brings the log's changes into the current epoch. The caller has the engine alone.
pub(crate) fn replay(core: &Core, forest: &Forest) -> Result<Replayed> {
    if !core.health.is_read_only() {
        claim_nodes(core, forest)?;
    }
    let trees: Vec<LogTree> = forest.trees.iter().copied().filter(|t| lives(core, t)).collect();
    let mut replay = Replay {
        core,
        op: core.begin(),
        tree: None,
        fix: BTreeSet::new(),
        sums: Sums::default(),
        done: Replayed { subvolumes: trees.len() as u64, ..Replayed::default() },
    };
    for stage in [Replay::inodes, Replay::listed_names, Replay::contents] {
        for tree in &trees {
            replay.tree = Some(*tree);
            stage(&mut replay)?;
        }
    }
    replay.put_sums()?;
    Ok(replay.done)
}

impl Forest {
    /// The superblock that does not know the log any more is durable: its space is free.
    pub(crate) fn release(&self, core: &Core) {
        release(core, self.nodes.iter().copied());
    }
}

/// The log of a subvolume that was deleted in the same transaction says nothing any more.
fn lives(core: &Core, tree: &LogTree) -> bool {
    core.roots().get(tree.subvol).is_some_and(|root| !root.item.is_deleted())
}

fn claim_nodes(core: &Core, forest: &Forest) -> Result<()> {
    for node in &forest.nodes {
        claim(core, Extent { logical: *node, len: forest.node_size }, Kind::Metadata)?;
    }
    Ok(())
}

/// Takes space from the allocator that only the log refers to.
fn claim(core: &Core, extent: Extent, wanted: Kind) -> Result<()> {
    let kind = core.space.kind_of(&extent).fs()?;
    if kind != wanted && !(core.space.mixed() && kind == Kind::Data) {
        let what = Corrupt::new(format!("the log has {wanted:?} in a chunk for {kind:?}"));
        return Err(from_corrupt(what.at(extent.logical)));
    }
    core.space.claim(extent).fs()
}

struct Replay<'e> {
    core: &'e Core,
    op: Op<'e>,
    /// The log at work.
    tree: Option<LogTree>,
    /// Inodes of the subvolume at work whose links have to be counted.
    fix: BTreeSet<InodeId>,
    sums: Sums,
    done: Replayed,
}

impl<'e> Replay<'e> {
    fn log(&self) -> &LogTree {
        self.tree.as_ref().expect("a stage has its log")
    }

    fn id(&self, objectid: u64) -> InodeId {
        InodeId::new(self.log().subvol, objectid)
    }

    /// The log's items with keys from `from` to `to`.
    fn logged(&self, from: Key, to: Key) -> Scan<'e, NodeStore> {
        scan(&self.core.store, &self.log().root, from..=to)
    }

    fn logged_item(&self, key: &Key) -> Result<Option<Item>> {
        btrfs_tree::get(&self.core.store, &self.log().root, key).fs()
    }

    fn everything(&self) -> Scan<'e, NodeStore> {
        self.logged(Key::MIN, Key::MAX)
    }

    /// The inode as it is in the subvolume now.
    fn item(&self, id: InodeId) -> Result<Option<InodeItem>> {
        let key = Key::new(id.objectid, kind::INODE_ITEM, 0);
        match self.op.view.get(id.tree, &key).fs()? {
            Some(bytes) => Ok(Some(InodeItem::read(&bytes).fs()?)),
            None => Ok(None),
        }
    }

    /// As `item`, for one that must be there.
    fn state(&self, id: InodeId) -> Result<State> {
        match self.item(id)? {
            Some(item) => {
                Ok(State { loaded: true, item, landed_size: item.size, ..State::default() })
            }
            None => Err(self.damage(id, "the log speaks of an inode that is not there")),
        }
    }

    fn dir(&self, id: InodeId) -> Result<State> {
        let state = self.state(id)?;
        match state.is_dir() {
            true => Ok(state),
            false => Err(self.damage(id, "the log puts names into what is no directory")),
        }
    }

    fn put(&self, id: InodeId, mut state: State) {
        put_inode(&self.op, id, &mut state);
    }

    fn damage(&self, id: InodeId, what: &str) -> FsError {
        let what = format!("inode {} of tree {}: {what}", id.objectid, id.tree);
        Damage::new(what).into()
    }

    /// The third stage: attributes, references, extents, in the order of the log; then links.
    fn contents(&mut self) -> Result<()> {
        let mut ignored = None;
        for item in self.everything() {
            let item = item.fs()?;
            let (key, id) = (item.key(), self.id(item.key().objectid));
            if key.kind == kind::INODE_ITEM && InodeItem::read(item.data()).fs()?.nlink == 0 {
                ignored = Some(key.objectid);
            }
            if ignored == Some(key.objectid) {
                continue;
            }
            match key.kind {
                kind::XATTR_ITEM => self.xattrs(id, key.offset, item.data())?,
                kind::INODE_REF => self.refs(id, key.offset, item.data())?,
                kind::INODE_EXTREF => self.extrefs(id, key.offset, item.data())?,
                kind::EXTENT_DATA => self.extent(id, &key, item.data())?,
                _ => continue,
            }
            self.done.items += 1;
        }
        self.count_links()
    }

    fn extent_is_stored(&self, extent: Logical, len: u64) -> Result<bool> {
        let Some(root) = self.op.view.layers.roots.get(btrfs_disk::TreeId::EXTENT) else {
            return Ok(false);
        };
        let key = Key::new(extent.0, kind::EXTENT_ITEM, len);
        Ok(btrfs_tree::get(&self.core.store, &root.root, &key).fs()?.is_some())
    }
}
