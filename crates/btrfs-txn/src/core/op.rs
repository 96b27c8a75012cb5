//! One operation inside an epoch: what it puts is committed wholly or not at all.
//!
//! Invariants: an operation inside never waits for I/O or for a lock that is held over some, so
//! that sealing an epoch is short. It reads before it enters. One that panics poisons the volume before it leaves, so
//! that no commit has half of it.
//!
//! What it does not know: what its items mean.

use super::Core;
use crate::budget::{self, Changes};
use crate::delta::{ActionCost, Active, Base, Delta, Level, ObjectEdit, Pending, TreeAction};
use crate::sync::relax;
use crate::{ObjectId, Place, View};
use btrfs_disk::{Corrupt, Error, Generation, Logical, Result, TreeId};
use btrfs_space::Extent;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Places that a run of keys is, see [`Op::run`].
pub const RUN_PLACES: u32 = 3;

/// One operation inside an epoch. What it puts is committed wholly or not at all.
///
/// Its `view` has the operation's own delta on top, so it reads what it wrote.
pub struct Op<'e> {
    /// Where it runs.
    pub core: &'e Core,
    /// What it reads: its own changes, too.
    pub view: View<'e>,
    active: Option<Active>,
    /// An item was put or deleted; see `Core::change`.
    changed: Cell<bool>,
    /// Within `run`: places that the changes may still count as.
    run: Cell<u32>,
    in_run: Cell<bool>,
    changes: Cell<Changes>,
}

