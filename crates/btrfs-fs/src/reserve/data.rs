//! Space for content: reserved when it is written, allocated when it lands.
//!
//! Invariants: the reservation covers all dirty bytes but those that are unpaid, whose files had space for them when
//! they came; an extent that is allocated for them and not used after all goes back into it.
//!
//! What is unpaid is dirty: there is never more of it.
//!
//! What it does not know: which content is unpaid. A snapshot lands it before it takes its space, or is refused; what
//! becomes unpaid just when one begins lands out of what is held for others, and who comes last finds what is free, or
//! stays in memory.

use super::Reservations;
use crate::error::IntoFs;
use btrfs_disk::Error;
use btrfs_space::{DataReservation, Extent};
use std::sync::atomic::Ordering;
use vfs::Result;

/// Space for content that an operation is about to leave in memory. What of it did not become
/// dirty goes back when this is dropped.
#[must_use = "the reservation ends when it is dropped"]
pub(crate) struct DirtyReservation<'r> {
    reservations: &'r Reservations,
    bytes: u64,
}

impl DirtyReservation<'_> {
    /// There is nothing to spend.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// `bytes` of it became dirty, or landed: they are no longer this operation's.
    pub(crate) fn spend(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "{bytes} bytes became dirty, {} were reserved", self.bytes);
        self.bytes -= bytes;
    }
}

impl Drop for DirtyReservation<'_> {
    fn drop(&mut self) {
        self.reservations.forget_dirty(self.bytes);
    }
}

impl Reservations {
    /// `more` is for `bytes` of content that will be in memory.
    pub(crate) fn hold_dirty(
        &self,
        bytes: u64,
        more: Option<DataReservation>,
    ) -> DirtyReservation<'_> {
        more.into_iter().for_each(|more| self.data.absorb(more));
        self.core.memory.add_dirty(bytes);
        DirtyReservation { reservations: self, bytes }
    }

    /// As `hold_dirty`, for content whose file has space for it.
    pub(crate) fn hold_dirty_in_own(&self, bytes: u64) -> DirtyReservation<'_> {
        let dirty = self.hold_dirty(bytes, None);
        self.unpaid.fetch_add(bytes, Ordering::Release);
        dirty
    }

    /// Whether there is content that goes into space that its file has, if that is not shared before.
    pub(crate) fn is_any_unpaid(&self) -> bool {
        self.unpaid.load(Ordering::Acquire) > 0
    }

    /// So many bytes at most are unpaid no longer; answers how many.
    fn take_unpaid(&self, most: u64) -> u64 {
        if self.unpaid.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let rest = |all: u64| Some(all - most.min(all));
        let all = self.unpaid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        most.min(all.unwrap_or(0))
    }

    /// What was paid for after all, elsewhere than in its own space, is not told by a number: what is not dirty any
    /// more is not unpaid, or as much of what others reserve would never be given back.
    fn bound_unpaid(&self) {
        if self.unpaid.load(Ordering::Relaxed) == 0 {
            return;
        }
        // What is added is dirty first, and what is taken is dirty until then.
        let bounded = |all: u64| Some(all.min(self.core.memory.dirty()));
        let _ = self.unpaid.fetch_update(Ordering::AcqRel, Ordering::Acquire, bounded);
    }

    /// Content of `bytes` bytes is no longer waiting for an extent.
    pub(crate) fn forget_dirty(&self, bytes: u64) {
        self.forget_landed(bytes, 0);
    }

    /// As `forget_dirty`, where extents took `paid` bytes out of the reservation.
    pub(crate) fn forget_landed(&self, bytes: u64, paid: u64) {
        if bytes == 0 {
            return;
        }
        let free = bytes.saturating_sub(paid);
        let unpaid = self.take_unpaid(free);
        self.core.memory.sub_dirty(bytes);
        self.data.shrink(free - unpaid);
        self.bound_unpaid();
    }

    /// A data extent of `len` bytes, out of the reservation. `None`: there is none in one piece.
    pub(crate) fn allocate_whole(&self, len: u64) -> Result<Option<Extent>> {
        let mut part = self.data.split(len);
        let result = part.alloc(&self.core.space, len, len, None);
        self.data.absorb(part);
        match result {
            Err(Error::NoSpace) => Ok(None),
            other => self.allocated(other).map(Some),
        }
    }

    /// A data extent of up to `want` bytes, out of the reservation.
    pub(crate) fn allocate(&self, want: u64) -> Result<Extent> {
        let sector = self.core.sector();
        let mut part = self.data.split(want);
        let space = &self.core.space;
        let result = match part.alloc(space, want, sector, None) {
            // Not of a whole sector: nobody else's is touched.
            Err(Error::NoSpace) => {
                let one = space.reserve_data(sector);
                let extent = one.and_then(|mut one| one.alloc(space, sector, sector, None));
                if let Ok(extent) = &extent {
                    // It stands for as much of what was held.
                    part.shrink(extent.len);
                }
                extent
            }
            other => other,
        };
        self.data.absorb(part);
        self.allocated(result)
    }

    /// An extent from the allocator. Where free space is not what it was said to be, nothing
    /// may be written any more.
    pub(crate) fn allocated(&self, result: btrfs_disk::Result<Extent>) -> Result<Extent> {
        if let Err(error @ Error::Corrupt(_)) = &result {
            self.core.health.poison(&format!("{}: {error}", self.core.volume.device().name()));
        }
        result.fs()
    }

    /// An extent that was not used after all: its space is reserved as it was before.
    pub(crate) fn unallocate(&self, extent: Extent) {
        match self.core.space.release_reserved(extent) {
            Ok(reserved) => {
                self.data.absorb(reserved);
                self.core.discards.add(&extent);
            }
            Err(error) => self.core.health.poison(&format!("giving back an extent: {error}")),
        }
    }
}
