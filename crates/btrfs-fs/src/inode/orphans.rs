//! Which inodes have no name: each is in a slot of a table without locks (crate `orphans`), and gets
//! an ORPHAN_ITEM only if it is still there when its epoch ends.
//!
//! Invariants:
//! * what a commit will have to put or delete for the table counts in the delta of its epoch from
//!   the operation on that makes it so ([`ItemDelta::owe`]), and is paid when the epoch is sealed;
//! * a number that no slot can have, or one for which there is no memory, has its item in the
//!   delta at once;
//! * so has what is made in steps (a verified file), whether it has a name or not: this item stays when the inode
//!   gets a name or loses it, until the steps are done or undone. Where undoing fails it stays until the inode
//!   is erased, or the next mount undoes it.
//!
//! What it does not know: when an inode loses its name, and when it is erased.
//!
//! [`ItemDelta::owe`]: btrfs_txn::delta::ItemDelta::owe

use super::{Orphan, State};
use crate::ino::InodeId;
use btrfs_disk::ids::ORPHAN_OBJECTID;
use btrfs_disk::key::kind::ORPHAN_ITEM;
use btrfs_disk::{Generation, Key, TreeId};
use btrfs_txn::delta::{Base, Delta, ObjectEdit};
use btrfs_txn::{Op, View};
use locks::{Mutex, Rank};
use orphans::{Change, Orphans, Release};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bits of a slot's number for the object id; 21 are left for the tree.
const OBJECT_BITS: u32 = 40;

pub(crate) struct OrphanTable {
    slots: Option<Orphans>,
    /// Those whose item was put by an operation.
    items: Mutex<BTreeMap<InodeId, Epochs>>,
    /// How many of those are `in_steps`: none, mostly, and who erases an inode need not look.
    in_steps: AtomicUsize,
}

/// In which epoch an item was put, and in which a later one it went, if it did.
struct Epochs {
    put: Generation,
    gone: Option<Generation>,
    /// It stands for what is made of the inode in steps, or does so as well.
    in_steps: bool,
}

impl Epochs {
    fn has_item(&self, epoch: Generation) -> bool {
        self.put <= epoch && self.gone.is_none_or(|gone| gone > epoch)
    }
}

fn orphans_of(tree: TreeId) -> InodeId {
    InodeId::new(tree, ORPHAN_OBJECTID)
}

fn number(id: InodeId) -> Option<u64> {
    let fits = id.objectid >> OBJECT_BITS == 0 && id.tree.0 >> (61 - OBJECT_BITS) == 0;
    fits.then_some(id.tree.0 << OBJECT_BITS | id.objectid)
}

fn id_of(number: u64) -> InodeId {
    InodeId::new(TreeId(number >> OBJECT_BITS), number & ((1 << OBJECT_BITS) - 1))
}

/// The item goes, at mount: the table knows nothing of it.
pub(crate) fn delete_item(op: &Op<'_>, id: InodeId) {
    op.delete(orphans_of(id.tree), ORPHAN_ITEM, id.objectid);
}

impl OrphanTable {
    pub(super) fn new() -> OrphanTable {
        let (items, in_steps) = (Mutex::new(Rank::Leaf, BTreeMap::new()), AtomicUsize::new(0));
        OrphanTable { slots: Orphans::new().ok(), items, in_steps }
    }

    fn put_item(&self, op: &Op<'_>, id: InodeId) {
        let (put, gone, in_steps) = (op.generation(), None, false);
        self.items.lock().entry(id).or_insert(Epochs { put, gone, in_steps }).gone = None;
        op.put(orphans_of(id.tree), ORPHAN_ITEM, id.objectid, Box::new([]));
    }

    fn delete_item(&self, op: &Op<'_>, id: InodeId) {
        self.set_in_steps(id, false);
        let mut items = self.items.lock();
        match items.get_mut(&id) {
            Some(epochs) if epochs.put < op.generation() => epochs.gone = Some(op.generation()),
            _ => _ = items.remove(&id),
        }
        drop(items);
        delete_item(op, id);
    }

    fn is_in_steps(&self, id: InodeId) -> bool {
        let all = || self.items.lock();
        // What is so of an inode is said under its lock.
        self.in_steps.load(Ordering::Relaxed) > 0 && all().get(&id).is_some_and(|e| e.in_steps)
    }

