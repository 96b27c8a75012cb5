//! The inodes in use, by number: an index for each subvolume (crate `inode-index`).
//!
//! A lookup takes no lock, and none is held over I/O: a loader puts the inode in with the inode's
//! own lock held, and reads its item then.
//!
//! Invariants:
//! * an inode is in the table as long as somebody has a `Ref` of it, or it is queued: the queue
//!   has one;
//! * what callers have looked up they hold by number, as claims in the index. Those stay when the
//!   inode leaves memory, so a number that is claimed is never taken for one that nobody needs.
//!   (tests/lockfree)

use super::{Inode, State};
use crate::ino::{self, InodeId};
use crate::sync::{
    Arc, Epochs, Grown, Index, Mutex, Pin, Rank, Ref, Refused, Reservation, Reserve,
};
use btrfs_disk::TreeId;
use vfs::{Errno, Ino, Result};

pub(crate) struct InodeTable {
    epochs: Arc<Epochs>,
    /// An index stays when its subvolume is gone: some hundred bytes.
    trees: Grown<Index<Inode>>,
    /// Where `make_room` looks next: a subvolume, and a number there.
    hand: Mutex<(u64, u64)>,
}

/// A number that a new inode will have, and the memory for it: to use them cannot fail.
pub(crate) struct Reserved<'t> {
    pub(crate) id: InodeId,
    ino: Ino,
    place: Reservation<'t, Inode>,
}

impl Reserved<'_> {
    /// The inode comes, with `lookups` references by callers.
    pub(crate) fn fill(self, state: State, lookups: u64) -> Ref<Inode> {
        let Reserved { id, ino, place } = self;
        place.fill(Inode::new(id, ino, State { loaded: true, ..state }), lookups)
    }
}

impl InodeTable {
    pub(crate) fn new() -> InodeTable {
        let epochs = Arc::new(Epochs::default());
        let trees = Grown::new(epochs.clone());
        InodeTable { trees, hand: Mutex::new(Rank::Leaf, (0, 0)), epochs }
    }

    /// How many there are; beside those who come and go an estimate.
    pub(crate) fn len(&self) -> usize {
        self.epochs.entries()
    }

    /// The index of `tree`, made if there is none.
    fn index(&self, pin: &Pin<'_>, tree: TreeId) -> Result<&Index<Inode>> {
        let make = || Index::new(self.epochs.clone());
        self.trees.get_or_make(pin, tree.0, make).map_err(|_| Errno::ENOMEM.into())
    }

    /// The inode, loaded by `load` if it is not in memory; takes `lookups` references.
    pub(crate) fn get(
        &self,
        id: InodeId,
        lookups: u64,
        load: impl FnOnce() -> Result<State>,
    ) -> Result<Ref<Inode>> {
        if let Some(inode) = self.find(id, lookups) {
            return Ok(inode);
        }
        let fresh = Ref::try_new(Inode::new(id, ino::number(id)?, State::default()));
        let fresh = fresh.ok_or(Errno::ENOMEM)?;
        let mut state = fresh.state.write();
        if let Some(inode) = self.put(&fresh, lookups)? {
            return Ok(inode);
        }
        match load() {
            Ok(loaded) => {
                *state = State { loaded: true, ..loaded };
                drop(state);
                Ok(fresh)
            }
            Err(error) => {
                let pin = self.epochs.pin();
                self.index(&pin, id.tree)?.remove(&pin, id.objectid, &fresh, lookups);
                Err(error)
            }
        }
    }

    /// Puts `fresh` in its place; or answers who is there.
    fn put(&self, fresh: &Ref<Inode>, lookups: u64) -> Result<Option<Ref<Inode>>> {
        let pin = self.epochs.pin();
        match self.index(&pin, fresh.id.tree)?.insert(&pin, fresh.id.objectid, fresh, lookups) {
            Ok(()) => Ok(None),
            Err(Refused::Taken(inode)) => Ok(Some(inode)),
            Err(Refused::NoMemory) => Err(Errno::ENOMEM.into()),
            // It is being made, and nobody was told of it.
            Err(Refused::Reserved) => Err(Errno::ENOENT.into()),
        }
    }

