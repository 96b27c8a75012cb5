//! What is remembered of the log between two commits.
//!
//! Invariant: `blocks` are exactly the nodes that the log has taken out of free space and
//! not given back; no commit knows them. All of it is void once a commit is durable.

use super::committed::Name;
use crate::delta::{Ask, Level};
use crate::engine::Engine;
use crate::ino::InodeId;
use btrfs_disk::{Logical, TreeId};
use btrfs_space::Extent;
use btrfs_tree::TreeRoot;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

#[derive(Default)]
pub struct LogState {
    /// The tree of the logs' roots, as it is on the volume.
    pub root: Option<TreeRoot>,
    pub trees: BTreeMap<TreeId, TreeLog>,
    pub members: HashMap<InodeId, Member>,
    pub blocks: HashSet<Logical>,
    #[cfg(feature = "ablation")]
    pub ordered: super::ablation::Scratch,
}

/// The log of one subvolume.
#[derive(Default)]
pub struct TreeLog {
    pub root: Option<TreeRoot>,
    /// Checksums that the log has, by first sector; runs do not overlap.
    pub sums: BTreeMap<u64, Vec<u8>>,
}

/// An inode that the log has.
#[derive(Default, Debug)]
pub struct Member {
    /// The names that it was logged with, if they are not those of the commit.
    pub names: BTreeSet<Name>,
    /// All entries that the directory gained and lost are followed.
    pub entries: bool,
    /// Ranges that became holes over content that the commit has.
    pub gaps: Vec<(u64, u64)>,
    /// Offsets of the log's own items for holes.
    pub holes: BTreeSet<u64>,
}

impl LogState {
    /// How much of an inode is to be taken for the log.
    pub fn ask(&self, id: &InodeId, level: Level) -> Ask {
        let member = self.members.get(id);
        let known = member.is_some_and(|m| m.entries);
        let level = if known { Level::Entries } else { level };
        Ask {
            level,
            whole: member.is_none(),
            entries: level == Level::Entries && !known,
            content: member.is_some_and(|m| !m.gaps.is_empty()),
        }
    }

    /// A commit is durable: the log is void.
    pub fn reset(&mut self, engine: &Engine) {
        let blocks = std::mem::take(&mut self.blocks);
        release(engine, blocks);
        *self = LogState::default();
    }
}

/// Gives nodes back that no superblock leads to any more.
pub fn release(engine: &Engine, blocks: impl IntoIterator<Item = Logical>) {
    let len = u64::from(engine.geometry.node_size);
    for logical in blocks {
        engine.store.forget(logical);
        engine.give_back(Extent { logical, len });
    }
}
