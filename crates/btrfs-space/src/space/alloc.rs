//! From a wish to an extent: which block group, which range, when to make a chunk.
//!
//! Each thread goes on in the group where it allocated last, unless a goal says where
//! an extent would continue its file. A group that another thread holds is passed over
//! at first. Only the group's own lock is taken, and none over I/O.
//!
//! Invariants: groups of another profile than new chunks get are asked when no chunk can be
//! made any more: what is said to have two copies has them, as long as there is room for two.
//! They count as room all the same, so nobody who has a reservation finds nothing. One request
//! makes no chunk more once it has made one that could not hold it.
//!
//! What it does not know: who pays (reservations), what a commit records.

use super::class::{Class, SLOTS};
use super::group::{Ask, Fit, Group};
use super::prove::Unproven;
use super::{Kind, Space};
use crate::Extent;
use crate::free_space::GroupSpan;
use btrfs_disk::ids::block_group::PROFILE_MASK;
use btrfs_disk::{Corrupt, Error, Key, Logical, Result};
use locks::thread_number;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A range shorter than wanted is taken before a chunk is made if it has this much.
/// Chosen, not measured.
const GOOD_ENOUGH: u64 = 1 << 20;

/// Groups of a kind that come into question.
struct Among<'g> {
    groups: &'g [Arc<Group>],
    /// What new chunks get.
    profile: u64,
    /// Groups of that profile; else the others.
    as_wanted: bool,
}

impl Among<'_> {
    fn has(&self, group: &Group) -> bool {
        (group.flags & PROFILE_MASK == self.profile) == self.as_wanted
    }

    /// The group with `goal`; groups stand in the order in which they became known.
    fn holding(&self, goal: Logical) -> Option<&Arc<Group>> {
        let found = self.groups.iter().find(|g| (g.start..g.end()).contains(&goal.0));
        found.filter(|group| self.has(group))
    }
}

impl Space {
    /// Takes up to `want` bytes in one piece, at least `min`; makes a chunk where that is
    /// needed and possible. Does not ask whether the bytes are reserved for others: data
    /// goes through a [`super::DataReservation`].
    pub fn alloc(&self, kind: Kind, want: u64, min: u64) -> Result<Extent> {
        self.alloc_ask(kind, &Ask { want, min, ..Ask::default() })
    }

    pub(super) fn alloc_ask(&self, kind: Kind, ask: &Ask) -> Result<Extent> {
        #[cfg(feature = "fault-injection")]
        self.faults.come_between(super::Moment::Allocate, self);
        #[cfg(feature = "fault-injection")]
        self.faults.pass(kind)?;
        let class = self.class(kind);
        assert!(ask.min > 0 && ask.min <= ask.want, "min lies within want");
        assert!(ask.want.is_multiple_of(class.unit) && ask.min.is_multiple_of(class.unit));
        let mut in_vain = false;
        let found = class.search(ask.paid, || self.look(class, kind, ask, &mut in_vain))?;
        found.ok_or(Error::NoSpace)
    }

    /// In all groups, and in chunks that are made for it, unless one was made `in_vain`.
    fn look(
        &self,
        class: &Class,
        kind: Kind,
        ask: &Ask,
        in_vain: &mut bool,
    ) -> Result<Option<Extent>> {
        let good = ask.min.max(ask.want.min(GOOD_ENOUGH));
        loop {
            // This first: a chunk that comes meanwhile is looked at.
            let chunks = self.chunk_changes();
            let groups = self.list(kind).snapshot();
            let among = Among { groups: &groups, profile: class.profile(), as_wanted: true };
            if let found @ Some(_) = self.whole(class, &among, ask)? {
                return Ok(found);
            }
            if let found @ Some(_) = self.best(&among, ask, good)? {
                return Ok(found);
            }
            if *in_vain {
                return self.at_last(class, among, ask);
            }
            match self.chunk_for(kind, chunks) {
                // What it had others may have by the time that we look, and then there are more.
                Ok(Some(new)) => {
                    let longest = self.group_at(new.logical).map_or(0, |group| group.longest());
                    *in_vain = longest < good;
                }
                Ok(None) => {}
                Err(Error::NoSpace) => return self.at_last(class, among, ask),
                Err(error) => return Err(error),
            }
        }
    }

    /// There is no chunk for it: less than is good, and then fewer copies, or more, than are wanted.
    fn at_last(&self, class: &Class, among: Among<'_>, ask: &Ask) -> Result<Option<Extent>> {
        if let found @ Some(_) = self.best(&among, ask, ask.min)? {
            return Ok(found);
        }
        if ask.converts && class.is_strict() {
            return Ok(None);
        }
        let others = Among { as_wanted: false, ..among };
        match self.whole(class, &others, ask)? {
            None => self.best(&others, ask, ask.min),
            found => Ok(found),
        }
    }

    /// Gives back an extent that no commit knows: it can be had again at once.
    pub fn release(&self, extent: Extent) -> Result<()> {
        self.group_of(&extent)?.release(&extent, false)
    }

    /// Makes extents of a durable commit allocatable again.
    pub fn unpin(&self, extents: &[Extent]) -> Result<()> {
        extents.iter().try_for_each(|extent| self.group_of(extent)?.unpin(extent))
    }