    /// The inode if it is in memory; takes `lookups` references.
    pub(crate) fn find(&self, id: InodeId, lookups: u64) -> Option<Ref<Inode>> {
        let pin = self.epochs.pin();
        let inode = self.trees.get(&pin, id.tree.0)?.find(&pin, id.objectid, lookups)?;
        inode.use_now();
        Some(inode)
    }

    /// Gives `count` lookup references back; the inode, if those were the last and it is in
    /// memory. One that is not has a name, or had not left it.
    pub(crate) fn forget(&self, id: InodeId, count: u64) -> Option<Ref<Inode>> {
        let pin = self.epochs.pin();
        self.trees.get(&pin, id.tree.0)?.give_back(&pin, id.objectid, count)
    }

    /// A place for an inode that is about to be made.
    pub(crate) fn reserve(&self, id: InodeId) -> Result<Reserved<'_>> {
        let ino = ino::number(id)?;
        let index = self.index(&self.epochs.pin(), id.tree)?;
        match index.reserve(id.objectid) {
            Ok(place) => Ok(Reserved { id, ino, place }),
            Err(Reserve::NoMemory) => Err(Errno::ENOMEM.into()),
            Err(Reserve::InUse) => panic!("inode number {id:?} was in use"),
        }
    }

    /// Drops the inode if nobody else refers to it; who writes it back or changes it does.
    pub(crate) fn evict(&self, inode: Ref<Inode>) -> bool {
        let (id, pin) = (inode.id, self.epochs.pin());
        let index = self.trees.get(&pin, id.tree.0);
        index.is_some_and(|index| index.evict(&pin, id.objectid, &inode, false))
    }

    fn each(&self, index: &Index<Inode>, all: &mut Vec<Ref<Inode>>) {
        index.each(&self.epochs.pin(), &mut |_, inode| all.push(inode));
    }

    /// Every inode in memory.
    pub(crate) fn all(&self) -> Vec<Ref<Inode>> {
        let mut all = Vec::new();
        for (_, index) in self.indexes() {
            self.each(index, &mut all);
        }
        all
    }

    /// Every inode of `tree` in memory.
    pub(crate) fn of_tree(&self, tree: TreeId) -> Vec<Ref<Inode>> {
        let mut all = Vec::new();
        let index = self.trees.get(&self.epochs.pin(), tree.0);
        index.into_iter().for_each(|index| self.each(index, &mut all));
        all
    }

    fn indexes(&self) -> Vec<(u64, &Index<Inode>)> {
        let mut indexes = Vec::new();
        self.trees.each(&self.epochs.pin(), |tree, index| indexes.push((tree, index)));
        indexes
    }

    /// Drops every inode that nobody refers to: those that were in use when their last
    /// reference went.
    pub(crate) fn evict_idle(&self) {
        for (_, index) in self.indexes() {
            index.evict_idle(0, usize::MAX, false, |_| true);
        }
    }

    /// Looks at `most` inodes of a subvolume, going round: who was not used since the last time
    /// and can be loaded again leaves memory, whether callers hold its number or not.
    pub(crate) fn make_room(&self, most: usize) {
        let (tree, from) = *self.hand.lock();
        let indexes = self.indexes();
        let Some((at, index)) = indexes.into_iter().find(|(at, _)| *at >= tree) else {
            *self.hand.lock() = (0, 0);
            return;
        };
        let from = if at == tree { from } else { 0 };
        let may_leave = |inode: &Inode| !inode.was_used() && inode.can_be_loaded_again();
        let (_, next) = index.evict_idle(from, most, true, may_leave);
        *self.hand.lock() = next.map_or((at + 1, 0), |next| (at, next));
    }
}
