//! Inodes in memory: the table of those in use, and the state of each.
//!
//! What it does not know: names, extents, and how content is written back.

mod attr;
mod covered;
mod dir_names;
mod dirty;
mod error_seen;
mod gaps;
mod locked;
mod orphans;
mod queue;
mod state;
mod table;

pub(crate) use attr::{ReportedBlocks, attr_of, from_linux_dev, kind_of, stamp, time_of};
pub(crate) use dir_names::DirNames;
#[cfg(test)]
pub(crate) use dirty::PIECES_SEEN;
pub(crate) use dirty::{Dirty, Pieces};
pub(crate) use error_seen::ErrorSeen;
pub(crate) use gaps::Gaps;
pub(crate) use locked::Locked;
pub(crate) use orphans::{OrphanTable, delete_item as delete_orphan_item};
pub(crate) use queue::DirtyQueue;
pub(crate) use state::{Inode, LOCK_WAITS, Orphan, State};
pub(crate) use table::InodeTable;
pub(crate) use table::Reserved;

use crate::error::IntoFs;
use crate::ino::{self, InodeId};
use crate::stats::Stats;
use btrfs_disk::ids::{FIRST_FREE_OBJECTID, LAST_FREE_OBJECTID};
use btrfs_disk::items::InodeItem;
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_txn::view::{Bytes, Finder};
use btrfs_txn::{Core, Op, View};
use dir_names::NameBudget;
use inode_index::Ref;
use locks::{Rank, RwLock};
use rustc_hash::FxHashSet;
use std::cell::Cell;
use std::sync::Arc;
use vfs::{Errno, FsError, Ino, Result};

/// The memory of one inode, for tests that refuse it.
#[cfg(feature = "fault-injection")]
pub fn inode_layout() -> std::alloc::Layout {
    Ref::<Inode>::layout()
}

/// The inodes in use, loaded as they are asked for.
pub(crate) struct Inodes {
    core: Arc<Core>,
    stats: Arc<Stats>,
    table: InodeTable,
    orphans: OrphanTable,
    /// For what directories know of their names.
    names: Arc<NameBudget>,
    /// Trees whose inodes are not to be had any more.
    closed: RwLock<FxHashSet<TreeId>>,
    /// Inodes that come by one thread between two looks at their number.
    noted_each: u64,
}

/// What one takes: with its counts, its place in the index, and what the allocator adds.
const INODE_COST: u64 = Ref::<Inode>::layout().size() as u64 + 32;
/// What directories may know of their names, as a share of what inodes may take.
/// Chosen, not measured.
const NAMES_SHARE: u64 = 8;
/// Inodes that come by one thread between two looks at their number, at most.
/// Chosen, not measured.
const NOTED_EACH: u64 = 256;
/// For each that came so many are looked at, for some that can leave.
/// Chosen, not measured.
const LOOKED_AT: u64 = 4;
/// Looked at behind a commit between two looks at their number.
/// Chosen, not measured.
const LOOKED_AT_ONCE: usize = 1024;

thread_local! {
    /// How many came by this thread, for `one_more`.
    static CAME: Cell<u64> = const { Cell::new(0) };
}

impl Inodes {
    pub(crate) fn new(core: Arc<Core>, stats: Arc<Stats>) -> Inodes {
        let closed = RwLock::new(Rank::Leaf, FxHashSet::default());
        let noted_each = (core.memory.most_inodes() / INODE_COST / 4).clamp(1, NOTED_EACH);
        let (table, orphans) = (InodeTable::new(), OrphanTable::new());
        let names = Arc::new(NameBudget::new(core.memory.most_inodes() / NAMES_SHARE));
        Inodes { core, stats, table, orphans, names, closed, noted_each }
    }

    /// One more comes: now and then what all of them take is written down for the others, and
    /// some leave.
    fn one_more(&self) {
        let came = CAME.get();
        CAME.set(came.wrapping_add(1));
        if came.is_multiple_of(self.noted_each) {
            self.note_memory();
            if self.core.memory.has_many_inodes() {
                self.table.make_room((self.noted_each * LOOKED_AT) as usize);
            }
        }
    }

    /// After a commit, which made inodes such as can be loaded again: those that nobody needs
    /// leave memory, and where there are too many still, some of those that callers only hold.
    pub(crate) fn settle(&self) {
        self.stats.subvolumes_looked_at.add(self.table.evict_idle());
        self.note_memory();
        // The first time that one is looked at it may count as used.
        let mut looks = 2 * self.table.len();
        while looks > 0 && self.core.memory.has_many_inodes() {
            self.table.make_room(LOOKED_AT_ONCE);
            self.note_memory();
            looks = looks.saturating_sub(LOOKED_AT_ONCE);
        }
    }

    /// What they take is written down for the others.
    pub(crate) fn note_memory(&self) {
        self.core.note_inodes(self.table.len() as u64 * INODE_COST + self.names.taken());
    }

    pub(crate) fn table(&self) -> &InodeTable {
        &self.table
    }

    /// Those without a name.
    pub(crate) fn orphans(&self) -> &OrphanTable {
        &self.orphans
    }

