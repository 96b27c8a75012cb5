//! Inodes without a name: kept while somebody refers to them, erased then, and erased at
//! the next mount if a crash came between.
//!
//! Invariant: an inode with link count 0 is an orphan (`inode/orphans.rs`) from the operation that
//! took its last name until the operation that removes its INODE_ITEM: each commit in between has
//! an ORPHAN_ITEM for it in its subvolume.
//! Erasing goes in steps, each of them one operation that leaves a consistent inode. Who lets go of one takes
//! the first steps, which are enough for most; what is left a thread does in the background (`eraser`), if
//! there is one.

mod data_reloc;
mod eraser;
mod next;
#[cfg(test)]
mod tests;

pub(crate) use eraser::Eraser;

use crate::erasures::{Erasure, Erasures, Steps};
use crate::error::IntoFs;
use crate::extents::drop_range;
use crate::ino::InodeId;
use crate::inode::{Inode, Inodes, Orphan, State, delete_orphan_item, put_inode};
use crate::reserve::cost::{self, SMALL_STEP};
use crate::reserve::{Reservation, Reservations};
use crate::reserver::Reserver;
use crate::verity::drop_some;
use btrfs_disk::ids::ORPHAN_OBJECTID;
use btrfs_disk::items::{InodeItem, inode_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_txn::{Core, Op};
use inode_index::Ref;
use next::Next;
use std::sync::Arc;
use vfs::{Damage, Errno, FsError, Result};

/// Items that one step of erasing removes at most.
/// Chosen, not measured.
const STEP: usize = 512;
/// Items of the first step: enough for most inodes, and even a full volume has the room
/// that this asks for.
const FIRST_STEP: usize = SMALL_STEP as usize;
/// Each step is so many times as large as the one before, up to `STEP`.
/// Chosen, not measured.
const STEP_GROWS: usize = 4;
/// What is left behind so many steps, that is, 40 items, goes on in the background.
/// Chosen, not measured.
const AT_ONCE: usize = 2;

/// What there is for a step, and how many items it may remove.
type Room<'r> = Result<(Reservation<'r>, u64)>;

pub(crate) struct Orphans {
    core: Arc<Core>,
    inodes: Arc<Inodes>,
    reservations: Arc<Reservations>,
    reserver: Arc<Reserver>,
    pub(crate) erasures: Arc<Erasures>,
}

impl Orphans {
    pub(crate) fn new(
        core: &Arc<Core>,
        inodes: &Arc<Inodes>,
        reservations: &Arc<Reservations>,
        reserver: &Arc<Reserver>,
        erasures: Arc<Erasures>,
    ) -> Orphans {
        let (core, inodes) = (core.clone(), inodes.clone());
        let (reservations, reserver) = (reservations.clone(), reserver.clone());
        Orphans { core, inodes, reservations, reserver, erasures }
    }

    /// Gives `count` lookup references back; erases or evicts what nobody needs.
    pub(crate) fn forget(&self, id: InodeId, count: u64) {
        if let Some(inode) = self.inodes.table().forget(id, count) {
            self.release(inode);
        }
    }

    /// Called when an inode may have become unused.
    pub(crate) fn release(&self, inode: Ref<Inode>) {
        if Ref::claims(&inode) != 0 {
            return;
        }
        if !inode.is_unnamed() || self.core.health.writable().is_err() {
            self.inodes.table().evict(inode);
            return;
        }
        let mut erasure = Erasure::new(inode, FIRST_STEP);
        if self.waits_to_be_writable() {
            return self.erase_when_writable(erasure);
        }
        let erased = match self.erasures.are_served() {
            // Who lets go of one waits for nothing.
            true => {
                self.steps(&mut erasure, AT_ONCE, |most| self.reserver.hold_removal_of_items(most))
            }
            false => self
                .steps(&mut erasure, usize::MAX, |most| self.reserver.reserve_removal_step(most)),
        };
        self.settle(erasure, erased);
    }

    /// The mount is read-only for a while.
    fn waits_to_be_writable(&self) -> bool {
        let health = &self.core.health;
        health.writable().is_ok() && health.changeable().is_err()
    }

