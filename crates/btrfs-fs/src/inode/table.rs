//! The inodes in use, by number: an index for each subvolume (crate `inode-index`).
//!
//! A lookup takes no lock, and none is held over I/O: a loader puts the inode in with the inode's
//! own lock held, and reads its item then.
//!
//! Invariants:
//! * an inode is in the table as long as somebody has a `Ref` of it, or it is queued: the queue
//!   has one;
//! * what callers have looked up they hold by number, as claims in the index. Those stay when the
//!   inode leaves memory, and come without it where nothing but its item is told (`claim`), so a number that is
//!   claimed is never taken for one that nobody needs;
//! * a subvolume with an inode that nobody claims is in `awake`, or somebody is about to put it there:
//!   who put the inode in, who gave its last claim back, or who looks at it and leaves it. So what a commit
//!   looks at is what was at work since the last one, however many subvolumes were looked at once.
//!   (tests/lockfree)

use super::{Inode, State};
use crate::ino::{self, InodeId};
use crate::sync::{
    Arc, AtomicBool, Epochs, Grown, Index, Mutex, Ordering, Pin, Rank, Ref, Refused, Reservation,
    Reserve, fence,
};
use btrfs_disk::TreeId;
use std::collections::VecDeque;
use vfs::{Errno, Ino, Result};

/// The inodes of one subvolume.
struct Tree {
    number: u64,
    inodes: Index<Inode>,
    /// It is in the queue, or was taken out and not looked at yet.
    is_awake: AtomicBool,
}

/// Subvolumes that may have something to evict.
#[derive(Default)]
struct Queue {
    numbers: VecDeque<u64>,
    /// Subvolumes that it must have room for.
    trees: usize,
}

pub(crate) struct InodeTable {
    epochs: Arc<Epochs>,
    /// An index stays when its subvolume is gone: some hundred bytes.
    trees: Grown<Tree>,
    awake: Mutex<Queue>,
    /// Where `make_room` looks next: a subvolume, and a number there.
    hand: Mutex<(u64, u64)>,
}

/// A number that a new inode will have, and the memory for it: to use them cannot fail.
pub(crate) struct Reserved<'t> {
    pub(crate) id: InodeId,
    ino: Ino,
    place: Reservation<'t, Inode>,
    table: &'t InodeTable,
    tree: &'t Tree,
}

impl Reserved<'_> {
    /// The inode comes, with `lookups` references by callers.
    pub(crate) fn fill(self, state: State, lookups: u64) -> Ref<Inode> {
        let Reserved { id, ino, place, table, tree } = self;
        let inode = place.fill(Inode::new(id, ino, State { loaded: true, ..state }), lookups);
        table.wake(tree);
        inode
    }
}

/// Who is there already.
fn taken(refused: Refused<Inode>) -> Result<Ref<Inode>> {
    match refused {
        Refused::Taken(inode) => Ok(inode),
        Refused::NoMemory => Err(Errno::ENOMEM.into()),
        // It is being made, and nobody was told of it.
        Refused::Reserved => Err(Errno::ENOENT.into()),
    }
}

impl InodeTable {
    pub(crate) fn new() -> InodeTable {
        let epochs = Arc::new(Epochs::default());
        let trees = Grown::new(epochs.clone());
        let awake = Mutex::new(Rank::Leaf, Queue::default());
        InodeTable { trees, awake, hand: Mutex::new(Rank::Leaf, (0, 0)), epochs }
    }

    /// How many there are; beside those who come and go an estimate.
    pub(crate) fn len(&self) -> usize {
        self.epochs.entries()
    }