    /// Out of which directories have what they know of their names.
    pub(crate) fn name_budget(&self) -> &Arc<NameBudget> {
        &self.names
    }

    pub(crate) fn get(&self, ino: Ino) -> Result<Ref<Inode>> {
        if ino::is_stand_in(ino) {
            return Err(FsError::ReadOnly("the place of a nested subvolume".into()));
        }
        self.by_id(ino::id_of(ino), 0)
    }

    /// Takes `lookups` references.
    pub(crate) fn by_id(&self, id: InodeId, lookups: u64) -> Result<Ref<Inode>> {
        self.table.get(id, lookups, || self.load(id))
    }

    /// A place for an inode that is about to be made; its number is new. `None`: it is not, see
    /// [`InodeTable::reserve`].
    pub(crate) fn reserve(&self, id: InodeId) -> Result<Option<Reserved<'_>>> {
        self.one_more();
        self.table.reserve(id)
    }

    /// No inode of `tree` can be used any more. Who works on one is waited for, so nothing of the
    /// tree changes behind this. What of their content is in memory alone stays there as yet.
    pub(crate) fn close_tree(&self, tree: TreeId) -> ClosedTree {
        self.closed.write().insert(tree);
        let mut closed = ClosedTree { tree, inodes: Vec::new() };
        // Who was at work may have made others, the first time.
        loop {
            let known = closed.inodes.len();
            for inode in self.table.of_tree(tree) {
                // One that is being erased as well: no step of that follows.
                let mut state = inode.state.write();
                if !state.has_items() {
                    continue;
                }
                state.erased = true;
                drop(state);
                closed.inodes.push(inode);
            }
            if closed.inodes.len() == known {
                return closed;
            }
        }
    }

    /// As if it had not been closed; answers the inodes that were in memory.
    pub(crate) fn open_tree(&self, closed: ClosedTree) -> Vec<Ref<Inode>> {
        self.closed.write().remove(&closed.tree);
        for inode in &closed.inodes {
            inode.state.write().erased = false;
        }
        closed.inodes
    }

    fn load(&self, id: InodeId) -> Result<State> {
        let state = self.stored(id, |view, key| view.get(id.tree, key))?;
        self.one_more();
        Ok(state)
    }

    /// An inode as it is stored, its item found by `find`.
    fn stored(
        &self,
        id: InodeId,
        find: impl FnOnce(&View<'_>, &Key) -> btrfs_disk::Result<Option<Bytes>>,
    ) -> Result<State> {
        if self.closed.read().contains(&id.tree) {
            return Err(Errno::ESTALE.into());
        }
        if !is_ours(id) {
            return Err(Errno::ESTALE.into());
        }
        let key = Key::new(id.objectid, kind::INODE_ITEM, 0);
        let Some(bytes) = find(&self.core.view(), &key).fs()? else {
            return Err(Errno::ENOENT.into());
        };
        let item = InodeItem::read(&bytes).fs()?;
        // Who held its number all the while may remember anything.
        let reported = ReportedBlocks::unknown();
        Ok(State { item, landed_size: item.size, reported, ..State::default() })
    }

    /// An inode that was not in memory when the caller took a reference, as it is by now: who changed it
    /// since has said so, or has the size in memory that a caller hears of from him.
    pub(crate) fn unloaded(&self, id: InodeId, finder: &mut Finder<'_>) -> Result<State> {
        self.stored(id, |view, key| finder.get(view, id.tree, key))
    }
}

/// Other trees have inodes, too, and the format's own have numbers below and above: whoever brings a
/// number, of a handle or in an entry, does not come to these.
fn is_ours(id: InodeId) -> bool {
    id.tree.is_subvolume() && (FIRST_FREE_OBJECTID..=LAST_FREE_OBJECTID).contains(&id.objectid)
}

/// A tree whose inodes cannot be used any more, and those that were in memory.
pub(crate) struct ClosedTree {
    tree: TreeId,
    inodes: Vec<Ref<Inode>>,
}

impl ClosedTree {
    /// Nobody will ask for it again; answers the bytes of content that were in memory alone.
    pub(crate) fn drop_content(self) -> u64 {
        let dirty = self.inodes.iter().map(|inode| inode.state.write().dirty.take());
        dirty.flatten().map(|dirty| dirty.bytes()).sum()
    }
}

/// See [`Core::change`].
pub(crate) fn change<T>(core: &Core, work: impl FnOnce(&Op<'_>) -> Result<T>) -> Result<T> {
    core.change(work)
}

/// Puts the inode item as the volume may see it, stamped with this epoch.
pub(crate) fn put_inode(op: &Op<'_>, id: InodeId, state: &mut State) {
    let item = item_of_epoch(op, state);
    op.put(id, kind::INODE_ITEM, 0, item);
}

/// The inode item as the volume may see it, which the caller puts.
pub(crate) fn item_of_epoch(op: &Op<'_>, state: &mut State) -> Box<[u8]> {
    state.item.transid = op.generation().0;
    state.item.sequence = state.item.sequence.wrapping_add(1);
    state.landed_size = if state.is_file() { state.disk_size() } else { 0 };
    state.item_dirty = false;
    state.item_for_disk().to_boxed()
}