    /// Takes exactly this extent, which must be free (log replay: the log refers to
    /// space that no other tree knows).
    pub fn claim(&self, extent: Extent) -> Result<()> {
        self.group_of(&extent)?.claim(&extent)
    }

    /// Keeps an allocated extent that no commit has recorded untouchable until `unpin`.
    pub(crate) fn pin_unrecorded(&self, extent: &Extent) -> Result<()> {
        self.group_of(extent)?.pin_unrecorded(extent.len);
        Ok(())
    }

    /// A commit records `extent`; answers its block group's start.
    pub(crate) fn created(&self, extent: &Extent) -> Result<u64> {
        let group = self.group_of(extent)?;
        group.created(extent.len)?;
        Ok(group.start)
    }

    /// A commit drops `extent`, which is pinned from now on; answers its block group's start.
    pub(crate) fn freed(&self, extent: &Extent) -> Result<u64> {
        let group = self.group_of(extent)?;
        group.freed(extent.len)?;
        Ok(group.start)
    }

    /// Key and data of the block group item as of now; `None` for a group that is gone.
    pub(crate) fn group_item(&self, start: u64) -> Option<(Key, Vec<u8>)> {
        let group = self.group_at(Logical(start))?;
        Some((group.item_key(), group.item_data()))
    }

    /// Span of the block group that starts at `start`.
    pub(crate) fn group_span(&self, start: u64) -> Result<GroupSpan> {
        let group = self.group_of(&Extent { logical: Logical(start), len: 1 })?;
        let sector = u64::from(self.volume.geometry().sector_size);
        Ok(GroupSpan { start: group.start, len: group.len, sector })
    }

    pub(super) fn group_of(&self, extent: &Extent) -> Result<Arc<Group>> {
        self.group_at(extent.logical)
            .filter(|group| group.holds(extent))
            .ok_or_else(|| outside(extent))
    }

    pub(super) fn group_at(&self, logical: Logical) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let (_, group) = groups.range(..=logical.0).next_back()?;
        (logical.0 < group.end()).then(|| Arc::clone(group))
    }
}

/// Where an allocation looks.
impl Space {
    /// All that is wanted in one piece.
    fn whole(&self, class: &Class, among: &Among<'_>, ask: &Ask) -> Result<Option<Extent>> {
        let groups = among.groups;
        if let Some(group) = ask.goal.and_then(|goal| among.holding(goal))
            && group.largest() >= ask.want
            && let Some(extent) = self.take(group, ask, Fit::Whole, true)?
        {
            return Ok(Some(extent));
        }
        let mine = &class.slots[thread_number() % SLOTS].0;
        // Nodes always go to the first group that has room, so that the others run empty when
        // nodes go, and can be given up: nothing moves nodes between groups.
        let first = if class.holds_nodes_only() { 0 } else { mine.load(Ordering::Relaxed) };
        // A chunk that no commit knows comes last, behind waiting for others: no tree log may
        // refer to it, so what lies in it makes an fsync a commit.
        for (known, patience) in [(true, false), (true, true), (false, false), (false, true)] {
            for step in 0..groups.len() {
                let at = (first + step) % groups.len();
                let group = &groups[at];
                if group.is_known() != known || group.largest() < ask.want || !among.has(group) {
                    continue;
                }
                if let Some(extent) = self.take(group, ask, Fit::Whole, patience)? {
                    mine.store(at, Ordering::Relaxed);
                    return Ok(Some(extent));
                }
            }
        }
        Ok(None)
    }

    /// The largest piece there is, if it has `min` bytes.
    fn best(&self, among: &Among<'_>, ask: &Ask, min: u64) -> Result<Option<Extent>> {
        loop {
            let groups = among.groups.iter().filter(|group| among.has(group));
            let Some(group) = groups.max_by_key(|group| group.largest()) else {
                return Ok(None);
            };
            if group.largest() < min {
                return Ok(None);
            }
            // Losing the range to another thread lowers the hint: the loop ends.
            if let Some(extent) = self.take(group, ask, Fit::AtLeast(min), true)? {
                return Ok(Some(extent));
            }
        }
    }

    /// From this group, if its free ranges are what they claim to be.
    fn take(
        &self,
        group: &Arc<Group>,
        ask: &Ask,
        fit: Fit,
        patience: bool,
    ) -> Result<Option<Extent>> {
        match self.prove(group) {
            Ok(()) => Ok(group.alloc(ask, fit, patience)),
            Err(Unproven::Unread(error)) => self.do_without(group, error).map(|()| None),
            Err(wrong) => Err(wrong.into()),
        }
    }

    /// Nothing is allocated there from now on, unless others have not the room for what is reserved.
    fn do_without(&self, group: &Arc<Group>, error: Error) -> Result<()> {
        match self.keep_aside(group, 0) {
            Ok(()) => {
                let (group, len) = (group.start, group.len);
                tracing::error!(group, len, %error, "nothing new is put in a block group");
                Ok(())
            }
            Err(Error::NoSpace) => Err(error),
            Err(other) => Err(other),
        }
    }
}

fn outside(extent: &Extent) -> Error {
    Corrupt::new(format!("extent of {} bytes lies in no block group", extent.len))
        .at(extent.logical)
        .into()
}