impl<'e> Op<'e> {
    pub(super) fn enter(core: &'e Core) -> Op<'e> {
        let mut times = 0;
        loop {
            let view = core.view();
            if let Some(active) = view.layers.current.gate.enter() {
                core.stats.operations.add(1);
                let (changed, in_run) = (Cell::new(false), Cell::new(false));
                let (run, changes) = Default::default();
                return Op { core, view, active: Some(active), changed, run, in_run, changes };
            }
            // Sealed under our feet: the next epoch is being published, or a log write looks
            // at this one.
            times += 1;
            relax(times);
        }
    }

    /// An item was put or deleted.
    pub(super) fn has_changed(&self) -> bool {
        self.changed.get()
    }

    fn delta(&self) -> &Delta {
        &self.view.layers.current
    }

    /// Nothing else has been changed since the last commit.
    pub fn is_first(&self) -> bool {
        self.delta().is_empty()
    }

    /// The generation of its epoch, which stamps what it makes.
    pub fn generation(&self) -> Generation {
        self.delta().generation
    }

    /// Several changes to one object's items, under one hold of its shard's lock: `edit` may
    /// not enter the delta again.
    pub fn edit<T>(&self, id: ObjectId, edit: impl FnOnce(&mut ObjectEdit<'_>) -> T) -> T {
        self.changed.set(true);
        let run = self.in_run.get().then_some(&self.run);
        let items = &self.delta().items;
        let (result, changes) = items.edit_in_run(id.tree, id.objectid, run, edit);
        let before = self.changes.get();
        self.changes.set(Changes {
            places: before.places + changes.places,
            bytes: before.bytes + changes.bytes,
        });
        self.core.injection.passes(Place::Edited);
        result
    }

    /// What `work` puts and deletes is one run of keys: no other key stays between them. So it
    /// is few places in the tree, however many keys there are: where the run begins, where
    /// it ends, and what is put between.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.run.set(RUN_PLACES);
        let within = self.in_run.replace(true);
        assert!(!within, "runs do not nest");
        let result = work();
        self.in_run.set(false);
        result
    }

    /// Puts an item, over what any layer has under its key.
    pub fn put(&self, id: ObjectId, kind: u8, offset: u64, value: Box<[u8]>) {
        self.edit(id, |o| o.put(kind, offset, value, Base::Possible));
    }

    /// As `put`, for a key that is in no layer.
    pub fn put_new(&self, id: ObjectId, kind: u8, offset: u64, value: Box<[u8]>) {
        self.edit(id, |o| o.put(kind, offset, value, Base::Absent));
    }

    /// Takes an item away, from whichever layer has it.
    pub fn delete(&self, id: ObjectId, kind: u8, offset: u64) {
        self.edit(id, |o| o.delete(kind, offset));
    }

    /// The commit of this epoch puts or deletes a key more: see [`crate::delta::ItemDelta::owe`].
    pub fn owe_item(&self, tree: TreeId) {
        self.changed.set(true);
        self.delta().items.owe(tree);
        let before = self.changes.get();
        self.changes.set(Changes { places: before.places + 1, ..before });
    }

    /// It need not, after all: whoever was owed an item in this epoch is gone.
    pub fn owe_no_item(&self) {
        self.delta().items.pay(1);
    }

    /// The commit of this epoch does this with a tree; what that changes beside the operation's
    /// items counts for the epoch from now on.
    pub fn act(&self, action: TreeAction, cost: ActionCost) {
        self.changed.set(true);
        self.delta().trees.add(action, cost);
    }

    /// Changes how often `who` refers to a data extent. On damage the volume is poisoned,
    /// since the operation is half done.
    pub fn reference(
        &self,
        extent: Logical,
        len: u64,
        who: (TreeId, u64, u64),
        count: i64,
    ) -> Result<()> {
        match self.delta().extents.add(extent, len, who, count) {
            Some(true) => self.core.give_back(Extent { logical: extent, len }),
            Some(false) => {}
            None => return Err(self.contradiction(extent, "one extent with two lengths")),
        }
        Ok(())
    }

    /// A newly allocated data extent enters the epoch with its first reference. On damage
    /// as `reference`.
    pub fn allocate(&self, extent: Extent, who: (TreeId, u64, u64)) -> Result<()> {
        match self.delta().extents.allocate(extent.logical, extent.len, who) {
            true => Ok(()),
            false => Err(self.contradiction(extent.logical, "an extent in use is called free")),
        }
    }

    fn contradiction(&self, extent: Logical, what: &str) -> Error {
        let error = Error::Corrupt(Corrupt::new(what.to_owned()).at(extent));
        self.core.health.poison(&error.to_string());
        error
    }

    /// A rename took `child` out of `dir`. What the last commit has of the directory says
    /// so of older ones.
    fn leave(&self, dir: ObjectId, child: ObjectId) {
        let layers = &self.view.layers;
        let sealed = layers.sealed.as_deref();
        if (Pending { current: self.delta(), sealed }).is_born(child.tree, child.objectid) {
            self.edit(dir, |o| o.leave(child.objectid));
        }
    }

    /// A rename took `child` from `from` to `to`.
    pub fn moved(&self, from: ObjectId, to: ObjectId, child: ObjectId) {
        self.leave(from, child);
        let logged = |id: ObjectId| self.delta().items.logged(id.tree, id.objectid);
        if logged(from) == Level::Entries {
            self.delta().items.leaves_log(child.tree, child.objectid);
        }
        if from == to {
            return;
        }
        if logged(child) == Level::Nothing && logged(from) < Level::Entries {
            self.edit(from, |o| o.moved());
        }
        self.edit(child, |o| o.moved());
    }

    /// A subvolume has another name, in whichever tree: who syncs something before the next commit
    /// waits for that, as in the kernel, since a log of what is in it does not say where it is.
    pub fn renamed_subvolume(&self) {
        self.delta().renamed_subvolume.store(true, Ordering::Relaxed);
    }

    /// An inline item of more than one sector goes. A replay by the kernel cannot cut it, so until it is gone from the
    /// trees of the last commit who syncs something waits for the next.
    pub fn lost_long_item(&self) {
        self.delta().lost_long_item.store(true, Ordering::Relaxed);
    }

    /// A directory is gone from `dir`: if it had been moved, so is that.
    pub fn moved_away(&self, dir: ObjectId, gone: ObjectId) {
        if self.delta().items.was_moved(gone.tree, gone.objectid) {
            self.edit(dir, |o| o.moved());
        }
    }

    /// Makes a fresh data extent of `len` bytes longer by `by`. False: it cannot be
    /// (`ExtentDelta::extend`).
    pub fn extend(&self, extent: Logical, len: u64, by: u64, who: (TreeId, u64, u64)) -> bool {
        self.delta().extents.extend(extent, len, by, who)
    }

    /// The commit drops the checksums that the tree has of this range before it puts new ones.
    pub fn replace_sums(&self, at: Logical, len: u64) {
        self.delta().extents.replace_sums(Extent { logical: at, len });
    }

    /// The checksums of the sectors from `at` on, which belong to `extent`.
    pub fn put_sums(&self, extent: Logical, at: Logical, sums: Box<[u8]>) {
        self.delta().extents.put_sums(extent, at, sums);
    }

    /// [start, end) of a file may have become a hole. The tree log must say so: a volume
    /// with NO_HOLES has no item for it.
    pub fn note_gap(&self, id: ObjectId, start: u64, end: u64) {
        if self.core.features.no_holes {
            self.edit(id, |o| o.note_gap(start, end));
        }
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if let Some(active) = self.active.take() {
            if std::thread::panicking() {
                self.core.health.poison("an operation panicked half done");
            }
            self.delta().gate.leave(active);
            budget::charge(self.changes.get());
        }
    }
}