    /// The index of `tree`, made if there is none.
    fn tree(&self, pin: &Pin<'_>, tree: TreeId) -> Result<&Tree> {
        if let Some(tree) = self.trees.get(pin, tree.0) {
            return Ok(tree);
        }
        {
            // Room for all of them, so to wake one cannot fail.
            let mut queue = self.awake.lock();
            let more = queue.trees + 1 - queue.numbers.len();
            queue.numbers.try_reserve(more).map_err(|_| Errno::ENOMEM)?;
            queue.trees += 1;
        }
        let inodes = Index::new(self.epochs.clone());
        let make = || Tree { number: tree.0, inodes, is_awake: AtomicBool::new(false) };
        self.trees.get_or_make(pin, tree.0, make).map_err(|_| Errno::ENOMEM.into())
    }

    /// Behind what may have left an inode of `tree` without claims: the next commit looks at it.
    fn wake(&self, tree: &Tree) {
        // Who took the mark away looks at the inodes behind that, and sees what was done in front of this.
        fence(Ordering::SeqCst);
        if tree.is_awake.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = self.awake.lock();
        if !tree.is_awake.swap(true, Ordering::Relaxed) {
            queue.numbers.push_back(tree.number);
        }
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
                self.tree(&pin, id.tree)?.inodes.remove(&pin, id.objectid, &fresh, lookups);
                Err(error)
            }
        }
    }

    /// Puts `fresh` in its place; or answers who is there.
    fn put(&self, fresh: &Ref<Inode>, lookups: u64) -> Result<Option<Ref<Inode>>> {
        let pin = self.epochs.pin();
        let tree = self.tree(&pin, fresh.id.tree)?;
        match tree.inodes.insert(&pin, fresh.id.objectid, fresh, lookups) {
            Ok(()) => {
                self.wake(tree);
                Ok(None)
            }
            Err(refused) => taken(refused).map(Some),
        }
    }

    /// Takes `lookups` references on an inode and leaves it where it is; answers it, if that is in memory.
    pub(crate) fn claim(&self, id: InodeId, lookups: u64) -> Result<Option<Ref<Inode>>> {
        if let Some(inode) = self.find(id, lookups) {
            return Ok(Some(inode));
        }
        let pin = self.epochs.pin();
        match self.tree(&pin, id.tree)?.inodes.claim(&pin, id.objectid, lookups) {
            Ok(()) => Ok(None),
            Err(refused) => taken(refused).map(Some),
        }
    }

    /// The inode if it is in memory; takes `lookups` references.
    pub(crate) fn find(&self, id: InodeId, lookups: u64) -> Option<Ref<Inode>> {
        let pin = self.epochs.pin();
        let tree = self.trees.get(&pin, id.tree.0)?;
        let inode = tree.inodes.find(&pin, id.objectid, lookups)?;
        inode.use_now();
        Some(inode)
    }

    /// Gives `count` lookup references back; the inode, if those were the last and it is in
    /// memory. One that is not has a name, or had not left it.
    pub(crate) fn forget(&self, id: InodeId, count: u64) -> Option<Ref<Inode>> {
        let pin = self.epochs.pin();
        let tree = self.trees.get(&pin, id.tree.0)?;
        let unclaimed = tree.inodes.give_back(&pin, id.objectid, count)?;
        self.wake(tree);
        Some(unclaimed)
    }

    /// Whether somebody has lookup references on it, be it in memory or not.
    pub(crate) fn is_claimed(&self, id: InodeId) -> bool {
        let pin = self.epochs.pin();
        let tree = self.trees.get(&pin, id.tree.0);
        tree.is_some_and(|tree| tree.inodes.claims(&pin, id.objectid) != 0)
    }

    /// A place for an inode that is about to be made. `None`: one of an earlier mount, which is gone from the volume, has
    /// the number in memory still.
    pub(crate) fn reserve(&self, id: InodeId) -> Result<Option<Reserved<'_>>> {
        let ino = ino::number(id)?;
        let tree = self.tree(&self.epochs.pin(), id.tree)?;
        // Milliseconds that a look for what is not there may take.
        let mut patience = 10_000;
        loop {
            match tree.inodes.reserve(id.objectid) {
                Ok(place) => return Ok(Some(Reserved { id, ino, place, table: self, tree })),
                Err(Reserve::NoMemory) => return Err(Errno::ENOMEM.into()),
                // Who asks for a number before there is such an inode (by a handle of an earlier mount, say) is about to
                // hear that there is none.
                Err(Reserve::InUse) if patience > 0 && !self.is_loaded(id) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    patience -= 1;
                }
                Err(Reserve::InUse) if self.is_erased(id) => return Ok(None),
                Err(Reserve::InUse) => panic!("inode number {id:?} was in use"),
            }
        }
    }

    fn is_erased(&self, id: InodeId) -> bool {
        self.find(id, 0).is_some_and(|inode| inode.state.read().erased)
    }

    fn is_loaded(&self, id: InodeId) -> bool {
        self.find(id, 0).is_some_and(|inode| inode.state.read().loaded)
    }

    /// Drops the inode if nobody else refers to it; who writes it back or changes it does.
    pub(crate) fn evict(&self, inode: Ref<Inode>) -> bool {
        let (id, pin) = (inode.id, self.epochs.pin());
        let tree = self.trees.get(&pin, id.tree.0);
        tree.is_some_and(|tree| tree.inodes.evict(&pin, id.objectid, &inode, false))
    }

    fn each(&self, tree: &Tree, all: &mut Vec<Ref<Inode>>) {
        tree.inodes.each(&self.epochs.pin(), &mut |_, inode| all.push(inode));
    }

    /// Every inode in memory.
    pub(crate) fn all(&self) -> Vec<Ref<Inode>> {
        let mut all = Vec::new();
        let mut from = Some(0);
        while let Some(tree) = from.and_then(|from| self.first_from(from)) {
            self.each(tree, &mut all);
            from = tree.number.checked_add(1);
        }
        all
    }

    /// Every inode of `tree` in memory.
    pub(crate) fn of_tree(&self, tree: TreeId) -> Vec<Ref<Inode>> {
        let mut all = Vec::new();
        let tree = self.trees.get(&self.epochs.pin(), tree.0);
        tree.into_iter().for_each(|tree| self.each(tree, &mut all));
        all
    }

    fn first_from(&self, number: u64) -> Option<&Tree> {
        self.trees.next(&self.epochs.pin(), number).map(|(_, tree)| tree)
    }

    /// Drops every inode that nobody refers to: those that were in use when their last
    /// reference went. How many subvolumes it looked at.
    pub(crate) fn evict_idle(&self) -> u64 {
        let (awake, mut looked) = (self.awake.lock().numbers.len(), 0);
        while looked < awake
            && let Some(tree) = self.take_awake()
        {
            looked += 1;
            if tree.inodes.evict_idle(0, usize::MAX, false, |_, seal| seal()).unclaimed > 0 {
                self.wake(tree);
            }
        }
        looked as u64
    }

    /// The next that may have something to evict; who wakes it from now on puts it in the queue again.
    fn take_awake(&self) -> Option<&Tree> {
        let mut queue = self.awake.lock();
        let number = queue.numbers.pop_front()?;
        let tree = self.trees.get(&self.epochs.pin(), number).expect("a tree stays");
        tree.is_awake.store(false, Ordering::Relaxed);
        drop(queue);
        fence(Ordering::SeqCst);
        Some(tree)
    }

    /// Looks at `most` inodes of a subvolume, going round: who was not used since the last time
    /// and can be loaded again leaves memory, whether callers hold its number or not.
    pub(crate) fn make_room(&self, most: usize) {
        let (tree, from) = *self.hand.lock();
        let Some(found) = self.first_from(tree) else {
            *self.hand.lock() = (0, 0);
            return;
        };
        let at = found.number;
        let from = if at == tree { from } else { 0 };
        let leaves =
            |inode: &Inode, seal: &dyn Fn() -> bool| !inode.was_used() && inode.leaves_by(seal);
        let seen = found.inodes.evict_idle(from, most, true, leaves);
        *self.hand.lock() = seen.next.map_or((at + 1, 0), |next| (at, next));
    }
}
