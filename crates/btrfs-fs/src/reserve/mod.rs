//! Reservations: nothing is promised that cannot be kept. Metadata for the commit, space for
//! content that is not written yet.
//!
//! What a commit can need of metadata is bounded ([`bound`]) by what the delta, the unwritten
//! content and the operations under way change ([`cost`]); that much is held as a reservation which
//! the commit takes over. It grows with the delta, before an operation enters the epoch.
//!
//! Invariants:
//! * An operation enters the epoch with a [`Reservation`] for all that it will change, with a bound
//!   of its own beside the delta's ([`operation`]), read before the delta. So no number of threads
//!   can promise more than there is.
//! * Ordinary operations and content (where data and metadata share their block groups:
//!   data, too) leave the global reserve alone. One part of it belongs to removals: it holds
//!   what the commit of one small step needs. Another belongs to commits alone: what the trees
//!   that keep account of space can need in the worst layout ([`bound::accounts`]). What is beyond
//!   both belongs to writes into space that their files have ([`Priority::InPlace`]): of what they take
//!   a commit gives back all but what items got longer by.
//! * A removal goes in steps; where there is no room for the next one, a commit gives back
//!   what is held for those before and, when the readers of older roots are gone, what it
//!   rewrote and freed. Then the delta is empty, and the reserve is enough: a removal
//!   always gets on.
//! * A removal makes nothing longer but by a few bytes: what punches a hole into an extent
//!   is no removal.
//! * Where a commit has found no room all the same, removals go on without a reservation: the
//!   epoch that waits for room is in memory, and they make it smaller.
//! * A commit needs no more than was reserved: held against what it took
//!   ([`commit::CommitBound::holds`]), an assertion in debug builds, a counter and a warning in others.
//!
//! Nothing here waits: who may wait for room asks the [`crate::reserver::Reserver`].
//!
//! What it does not know: commits, inodes, and how room is made.

mod bound;
mod commit;
pub(crate) mod cost;
mod data;
mod limits;
mod measure;
mod operation;
mod reach;
mod records;
mod sizes;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use bound::Cost;
pub(crate) use commit::CommitReservation;
pub(crate) use data::DirtyReservation;
pub(crate) use limits::{Left, PATIENCE as QUOTA_PATIENCE, QuotaReservation};
pub(crate) use operation::Reservation;
pub(crate) use sizes::global_reserve;

use crate::error::IntoFs;
use crate::inode::Pieces;
use crate::subvol::Subvols;
use bound::{Trees, accounts, bound};
use btrfs_disk::Error;
use btrfs_space::{Kind, MetadataReservation, Priority, SharedReservation};
use btrfs_txn::Core;
use btrfs_txn::delta::Delta;
use limits::Limits;
use locks::{Mutex, Rank};
use measure::Measured;
use operation::InFlight;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use vfs::Result;

/// Metadata is reserved in steps of this many bytes where there is plenty: one chunk lock for
/// some thousand operations.
/// Chosen, not measured.
const STEP: u64 = 8 << 20;

/// What is held of reserved space.
pub(crate) struct Reservations {
    core: Arc<Core>,
    subvols: Arc<Subvols>,
    /// Of the content in memory.
    pieces: Arc<Pieces>,
    /// For the commit of the current epoch.
    metadata: Mutex<Option<MetadataReservation>>,
    metadata_bytes: AtomicU64,
    /// The part of it that was not taken from the global reserve.
    ordinary_bytes: AtomicU64,
    /// That part, and what was taken from the part of the reserve for writes in place.
    in_place_bytes: AtomicU64,
    /// For all unwritten content.
    data: SharedReservation,
    /// Bytes of that content for which nothing is held of it.
    unpaid: AtomicU64,
    /// What the trees had at the last commit.
    measured: Measured,
    pub(crate) limits: Limits,
    /// What operations under way may change.
    in_flight: InFlight,
    /// An epoch is sealed, and what is held for it is not its commit's yet.
    untaken: AtomicBool,
    /// The last commit found no room, so nothing that is reserved is worth more than what is free.
    short: AtomicBool,
}

