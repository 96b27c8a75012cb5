//! Reservations of space, before anything is allocated.
//!
//! A reservation is a value that only this module makes. Making one is an atomic update of
//! its class's counter; only where that fails a chunk may be made, or what chunks to come can
//! add is counted on, both under the chunk lock. Where neither was possible, but a chunk has come or gone
//! since the first look, it is looked for again: another's chunk may have been the last that the device
//! had room for, and has room for two.
//!
//! Invariants: data reservations are always covered by free space of data block groups.
//! Metadata reservations may count on half of the unallocated device space, which data
//! chunks leave alone then. The global reserve has three parts. One is touched by nobody but
//! commits ([`Priority::Commit`]), another by who says that space comes back, too
//! ([`Priority::Delete`]), and what is beyond both by who needs none but for nodes that are
//! written anew ([`Priority::InPlace`]). Where data and metadata share their block groups data
//! leaves all of it alone.

use super::group::Ask;
use super::reservation::{DataReservation, MetadataReservation, SharedReservation};
use super::{Kind, Space};
use crate::Extent;
use btrfs_disk::{Error, Logical, Result};
use std::sync::atomic::Ordering;

/// Who may use the last metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: who takes from the last metadata is decided for each.
pub enum Priority {
    /// Whatever may be refused: it leaves the whole global reserve alone.
    Normal,
    /// What goes into space that its file has already.
    InPlace,
    /// What frees space in the end: deletions, truncation.
    Delete,
    /// The commit itself.
    Commit,
}

/// What metadata keeps from ordinary reservations, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// For commits alone.
    pub commit: u64,
    /// For removals, beside that.
    pub removal: u64,
    /// For content that goes where its file has space, beside both, where data could take the last room for it.
    pub in_place: u64,
    /// As much as all of it is wished to be.
    pub wish: u64,
}

impl DataReservation {
    /// Takes up to `want` bytes in one piece, at least `min`, out of the reservation; at
    /// `goal` if that is free. Fails where the reservation has fewer than `min` or free
    /// space is too fragmented for `min` (a sector always fits).
    pub fn alloc(
        &mut self,
        space: &Space,
        want: u64,
        min: u64,
        goal: Option<Logical>,
    ) -> Result<Extent> {
        self.take(space, Ask { want, min, goal, ..Ask::default() })
    }

    /// `len` bytes in one piece for content that moves: while a balance converts, in a group of the
    /// profile that it converts to, or nowhere.
    pub fn alloc_to_move(&mut self, space: &Space, len: u64) -> Result<Extent> {
        self.take(space, Ask { want: len, min: len, converts: true, ..Ask::default() })
    }

    fn take(&mut self, space: &Space, ask: Ask) -> Result<Extent> {
        let unit = self.class().unit;
        let want = ask.want.min(self.bytes() / unit * unit);
        if want < ask.min {
            return Err(Error::NoSpace);
        }
        let extent = space.alloc_ask(Kind::Data, &Ask { want, paid: true, ..ask })?;
        self.spend(extent.len);
        Ok(extent)
    }
}

impl MetadataReservation {
    /// Takes one node out of the reservation, or, where that is used up, out of what is free.
    pub fn alloc_node(&mut self, space: &Space, node_size: u64) -> Result<Extent> {
        let paid = self.bytes() >= node_size;
        if !paid {
            self.class().unpaid.fetch_add(1, Ordering::Relaxed);
        }
        let ask = Ask { want: node_size, min: node_size, paid, ..Ask::default() };
        let extent = space.alloc_ask(Kind::Metadata, &ask)?;
        self.spend(if paid { node_size } else { 0 });
        Ok(extent)
    }
}

impl Space {
    /// Reserves `bytes` of data; `NoSpace` if not even new chunks could hold them. (The
    /// caller may commit, unpin and ask again.)
    pub fn reserve_data(&self, bytes: u64) -> Result<DataReservation> {
        let class = self.class(Kind::Data);
        let signed = i64::try_from(bytes).map_err(|_| Error::NoSpace)?;
        let floor = || match self.mixed() {
            true => class.global_reserve.load(Ordering::Relaxed),
            false => 0,
        };
        loop {
            let seen = self.chunk_changes();
            if class.reserve(signed, floor()) {
                return Ok(DataReservation::new(class, bytes));
            }
            #[cfg(feature = "fault-injection")]
            self.faults.come_between(super::Moment::NoRoom, self);
            self.could_hold(Kind::Data, signed, floor())?;
            self.chunk_for(Kind::Data, seen)?;
        }
    }

    /// A reservation of data that many have together, of nothing yet.
    pub fn share_data(&self) -> SharedReservation {
        SharedReservation::new(self.class(Kind::Data))
    }

    /// Gives back a data extent that no commit knows, and reserves its bytes anew at once.
    pub fn release_reserved(&self, extent: Extent) -> Result<DataReservation> {
        self.group_of(&extent)?.release(&extent, true)?;
        Ok(DataReservation::new(self.class(Kind::Data), extent.len))
    }

    /// Sets the global reserve: what is wished for, but no more than an eighth of what
    /// metadata has, and what commits and removals need all the same (no more than half).
    pub fn keep(&self, kept: Kept) {
        let mut device = self.device.lock();
        device.kept = Some(kept);
        self.retune(&device);
    }

    /// Until the next `keep`, commits have at least so many bytes for themselves.
    pub fn keep_for_commits(&self, bytes: u64) {
        let mut device = self.device.lock();
        if let Some(kept) = &mut device.kept {
            kept.commit = kept.commit.max(bytes);
        }
        self.retune(&device);
    }

    /// Reserves room for `bytes` of new nodes.
    pub fn reserve_metadata(&self, bytes: u64, priority: Priority) -> Result<MetadataReservation> {
        let class = self.class(Kind::Metadata);
        let signed = i64::try_from(bytes).map_err(|_| Error::NoSpace)?;
        let kept = || match priority {
            Priority::Normal => class.global_reserve.load(Ordering::Relaxed),
            Priority::InPlace => class.last_reserve.load(Ordering::Relaxed),
            Priority::Delete => class.commit_reserve.load(Ordering::Relaxed),
            Priority::Commit => 0,
        };
        loop {
            let seen = self.chunk_changes();
            if class.reserve_ahead(signed, kept(), || self.device.lock()) {
                return Ok(MetadataReservation::new(class, bytes));
            }
            #[cfg(feature = "fault-injection")]
            self.faults.come_between(super::Moment::NoRoom, self);
            self.could_hold(Kind::Metadata, signed, kept())?;
            self.chunk_for(Kind::Metadata, seen)?;
        }
    }

    /// Refuses what all chunks together could not hold with `floor` bytes left, before any is made.
    pub(super) fn could_hold(&self, kind: Kind, bytes: i64, floor: i64) -> Result<()> {
        let class = self.class(kind);
        // This first: a chunk that comes meanwhile is counted twice, and not at all the other way round.
        let room = match kind {
            Kind::Data => self.data_room(&self.device.lock()),
            _ => self.unallocated.load(Ordering::Acquire),
        };
        let room = (room / class.copies()) as i64;
        let most = class.available().saturating_add(room).saturating_sub(floor);
        if bytes > most { Err(Error::NoSpace) } else { Ok(()) }
    }
}
