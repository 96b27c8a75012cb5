//! What is remembered of the log on top of one commit.
//!
//! Invariant: `blocks` are exactly the nodes that the log has taken out of free space and
//! not given back; no commit knows them. All of it is void once the next commit is durable.

use super::committed::Name;
use super::freeze::Crowded;
use super::holes::Holes;
use crate::ino::InodeId;
use btrfs_disk::{Generation, Logical, TreeId};
use btrfs_space::{Extent, Kind, Priority};
use btrfs_tree::TreeRoot;
use btrfs_txn::Core;
use btrfs_txn::delta::{Ask, Level};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Bytes of a delta whose commit may fill a block group.
/// Chosen, not measured.
const LARGE: u64 = 1 << 20;
/// Nodes that are kept for the log meanwhile, at most.
/// Chosen, not measured: 4 MiB of nodes of 16 KiB.
const SPARE: u64 = 256;

#[derive(Default)]
pub(crate) struct LogState {
    /// The tree of the logs' roots, as it is on the volume.
    pub root: Option<TreeRoot>,
    pub trees: BTreeMap<TreeId, SubvolLog>,
    pub members: HashMap<InodeId, Member>,
    /// Of all writes of this log; what went since stays counted.
    pub crowded: Crowded,
    pub blocks: HashSet<Logical>,
    /// What was synced while a commit is at work: what of it that commit does not have goes
    /// into a log on top of it, before anybody can see it without.
    pub synced: BTreeMap<InodeId, Level>,
    /// While a commit is at work that may fill the block groups which the commit before
    /// knows: nodes of `blocks` in those that nothing refers to.
    pub spare: Option<Vec<Logical>>,
    /// A log write was given up halfway, or the commit beside it: what it took is in no log, or in
    /// another epoch. Only a commit helps.
    pub stale: bool,
}

/// The log of one subvolume.
#[derive(Default)]
pub(crate) struct SubvolLog {
    pub root: Option<TreeRoot>,
    /// Checksums that the log has, by first sector; runs do not overlap.
    pub sums: BTreeMap<u64, Vec<u8>>,
}

/// An inode that the log has.
#[derive(Default, Debug)]
pub(crate) struct Member {
    /// The names that it was logged with, if they are not those of the commit.
    pub names: BTreeSet<Name>,
    /// All entries that the directory gained and lost are followed.
    pub entries: bool,
    /// What the log's own items for holes say: where it is a hole, and the commit has content there
    /// or beside it.
    pub holes: Holes,
}

impl LogState {
    /// How much of an inode is to be taken for the log.
    pub(crate) fn ask(&self, id: &InodeId, level: Level) -> Ask {
        let member = self.members.get(id);
        let known = member.is_some_and(|m| m.entries);
        let level = if known { Level::Entries } else { level };
        Ask {
            level,
            whole: member.is_none(),
            entries: level == Level::Entries && !known,
            content: false,
            names: false,
        }
    }

    /// Takes nodes for the log out of what a commit of `delta_bytes` may fill.
    pub(crate) fn save_for_commit(&mut self, core: &Core, base: Generation, delta_bytes: u64) {
        if delta_bytes < LARGE {
            return;
        }
        let node = u64::from(core.geometry.node_size);
        // Of what is there: a chunk made for them would be of no use.
        let free = core.space.totals().metadata.free;
        let count = SPARE.min(core.space.unreserved(Kind::Metadata).min(free) / 16 / node);
        // Others take of it meanwhile: nothing of what is kept for commits and removals.
        let reserved = core.space.reserve_metadata(count * node, Priority::Normal);
        let Ok(mut reserved) = reserved else { return };
        let mut spare = Vec::new();
        while reserved.bytes() >= node {
            let Ok(extent) = reserved.alloc_node(&core.space, node) else { break };
            if !core.space.is_recorded(extent.logical, base) {
                core.give_back(extent);
                break;
            }
            spare.push(extent.logical);
        }
        self.blocks.extend(&spare);
        self.spare = Some(spare);
    }

    /// Nodes that no superblock leads to any more.
    pub(crate) fn give_back(&mut self, core: &Core, nodes: Vec<Logical>) {
        if let Some(spare) = &mut self.spare {
            nodes.iter().for_each(|logical| core.store.forget(*logical));
            return spare.extend(nodes);
        }
        nodes.iter().for_each(|logical| {
            self.blocks.remove(logical);
        });
        release(core, nodes);
    }

    /// The commit at work found no room. The log on the volume stays what it is, and no other
    /// takes its place before a commit is durable.
    pub(crate) fn give_up(&mut self, core: &Core) {
        self.stale = true;
        self.synced.clear();
        let spare = self.spare.take().unwrap_or_default();
        self.give_back(core, spare);
    }

    /// A commit is durable: its own log takes the place of this one.
    pub(crate) fn replace(&mut self, core: &Core, by: LogState) {
        let old = std::mem::replace(self, by);
        release(core, old.blocks);
    }
}

/// Gives nodes back that no superblock leads to any more.
pub(crate) fn release(core: &Core, blocks: impl IntoIterator<Item = Logical>) {
    let len = u64::from(core.geometry.node_size);
    for logical in blocks {
        core.store.forget(logical);
        core.give_back(Extent { logical, len });
    }
}