impl Reservations {
    pub(crate) fn new(core: Arc<Core>, subvols: Arc<Subvols>, pieces: Arc<Pieces>) -> Reservations {
        Reservations {
            data: core.space.share_data(),
            unpaid: AtomicU64::new(0),
            core,
            subvols,
            pieces,
            metadata: Mutex::new(Rank::MetadataReservation, None),
            metadata_bytes: AtomicU64::new(0),
            ordinary_bytes: AtomicU64::new(0),
            in_place_bytes: AtomicU64::new(0),
            measured: Measured::default(),
            limits: Limits::default(),
            in_flight: InFlight::default(),
            untaken: AtomicBool::new(false),
            short: AtomicBool::new(false),
        }
    }

    /// The last commit found no room.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    pub(crate) fn set_short(&self, short: bool) {
        self.short.store(short, Ordering::Release);
    }

    /// Bytes of metadata that are held for the next commit.
    pub(crate) fn held(&self) -> u64 {
        self.metadata_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of new nodes that `cost` may need by itself.
    pub(crate) fn nodes_for(&self, cost: &Cost) -> u64 {
        bound(&self.trees(), cost)
    }

    /// A reservation for `cost` without waiting for anything: may be called with inodes locked.
    /// ENOSPC: there is no room now.
    pub(crate) fn hold(&self, cost: Cost, priority: Priority) -> Result<Reservation<'_>> {
        // First it counts, then it is seen whether all that counts has room.
        let reservation = Reservation::enter(self, cost);
        match self.cover(self.need(priority), priority) {
            Err(_) if priority == Priority::Delete && self.is_short() => Ok(reservation),
            covered => covered.map(|()| reservation),
        }
    }

    /// As `hold`, for a step of who has inodes locked and so looks for no room; `None`: there is none now.
    pub(crate) fn hold_step(&self, cost: Cost) -> Result<Option<Reservation<'_>>> {
        match self.hold(cost, Priority::Normal) {
            Err(error) if error.errno() == libc::ENOSPC => Ok(None),
            held => held.map(Some),
        }
    }

    /// As `hold` for a removal, where content stays in memory whatever is tried: that waits
    /// for a later commit.
    pub(crate) fn hold_before_content(&self, cost: Cost) -> Result<Reservation<'_>> {
        let reservation = Reservation::enter(self, cost);
        self.cover(self.need(Priority::Commit), Priority::Delete).map(|()| reservation)
    }

    /// As `hold`, whether there is room or not.
    pub(crate) fn hold_anyway(&self, cost: Cost) -> Reservation<'_> {
        Reservation::enter(self, cost)
    }

    /// True if the next commit, with `cost` more, fits what is free of metadata; beside all that any commit may
    /// need where some of it comes back yet.
    pub(crate) fn fits(&self, cost: Cost) -> bool {
        let need = self.need(Priority::Commit) + self.nodes_for(&cost);
        let kept = match self.core.space.pinned(Kind::Metadata) {
            0 => 0,
            _ => accounts(&self.trees()),
        };
        need + kept <= self.core.space.totals().metadata.free
    }

    /// Whether what is in the delta, in memory and under way has no room any more once snapshots share nodes:
    /// it was promised without.
    pub(crate) fn sharing_would_outgrow(&self) -> bool {
        let trees = Trees { shared: true, ..self.trees() };
        let cost = cost_of(&self.core.layers().current) + self.unwritten();
        let need = bound(&trees, &cost) + self.in_flight.room().bytes(&trees);
        need > self.held_for(Priority::Normal) + self.core.space.unreserved(Kind::Metadata)
    }

    /// Whether operations are under way that hold room.
    pub(crate) fn are_under_way(&self) -> bool {
        !self.in_flight.is_idle()
    }

    fn held_for(&self, priority: Priority) -> u64 {
        match priority {
            Priority::Normal => self.ordinary_bytes.load(Ordering::Acquire),
            Priority::InPlace => self.in_place_bytes.load(Ordering::Acquire),
            Priority::Delete | Priority::Commit => self.metadata_bytes.load(Ordering::Acquire),
        }
    }

    fn absorb(
        &self,
        held: &mut Option<MetadataReservation>,
        more: MetadataReservation,
        from: Priority,
    ) {
        if from == Priority::Normal {
            self.ordinary_bytes.fetch_add(more.bytes(), Ordering::AcqRel);
        }
        if matches!(from, Priority::Normal | Priority::InPlace) {
            self.in_place_bytes.fetch_add(more.bytes(), Ordering::AcqRel);
        }
        self.metadata_bytes.fetch_add(more.bytes(), Ordering::AcqRel);
        match held.as_mut() {
            Some(reservation) => reservation.absorb(more),
            None => *held = Some(more),
        }
    }

    /// Grows what is held to `need`.
    fn cover(&self, need: u64, priority: Priority) -> Result<()> {
        if need <= self.held_for(priority) {
            return Ok(());
        }
        let mut held = self.metadata.lock();
        let have = self.held_for(priority);
        if need <= have {
            return Ok(());
        }
        let missing = need - have;
        let space = &self.core.space;
        let spare = STEP.min(space.unreserved(Kind::Metadata) / 16);
        let ordinary = match space.reserve_metadata(missing + spare, Priority::Normal) {
            Err(Error::NoSpace) => space.reserve_metadata(missing, Priority::Normal),
            other => other,
        };
        let (more, from) = match ordinary {
            Err(Error::NoSpace) if priority != Priority::Normal => {
                (space.reserve_metadata(missing, priority).fs()?, priority)
            }
            other => (other.fs()?, Priority::Normal),
        };
        self.absorb(&mut held, more, from);
        Ok(())
    }

    /// What the commit of the current epoch needs, all operations under way, and unwritten content, which
    /// lands with it: removals that took the room of that would take the commit's own. Not for
    /// commits, whose content has landed. And what a sealed epoch needs while its part is still here.
    ///
    /// Operations end meanwhile, and content is written: both are in the delta then, which is read
    /// last.
    pub(crate) fn need(&self, priority: Priority) -> u64 {
        // Who counts in `in_flight` sees what is held then, or is seen by who makes that less.
        fence(Ordering::SeqCst);
        let under_way = self.in_flight.room();
        let unwritten = match priority {
            Priority::Normal | Priority::InPlace | Priority::Delete => self.unwritten(),
            Priority::Commit => Cost::default(),
        };
        // What of it is gone from memory meanwhile is in the delta.
        fence(Ordering::Acquire);
        let layers = self.core.layers();
        let trees = self.trees();
        let sealed = layers.sealed.as_ref().filter(|_| self.untaken.load(Ordering::SeqCst));
        bound(&trees, &(cost_of(&layers.current) + unwritten))
            + under_way.bytes(&trees)
            + sealed.map_or(0, |sealed| bound(&trees, &cost_of(sealed)))
    }

    /// What unwritten content will change.
    fn unwritten(&self) -> Cost {
        let sectors = self.core.memory.dirty() / self.core.sector();
        let pieces = self.pieces.all().min(sectors);
        let inline = self.pieces.first() * self.core.geometry.max_inline() as u64;
        let extents = pieces + self.core.space.pieces(Kind::Data) + cost::compressed(sectors);
        let extents = sectors.min(extents);
        let sum = self.core.geometry.csum.size() as u64;
        cost::content(sectors, pieces, extents, sum) + Cost { bytes: inline, ..Cost::default() }
    }

    /// Nothing is reserved any more that somebody could still use: for when the mount closes.
    pub(crate) fn assert_returned(&self) {
        debug_assert_eq!(self.in_flight.room().together, Cost::default(), "reservations left");
        debug_assert!(
            self.core.memory.dirty() > 0 || self.data.bytes() == 0,
            "space for content is reserved, and there is none"
        );
    }
}

/// What a delta changes.
fn cost_of(delta: &Delta) -> Cost {
    let (items, extents) = (&delta.items, &delta.extents);
    let trees = delta.trees.cost();
    Cost {
        places: items.spread() + trees.places,
        trees: items.trees() + trees.trees,
        births: u64::from(items.has_births()),
        bytes: items.growth() + extents.bytes() + trees.bytes,
        sums: 2 * extents.count() + trees.sums,
        records: extents.records() + cost::records_of(&trees),
    }
}