    fn set_in_steps(&self, id: InodeId, to: bool) {
        let mut items = self.items.lock();
        let Some(epochs) = items.get_mut(&id).filter(|epochs| epochs.in_steps != to) else {
            return;
        };
        epochs.in_steps = to;
        match to {
            true => self.in_steps.fetch_add(1, Ordering::Relaxed),
            false => self.in_steps.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// What is made of the inode from now on is to be cleaned up after a crash.
    pub(crate) fn begin_steps(&self, op: &Op<'_>, id: InodeId) {
        self.put_item(op, id);
        self.set_in_steps(id, true);
    }

    /// It is made, or gone again: the item stays only for who has no name.
    pub(crate) fn end_steps(&self, op: &Op<'_>, id: InodeId, state: &mut State) {
        match state.orphan {
            Orphan::No => self.delete_item(op, id),
            Orphan::Item => self.set_in_steps(id, false),
            // Who looks for the slot's finds the same item: from now on it is known by that alone.
            Orphan::Slot(_) => {
                self.release_slot(op, id, state);
                self.set_in_steps(id, false);
                self.put_item(op, id);
                state.orphan = Orphan::Item;
            }
        }
    }

    /// The inode lost its last name, or never had one.
    pub(crate) fn mark(&self, op: &Op<'_>, id: InodeId, state: &mut State) {
        let claim = |table: &Orphans| table.claim(number(id)?, op.generation().0).ok();
        state.orphan = match self.slots.as_ref().and_then(claim) {
            Some(slot) => {
                op.owe_item(id.tree);
                Orphan::Slot(slot)
            }
            None => {
                self.put_item(op, id);
                Orphan::Item
            }
        };
    }

    /// It got a name (`linkat` of an `O_TMPFILE`).
    pub(crate) fn named(&self, op: &Op<'_>, id: InodeId, state: &mut State) {
        match state.orphan {
            Orphan::Item if self.is_in_steps(id) => state.orphan = Orphan::No,
            Orphan::Item => self.erased(op, id, state),
            Orphan::Slot(_) | Orphan::No => self.release_slot(op, id, state),
        }
    }

    /// It is erased, with all that was being made of it.
    pub(crate) fn erased(&self, op: &Op<'_>, id: InodeId, state: &mut State) {
        let has_item = matches!(state.orphan, Orphan::Item) || self.is_in_steps(id);
        self.release_slot(op, id, state);
        if has_item {
            self.delete_item(op, id);
        }
    }

    /// It is no orphan any more, as far as `state` says; an item stays.
    fn release_slot(&self, op: &Op<'_>, id: InodeId, state: &mut State) {
        if let Orphan::Slot(slot) = std::mem::take(&mut state.orphan) {
            let table = self.slots.as_ref().expect("it has the slot");
            match table.release(slot, op.generation().0) {
                Release::Forgotten => op.owe_no_item(),
                Release::ToTell => op.owe_item(id.tree),
            }
        }
    }

    /// Nobody is at work in the epoch of `sealed` any more: who is an orphan still gets an item,
    /// who had one and is none any more loses it. `view` is of that time.
    pub(crate) fn hand_over(&self, sealed: &Delta, view: &View<'_>) {
        let (mut here, mut gone) = (Vec::new(), Vec::new());
        if let Some(table) = &self.slots {
            table.hand_over(sealed.generation.0, |change| match change {
                Change::Put(number) => here.push(id_of(number)),
                Change::Remove(number) => gone.push(id_of(number)),
            });
        }
        let told = here.len() + gone.len();
        // One whose item an operation has put since then keeps it. What else is put was so by an epoch that found no
        // room, and that this one has taken over.
        let mut items = self.items.lock();
        gone.retain(|id| !items.get(id).is_some_and(|epochs| epochs.has_item(sealed.generation)));
        items.retain(|_, epochs| epochs.gone.is_none_or(|gone| gone > sealed.generation));
        drop(items);
        // First who went: one that became an orphan again since then is among the others.
        each_tree(view, gone, |tree, ids| {
            edit(sealed, tree, |o| ids.iter().for_each(|id| o.delete(ORPHAN_ITEM, id.objectid)));
        });
        let put = |o: &mut ObjectEdit<'_>, id: &InodeId| {
            o.put(ORPHAN_ITEM, id.objectid, Box::new([]), Base::Possible);
        };
        each_tree(view, here, |tree, ids| {
            edit(sealed, tree, |o| ids.iter().for_each(|id| put(o, id)));
        });
        sealed.items.pay(told as u64);
    }
}

/// False where the end of the tree is lost: after a crash the inodes would stay without a name, which is
/// less than the commit is worth.
fn has_place(view: &View<'_>, tree: TreeId, ids: &[InodeId]) -> bool {
    let key = |id: &InodeId| Key::new(ORPHAN_OBJECTID, ORPHAN_ITEM, id.objectid);
    let mut ends = [ids.first(), ids.last()].into_iter().flatten();
    let look = |id| view.get(tree, &key(id)).map(drop);
    match ends.try_for_each(look) {
        Ok(()) => true,
        Err(error) => {
            let orphans = ids.len();
            tracing::warn!(%tree, orphans, %error, "inodes without a name are not recorded");
            false
        }
    }
}

fn edit(sealed: &Delta, tree: TreeId, edit: impl FnOnce(&mut ObjectEdit<'_>)) {
    sealed.items.edit_in_run(tree, ORPHAN_OBJECTID, None, edit);
}

/// Gives `work` the inodes of each tree that has a place for their items.
fn each_tree(view: &View<'_>, mut ids: Vec<InodeId>, mut work: impl FnMut(TreeId, &[InodeId])) {
    ids.sort_unstable();
    let trees = ids.chunk_by(|a, b| a.tree == b.tree);
    let with_place = trees.filter(|ids| has_place(view, ids[0].tree, ids));
    with_place.for_each(|ids| work(ids[0].tree, ids));
}