    /// Who lets changes in again may have done so before this.
    fn erase_when_writable(&self, erasure: Erasure) {
        match self.erasures.are_served() {
            // The thread looks by itself whether it may.
            true => self.erasures.add(erasure),
            false => self.erasures.set_aside(erasure),
        }
    }

    /// So many steps at most; true when nothing is left.
    fn steps<'r>(
        &'r self,
        erasure: &mut Erasure,
        most: usize,
        room: impl Fn(u64) -> Room<'r>,
    ) -> Result<bool> {
        for _ in 0..most {
            if self.step(erasure, &room)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What becomes of an inode of which so much is erased.
    pub(crate) fn settle(&self, erasure: Erasure, erased: Result<bool>) {
        let served = self.erasures.are_served();
        match erased {
            Ok(false) => return self.erasures.add(erasure),
            Err(error) if error.errno() == libc::ENOSPC => {
                return match served && erasure.looks_for_room {
                    true => self.erasures.add(erasure),
                    false => self.erasures.set_aside(erasure),
                };
            }
            // Made read-only for a while, which may be over by now: what is so for good tells it by itself.
            Err(FsError::ReadOnly(_)) if self.core.health.writable().is_ok() => {
                return self.erase_when_writable(erasure);
            }
            // The ORPHAN_ITEM stays; the next mount tries again.
            Err(error) => {
                let inode = erasure.inode.id.objectid;
                tracing::warn!(inode, %error, "erasing an unnamed inode failed");
            }
            Ok(true) => {}
        }
        self.inodes.table().evict(erasure.inode);
    }

    /// After a commit: erases what found no room to be erased, or sees to it that it is. It looks for none:
    /// who called for the commit may be looking for the last room himself. Where some content found no room
    /// (not `all_landed`) that goes on alone which waited for a commit.
    pub(crate) fn retry(&self, all_landed: bool) {
        if self.core.health.changeable().is_err() {
            return;
        }
        if self.erasures.are_served() {
            return self.erasures.go_on(all_landed);
        }
        if !all_landed {
            return;
        }
        for mut erasure in self.erasures.take_set_aside() {
            let hold = |most| self.reserver.hold_removal_of_items(most);
            let erased = self.steps(&mut erasure, usize::MAX, hold);
            self.settle(erasure, erased);
        }
    }

    /// Removes all items of an inode without names. Reserves before it locks: a reservation
    /// may wait for a commit, which locks inodes.
    pub(crate) fn erase(&self, inode: &Ref<Inode>) -> Result<()> {
        self.erase_whoever_claims(inode.clone(), usize::MAX).1.map(drop)
    }

    /// So many steps at most, of one that nobody can come to any more.
    fn erase_whoever_claims(&self, inode: Ref<Inode>, most: usize) -> (Erasure, Result<bool>) {
        let mut erasure = Erasure::whoever_claims(inode, FIRST_STEP);
        let erased =
            self.steps(&mut erasure, most, |most| self.reserver.reserve_removal_step(most));
        (erasure, erased)
    }

    /// In the background; true when nothing is left.
    pub(crate) fn step_behind(&self, erasure: &mut Erasure) -> Result<bool> {
        match erasure.looks_for_room {
            true => self.step(erasure, &|most| self.reserver.reserve_removal_step(most)),
            false => self.step(erasure, &|most| self.reserver.hold_removal_of_items(most)),
        }
    }

    /// One step; true when nothing is left. Nothing, if somebody needs it by the time that there is room: who
    /// finds a name just before that goes has it behind it. Behind the first step nobody comes to it any more.
    fn step<'r>(&'r self, erasure: &mut Erasure, room: &impl Fn(u64) -> Room<'r>) -> Result<bool> {
        let (_room, room_for) = room(erasure.steps.most as u64)?;
        let step = room_for as usize;
        let _still = self.core.addresses.hold_still();
        let inode = &erasure.inode;
        let Some(mut state) = inode.write_to_erase() else { return Ok(true) };
        if !state.erasing && !erasure.whoever_claims_it && Ref::claims(inode) != 0 {
            // Who gives it back erases it.
            return Ok(true);
        }
        // Before the operation begins: a log waits for those that have, and nobody else changes these items.
        let (from, sector) = (erasure.steps.from, self.core.sector());
        let next = next::next(&self.core.view(), inode.id, (from, step), sector);
        let op = self.core.begin();
        // Who makes the mount read-only waits for operations behind saying so. Who closes it does, too, and then
        // erases himself, which nobody else does for him: his are those that nobody can come to.
        if !erasure.whoever_claims_it || self.core.health.stays_open().is_ok() {
            self.core.health.changeable().fs()?;
        }
        match self.erase_step(&op, inode.id, &mut state, next?)? {
            None => state.erased = true,
            Some(from) => {
                state.erasing = true;
                erasure.steps = Steps { from, most: (step * STEP_GROWS).min(STEP) };
            }
        }
        Ok(state.erased)
    }

    /// One operation's worth; answers where the next one begins, if anything is left.
    fn erase_step(
        &self,
        op: &Op<'_>,
        id: InodeId,
        state: &mut State,
        Next { keys, extents, from }: Next,
    ) -> Result<Option<Key>> {
        keys.iter().try_for_each(|key| check_unnamed(id, key.kind))?;
        if let Some(dirty) = state.dirty.take() {
            self.reservations.forget_dirty(dirty.bytes());
        }
        op.run(|| {
            op.edit(id, |o| {
                for key in keys.iter().filter(|k| k.kind != kind::EXTENT_DATA) {
                    o.delete(key.kind, key.offset);
                }
            });
            drop_range(op, id, state, &extents, 0, u64::MAX)
        })?;
        if from.is_some() {
            put_inode(op, id, state);
            return Ok(from);
        }
        op.delete(id, kind::INODE_ITEM, 0);
        self.inodes.orphans().erased(op, id, state);
        Ok(None)
    }

    /// At mount: finishes what a crash left.
    pub(crate) fn clean_all(&self) -> Result<u64> {
        let roots = self.core.roots();
        // Of one that is being deleted all goes.
        let alive =
            roots.trees.iter().filter(|(t, root)| t.is_subvolume() && !root.item.is_deleted());
        // That one first: it may have most, and needs least.
        let trees: Vec<TreeId> =
            [TreeId::DATA_RELOC].into_iter().chain(alive.map(|(tree, _)| tree)).collect();
        let mut erased = 0;
        for tree in trees {
            let cleaned = match tree {
                TreeId::DATA_RELOC => data_reloc::free(&self.core, &self.reserver),
                _ => self.clean_tree(tree),
            };
            match cleaned {
                Ok(count) => erased += count,
                // They stay: the rest of the volume can be used all the same.
                Err(error) if self.may_stay(&error) => {
                    tracing::warn!(%tree, %error, "orphans cannot be read");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(erased)
    }

    /// Of one subvolume. A snapshot may be others' to work in by then: what they have begun in it is theirs.
    pub(crate) fn clean_tree(&self, tree: TreeId) -> Result<u64> {
        let mut erased = 0;
        for objectid in list(&self.core, tree)? {
            match self.clean_one(InodeId::new(tree, objectid)) {
                // Its last claimant let go of it meanwhile, or somebody deletes the subvolume.
                Err(FsError::Posix(Errno::ENOENT | Errno::ESTALE)) => {}
                cleaned => erased += u64::from(cleaned?),
            }
        }
        Ok(erased)
    }

    /// Erases the inode if it has no name. An ORPHAN_ITEM of nothing is just removed.
    fn clean_one(&self, id: InodeId) -> Result<bool> {
        let key = Key::new(id.objectid, kind::INODE_ITEM, 0);
        let item = self.core.view().get(id.tree, &key).fs()?;
        let item = item.map(|bytes| InodeItem::read(&bytes)).transpose().fs()?;
        let Some(item) = item else {
            let _room = self.reserver.reserve_removal(cost::remove_orphan_item())?;
            delete_orphan_item(&self.core.begin(), id);
            return Ok(false);
        };
        let inode = self.inodes.by_id(id, 0)?;
        if item.nlink > 0 {
            let cleaned = self.clean_named(&inode);
            self.inodes.table().evict(inode);
            return cleaned.map(|()| false);
        }
        if !take_over(&inode)? {
            self.inodes.table().evict(inode);
            return Ok(false);
        }
        self.erase_left(inode)
    }

    /// Of one that nobody can come to.
    fn erase_left(&self, inode: Ref<Inode>) -> Result<bool> {
        let id = inode.id;
        let most = if self.erasures.are_served() { AT_ONCE } else { usize::MAX };
        let (erasure, erased) = self.erase_whoever_claims(inode, most);
        let erased = match erased {
            // Of a large one the rest goes in the background.
            Ok(false) => {
                self.erasures.add(erasure);
                return Ok(true);
            }
            Err(error) if self.may_stay(&error) => {
                tracing::warn!(inode = id.objectid, %error, "an inode without links stays");
                false
            }
            other => other?,
        };
        self.inodes.table().evict(erasure.inode);
        Ok(erased)
    }

    /// An ORPHAN_ITEM of a named inode (an interrupted truncation of older kernels, or a verity tree that was not
    /// completed, which goes) is just removed.
    fn clean_named(&self, inode: &Ref<Inode>) -> Result<()> {
        let left_behind = || inode.write().map(|state| (!is_ours(&state)).then_some(state));
        let is_whole = |state: &State| state.item.flags & inode_flags::RO_VERITY != 0;
        self.drop_verity(inode.id, || Ok(left_behind()?.filter(|state| !is_whole(state))))?;
        let _room = self.reserver.reserve_removal(cost::remove_orphan_item())?;
        if let Some(_locked) = left_behind()? {
            delete_orphan_item(&self.core.begin(), inode.id);
        }
        Ok(())
    }

    /// The rest of the volume can be used all the same.
    fn may_stay(&self, error: &FsError) -> bool {
        error.is_of_medium() && self.core.health.writable().is_ok()
    }

    /// A verity tree that was not completed goes, in steps; `lock` keeps others away in each. `None`: it is to stay.
    pub(crate) fn drop_verity<L>(
        &self,
        id: InodeId,
        lock: impl Fn() -> Result<Option<L>>,
    ) -> Result<()> {
        loop {
            let (_room, most) = self.reserver.reserve_removal_of_items(STEP as u64)?;
            let Some(_locked) = lock()? else { return Ok(()) };
            if drop_some(&self.core.begin(), id, most as usize)? {
                return Ok(());
            }
        }
    }
}

/// False: it has a name by now, or this mount knows what becomes of it.
fn take_over(inode: &Inode) -> Result<bool> {
    let mut state = inode.write()?;
    let left = state.item.nlink == 0 && !is_ours(&state);
    if left {
        state.orphan = Orphan::Item;
    }
    Ok(left)
}

/// This mount keeps an ORPHAN_ITEM for it itself, for as long as it needs one.
fn is_ours(state: &State) -> bool {
    state.orphan.is_one() || state.making_verity
}

/// The numbers that a tree has ORPHAN_ITEMs for.
fn list(core: &Core, tree: TreeId) -> Result<Vec<u64>> {
    let view = core.view();
    let mut scan = view.scan(tree, Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, 0));
    let mut found = Vec::new();
    while let Some((key, _)) = scan.next().fs()? {
        if key.kind == kind::ORPHAN_ITEM {
            found.push(key.offset);
        }
    }
    Ok(found)
}

/// The operation that takes the last name takes its reference too, and directories are
/// empty by then. Where the link count says otherwise it is wrong, and nothing is erased.
fn check_unnamed(id: InodeId, kind: u8) -> Result<()> {
    match kind {
        kind::INODE_REF | kind::INODE_EXTREF | kind::DIR_ITEM | kind::DIR_INDEX => {
            let what = format!("inode {} of tree {} has no links but names", id.objectid, id.tree);
            Err(Damage::new(what).into())
        }
        _ => Ok(()),
    }
}
