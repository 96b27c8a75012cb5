//! A block group that is to run empty: what is free in it is kept aside, what is used moves away
//! by commits, and in the end the chunk goes back to the device.
//!
//! Invariants: what is set aside counts as neither free nor reserved, and reservations are
//! covered without it; the group's own sums hold all the time. Nothing of this is on the volume:
//! a mount after a crash finds the group as any other.
//!
//! What it does not know: what lies in the group, and who moves it.

use super::group::Group;
use super::{Kind, Space};
use btrfs_disk::ids::block_group::PROFILE_MASK;
use btrfs_disk::{Error, Logical, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Space {
    /// From now on nothing is allocated in the block group that begins at `start`. False: there is none
    /// (any more). `NoSpace`: what is reserved does not fit without it, and no chunk can be made.
    pub fn set_aside(&self, start: Logical) -> Result<bool> {
        let Some(group) = self.group_at(start).filter(|group| group.start == start.0) else {
            return Ok(false);
        };
        // What lies in it has to find room elsewhere, too.
        self.keep_aside(&group, group.used() as i64)?;
        Ok(true)
    }

    /// `room` bytes are there without it, too.
    pub(super) fn keep_aside(&self, group: &Arc<Group>, room: i64) -> Result<()> {
        let class = &group.class;
        let kind = self.kind_of_group(group);
        let floor = || {
            let kept = match kind {
                Kind::Data => 0,
                _ => class.global_reserve.load(Ordering::Relaxed),
            };
            kept.saturating_add(room)
        };
        // The last one of a kind says which profile new ones get, and cannot go.
        let stays = |other: &Arc<Group>| other.start != group.start && self.is_as_wanted(other);
        if class.is_strict() {
            self.room_as_wanted(group, room)?;
        }
        if !self.list(kind).snapshot().iter().any(stays) {
            self.chunk_in_any_case(kind)?;
        }
        while !group.set_aside(floor()) {
            self.chunk_towards(kind, group.usable() as i64, floor())?;
        }
        Ok(())
    }

    /// What is allocated goes to such groups first.
    pub(super) fn is_as_wanted(&self, group: &Group) -> bool {
        group.flags & PROFILE_MASK == group.class.profile() && !group.is_set_aside()
    }

    /// Groups of the profile that a balance converts to have `room` bytes beside `without`: what is
    /// free of another profile is no place for what is to be converted.
    fn room_as_wanted(&self, without: &Arc<Group>, room: i64) -> Result<()> {
        let (class, kind) = (&without.class, self.kind_of_group(without));
        let free = || -> u64 {
            let groups = self.list(kind).snapshot();
            let wanted = groups.iter().filter(|g| g.start != without.start);
            wanted.filter(|g| self.is_as_wanted(g)).map(|g| g.usable()).sum()
        };
        loop {
            let missing = room - free() as i64;
            if missing <= 0 {
                return Ok(());
            }
            self.chunk_towards(kind, class.available().saturating_add(missing), 0)?;
        }
    }

    /// A chunk on the way to `bytes` that can be reserved with `floor` left; none where all of them
    /// together would not do.
    fn chunk_towards(&self, kind: Kind, bytes: i64, floor: i64) -> Result<()> {
        loop {
            let seen = self.chunk_changes();
            match self.could_hold(kind, bytes, floor) {
                Err(Error::NoSpace) if self.reclaim_for(kind, seen)? => {}
                could => {
                    could?;
                    return self.chunk_in_any_case(kind);
                }
            }
        }
    }

    /// A new chunk, for which empty ones of another kind make room.
    fn chunk_in_any_case(&self, kind: Kind) -> Result<()> {
        loop {
            let seen = self.chunk_changes();
            match self.new_chunk(kind) {
                Err(Error::NoSpace) if self.reclaim_for(kind, seen)? => {}
                made => return made.map(drop),
            }
        }
    }

    /// New chunks of a kind get these profile bits, until this is taken back.
    pub fn convert_to(&self, kind: Kind, profile: Option<u64>) {
        let device = self.device.lock();
        self.class(kind).set_target(profile);
        self.retune(&device);
    }

    /// While a balance converts: what moves may go to groups of another profile for now (they are to be
    /// converted as well), or may not any more. That makes room where a chunk finds none.
    pub fn convert_by_others(&self, kind: Kind, on: bool) {
        self.class(kind).go_by_others(on);
    }

    /// The group is one as any other again, if it is there still.
    pub fn take_back(&self, start: Logical) -> Result<()> {
        self.group_at(start).map_or(Ok(()), |group| group.take_back())
    }

    /// Gives a group that was set aside back to the device, once it is empty; the next commit
    /// records it. False: something is in it.
    pub fn give_back(&self, start: Logical) -> Result<bool> {
        let mut device = self.device.lock();
        let Some(group) = self.group_at(start) else { return Ok(true) };
        let last = self.list_of_flags(group.flags).snapshot().len() == 1;
        if last || !group.is_emptied() {
            return Ok(false);
        }
        self.give_up(&mut device, &group)?;
        Ok(true)
    }
}
