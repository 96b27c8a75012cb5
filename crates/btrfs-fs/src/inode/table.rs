//! The inodes in use, by number.
//!
//! Sharded; a shard's lock is held for a probe and an insert, never over I/O: a loader
//! inserts the inode with its own lock held and reads its item then.
//!
//! Invariant: an inode is in the table as long as a caller has looked it up, somebody has an
//! `Arc` of it, or it is queued. So references by lookup are taken under the shard's lock
//! alone: who evicts has looked at both counts then, and they did not change in between.
//! (tests/lockfree)

use super::{Inode, State};
use crate::ino::{self, InodeId};
use crate::sync::{Arc, Ordering, Rank, RwLock, SHARDS};
use btrfs_disk::TreeId;
use rustc_hash::FxHashMap;
use vfs::Result;

type Shard = FxHashMap<InodeId, Arc<Inode>>;

pub struct InodeTable {
    shards: Box<[RwLock<Shard>]>,
}

impl InodeTable {
    pub fn new() -> InodeTable {
        InodeTable {
            shards: (0..SHARDS).map(|_| RwLock::new(Rank::InodeTable, Shard::default())).collect(),
        }
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().len()).sum()
    }

    /// The inode, loaded by `load` if it is not in memory; takes `lookups` references.
    pub fn get(
        &self,
        id: InodeId,
        lookups: u64,
        load: impl FnOnce() -> Result<State>,
    ) -> Result<Arc<Inode>> {
        if let Some(inode) = self.find(id, lookups) {
            return Ok(inode);
        }
        let fresh = Arc::new(Inode::new(id, ino::number(id)?, State::default()));
        let mut state = fresh.state.write();
        {
            let mut shard = self.shards[id.shard(SHARDS)].write();
            if let Some(inode) = shard.get(&id) {
                inode.lookups.fetch_add(lookups, Ordering::Relaxed);
                return Ok(inode.clone());
            }
            fresh.lookups.store(lookups, Ordering::Relaxed);
            shard.insert(id, fresh.clone());
        }
        match load() {
            Ok(loaded) => {
                *state = State { loaded: true, ..loaded };
                drop(state);
                Ok(fresh)
            }
            Err(error) => {
                self.shards[id.shard(SHARDS)].write().remove(&id);
                Err(error)
            }
        }
    }

    /// The inode if it is in memory; takes `lookups` references.
    pub fn find(&self, id: InodeId, lookups: u64) -> Option<Arc<Inode>> {
        let shard = self.shards[id.shard(SHARDS)].read();
        let inode = shard.get(&id)?;
        inode.lookups.fetch_add(lookups, Ordering::Relaxed);
        Some(inode.clone())
    }

    /// Gives `count` lookup references back; the inode, if those were the last.
    pub fn forget(&self, id: InodeId, count: u64) -> Option<Arc<Inode>> {
        let inode = self.find(id, 0)?;
        let before = inode.lookups.fetch_sub(count, Ordering::AcqRel);
        debug_assert!(before >= count, "more forgotten than looked up");
        (before == count).then_some(inode)
    }

    /// Adds an inode that was just made; its number is new.
    pub fn insert(&self, id: InodeId, state: State, lookups: u64) -> Result<Arc<Inode>> {
        let inode = Arc::new(Inode::new(id, ino::number(id)?, State { loaded: true, ..state }));
        inode.lookups.store(lookups, Ordering::Relaxed);
        let old = self.shards[id.shard(SHARDS)].write().insert(id, inode.clone());
        assert!(old.is_none(), "inode number {id:?} was in use");
        Ok(inode)
    }

    /// Drops the inode if nobody refers to it and it has nothing unwritten. The caller's
    /// own `Arc` counts as one reference.
    pub fn evict(&self, inode: Arc<Inode>) -> bool {
        let mut shard = self.shards[inode.id.shard(SHARDS)].write();
        let idle = inode.lookups.load(Ordering::Relaxed) == 0
            && Arc::strong_count(&inode) == 2
            && !inode.queued.load(Ordering::Acquire);
        if idle {
            shard.remove(&inode.id);
        }
        idle
    }

    /// Every inode in memory.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.shards.iter().flat_map(|s| s.read().values().cloned().collect::<Vec<_>>()).collect()
    }

    /// Every inode of `tree` in memory.
    pub fn of_tree(&self, tree: TreeId) -> Vec<Arc<Inode>> {
        let of = |s: &RwLock<Shard>| -> Vec<Arc<Inode>> {
            s.read().values().filter(|inode| inode.id.tree == tree).cloned().collect()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Drops every inode that nobody refers to and that has nothing unwritten: those
    /// that were in use when their last reference went.
    pub fn evict_idle(&self) {
        for shard in &self.shards {
            shard.write().retain(|_, inode| {
                inode.lookups.load(Ordering::Relaxed) != 0
                    || Arc::strong_count(inode) > 1
                    || inode.queued.load(Ordering::Acquire)
            });
        }
    }
}
