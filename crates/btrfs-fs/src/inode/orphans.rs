//! Which inodes have no name: each is in a slot of a table without locks (crate `orphans`), and gets
//! an ORPHAN_ITEM only if it is still there when its epoch ends.
//!
//! Invariants:
//! * what a commit will have to put or delete for the table counts in the delta of its epoch from
//!   the operation on that makes it so ([`ItemDelta::owe`]), and is paid when the epoch is sealed;
//! * a number that no slot can have, or one for which there is no memory, has its item in the
//!   delta at once.
//!
//! What it does not know: when an inode loses its name, and when it is erased.
//!
//! [`ItemDelta::owe`]: btrfs_txn::delta::ItemDelta::owe

use super::{Orphan, State};
use crate::ino::InodeId;
use btrfs_disk::ids::ORPHAN_OBJECTID;
use btrfs_disk::key::kind::ORPHAN_ITEM;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::delta::{Base, Delta, ObjectEdit};
use btrfs_txn::{Op, View};
use locks::{Mutex, Rank};
use orphans::{Change, Orphans, Release};
use std::collections::BTreeSet;

/// Bits of a slot's number for the object id; 21 are left for the tree.
const OBJECT_BITS: u32 = 40;

pub(crate) struct OrphanTable {
    slots: Option<Orphans>,
    /// Those that could have a slot, and whose item was put for want of memory instead.
    without: Mutex<BTreeSet<InodeId>>,
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

/// The item goes, whoever was in the table.
pub(crate) fn delete_item(op: &Op<'_>, id: InodeId) {
    op.delete(orphans_of(id.tree), ORPHAN_ITEM, id.objectid);
}

/// What is being made of the inode is to be cleaned up after a crash.
pub(crate) fn put_item(op: &Op<'_>, id: InodeId) {
    op.put(orphans_of(id.tree), ORPHAN_ITEM, id.objectid, Box::new([]));
}

impl OrphanTable {
    pub(super) fn new() -> OrphanTable {
        OrphanTable { slots: Orphans::new().ok(), without: Mutex::new(Rank::Leaf, BTreeSet::new()) }
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
                self.without.lock().insert(id);
                put_item(op, id);
                Orphan::Item
            }
        };
    }

    /// It is gone, or got a name again (`linkat` of an `O_TMPFILE`).
    pub(crate) fn unmark(&self, op: &Op<'_>, id: InodeId, state: &mut State) {
        match std::mem::take(&mut state.orphan) {
            Orphan::No => {}
            Orphan::Item => {
                self.without.lock().remove(&id);
                delete_item(op, id);
            }
            Orphan::Slot(slot) => {
                let table = self.slots.as_ref().expect("it has the slot");
                match table.release(slot, op.generation().0) {
                    Release::Forgotten => op.owe_no_item(),
                    Release::ToTell => op.owe_item(id.tree),
                }
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
        // One that found no memory in the table since then has put its item already. What is put for others was so by
        // an epoch that found no room, and that this one has taken over.
        let without = self.without.lock();
        gone.retain(|id| !without.contains(id));
        drop(without);
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
