//! Promises are made only when they can be kept: metadata room for the commit, data room
//! for unwritten content, memory for the delta.
//!
//! What a commit can need of metadata is bounded ([`bound`]) by what the delta, the unwritten
//! content and the operations under way change; that much is held as a reservation which the
//! commit takes over. It grows with the delta, before an operation enters the epoch.
//!
//! Invariants:
//! * An operation enters the epoch with a [`Room`] for all that it will change; what all of
//!   them have and what the delta has are bounded together. So no number of threads can
//!   promise more than there is.
//! * Ordinary operations and content (where data and metadata share their block groups:
//!   data, too) leave the global reserve alone. One part of it belongs to removals: it holds
//!   what the commit of one small step needs. The other belongs to commits alone: what the trees
//!   that keep account of space can need in the worst layout ([`bound::accounts`]).
//! * A removal goes in steps; where there is no room for the next one, a commit gives back
//!   what is held for those before and, when the readers of older roots are gone, what it
//!   rewrote and freed. Then the delta is empty, and the reserve is enough: a removal
//!   always gets on.
//! * A removal makes nothing longer but by a few bytes: what punches a hole into an extent
//!   is no removal.
//! * Where a commit has found no room all the same, removals go on without a promise: the epoch
//!   that waits for room is in memory, and they make it smaller.
//! * A commit needs no more than its promise: held against what it took ([`Promise::check`]),
//!   an assertion in debug builds, a counter and a warning in others.
//!
//! Reserving may wait for a commit, which locks inodes, and for the readers of old roots:
//! reserve before locking any, and before taking a view.

mod bound;
mod data;
mod measure;
mod promise;
mod room;
mod search;

pub use promise::Promise;
pub use room::Room;

use crate::delta::Delta;
use crate::engine::{Engine, RUN_PLACES};
use bound::{Load, bound};
use btrfs_disk::Error;
use btrfs_space::{DataReservation, Kind, MetadataReservation, Priority};
use measure::Measured;
use parking_lot::Mutex;
use room::Flights;
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::{Errno, FsError, Result};

use crate::error::IntoFs;

/// Items that one small step of a removal takes away at most, in as many places.
pub const SMALL_STEP: u64 = 8;
/// Places that taking items of one inode away changes: a run of keys, its inode item, its
/// orphan item, and an attribute that goes with it.
const OF_AN_INODE: u64 = RUN_PLACES as u64 + 3;
/// Places that taking a name away changes: the entry by hash and by index, the directory, the
/// child, its reference, its orphan item.
pub const UNLINK: u64 = 6;
/// Bytes of the items that a removal writes anew: an inode's, and what is left of one that held
/// several names.
const REWRITTEN: u64 = 1024;
/// Metadata is reserved in steps of this many bytes where there is plenty.
const STEP: u64 = 8 << 20;
/// Bytes of items that an unwritten extent will have in all trees: the file's, the extent's,
/// ends of free ranges, headers of checksums.
const UNWRITTEN: u64 = 78 + 78 + 50 + 50;

/// What the engine holds of promised space.
#[derive(Default)]
pub struct Promises {
    /// For the commit of the current epoch.
    metadata: Mutex<Option<MetadataReservation>>,
    metadata_bytes: AtomicU64,
    /// The part of it that was not taken from the global reserve.
    ordinary_bytes: AtomicU64,
    /// For all unwritten content.
    data: Mutex<Option<DataReservation>>,
    /// What the trees had at the last commit.
    measured: Measured,
    /// What operations under way may change.
    flights: Flights,
    /// Removals so far, and as of the last commit that was to free space.
    removals: AtomicU64,
    seen: AtomicU64,
}

impl Promises {
    fn held_for(&self, priority: Priority) -> u64 {
        match priority {
            Priority::Normal => self.ordinary_bytes.load(Ordering::Acquire),
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
        self.metadata_bytes.fetch_add(more.bytes(), Ordering::AcqRel);
        match held.as_mut() {
            Some(reservation) => reservation.absorb(more),
            None => *held = Some(more),
        }
    }
}

impl Engine {
    /// Room for an operation that changes up to `items` items that lie apart, which take up to
    /// `bytes` bytes anew.
    pub fn reserve(&self, items: u64, bytes: u64) -> Result<Room<'_>> {
        self.reserve_with(Load { places: items, bytes, sums: 0 }, Priority::Normal)
    }

    /// As `reserve`, for what gives space back: it may use the reserve for removals.
    pub fn reserve_for_removal(&self, items: u64) -> Result<Room<'_>> {
        self.promises.removals.fetch_add(1, Ordering::Relaxed);
        let load = Load { places: items, bytes: REWRITTEN, sums: 0 };
        self.reserve_with(load, Priority::Delete)
    }

    /// As `reserve_for_removal`, for up to `items` items of one inode that lie in a run.
    pub fn reserve_for_removal_of(&self, items: u64) -> Result<Room<'_>> {
        self.promises.removals.fetch_add(1, Ordering::Relaxed);
        self.reserve_with(removal_of(items), Priority::Delete)
    }

    /// Room for removing up to `most` items; answers how many of them, a small step at least.
    pub fn reserve_removal_of(&self, most: u64) -> Result<(Room<'_>, u64)> {
        self.writable()?;
        if most > SMALL_STEP
            && let Ok(room) = self.hold_removal(most)
        {
            self.promises.removals.fetch_add(1, Ordering::Relaxed);
            return Ok((room, most));
        }
        let step = most.min(SMALL_STEP);
        self.reserve_for_removal_of(step).map(|room| (room, step))
    }

    fn reserve_with(&self, load: Load, priority: Priority) -> Result<Room<'_>> {
        self.writable()?;
        self.hold_back(priority)?;
        let mut tried = search::Tried::default();
        loop {
            match self.hold_load(load, priority) {
                Err(FsError::Posix(Errno::ENOSPC)) => {}
                other => return other,
            }
            // Not for this one operation alone: that is what makes a commit worth its while.
            let trees = self.trees();
            let wanted = bound(&trees, &load) + search::WORTH * trees.node_size;
            if !self.find_room(&mut tried, Kind::Metadata, wanted, priority)? {
                // Where more is used than should be (a volume that somebody else filled),
                // what is free must do for removals, promised or not.
                let removes = priority == Priority::Delete && self.has_room(load);
                return if removes {
                    Ok(Room::enter(self, load, priority))
                } else {
                    Err(Errno::ENOSPC.into())
                };
            }
        }
    }

    /// Room for one extent more of a file, without waiting for anything: may be called with
    /// inodes locked.
    pub fn hold_extent(&self) -> Result<Room<'_>> {
        let load = Load { places: RUN_PLACES as u64 + 1, bytes: 2 * UNWRITTEN, sums: 2 };
        self.hold_load(load, Priority::Normal)
    }

    /// As `hold_extent`, for one inode item.
    pub fn hold_touch(&self) -> Result<Room<'_>> {
        self.hold_load(Load { places: 1, bytes: 600, sums: 0 }, Priority::Normal)
    }

    /// As `hold_extent`, for a run of `new` items that share extents in place of `old` items.
    pub fn hold_shares(&self, new: u64, old: u64) -> Result<Room<'_>> {
        let (places, bytes) = (RUN_PLACES as u64 + 1, (new + 2) * 2 * UNWRITTEN);
        self.hold_load(Load { places, bytes, sums: 2 * (new + old) }, Priority::Normal)
    }

    /// As `hold_extent`, for taking up to `items` items of one inode away, which lie in a run.
    pub fn hold_removal(&self, items: u64) -> Result<Room<'_>> {
        self.hold_load(removal_of(items), Priority::Delete)
    }

    fn hold_load(&self, load: Load, priority: Priority) -> Result<Room<'_>> {
        // First it counts, then it is seen whether all that counts has room.
        let room = Room::enter(self, load, priority);
        match self.cover(priority) {
            Err(_) if priority == Priority::Delete && self.is_short_of_room() => Ok(room),
            covered => covered.map(|()| room),
        }
    }

    /// Grows the reservation to what the current delta and all that has a room need. Who may
    /// use the global reserve answers for the next commit alone; content that is unwritten can
    /// wait for the one after it.
    fn cover(&self, priority: Priority) -> Result<()> {
        let need = self.need(&self.layers.load().current, priority);
        if need <= self.promises.held_for(priority) {
            return Ok(());
        }
        let mut held = self.promises.metadata.lock();
        let have = self.promises.held_for(priority);
        if need <= have {
            return Ok(());
        }
        let missing = need - have;
        let spare = STEP.min(self.space.unpromised(Kind::Metadata) / 16);
        let ordinary = match self.space.reserve_metadata(missing + spare, Priority::Normal) {
            Err(Error::NoSpace) => self.space.reserve_metadata(missing, Priority::Normal),
            other => other,
        };
        let (more, from) = match ordinary {
            Err(Error::NoSpace) if priority != Priority::Normal => {
                (self.space.reserve_metadata(missing, priority).fs()?, priority)
            }
            other => (other.fs()?, Priority::Normal),
        };
        self.promises.absorb(&mut held, more, from);
        Ok(())
    }

    /// What the commit of `delta` needs, of all operations under way and of unwritten content
    /// unless that can wait.
    fn need(&self, delta: &Delta, priority: Priority) -> u64 {
        let unwritten = match priority {
            Priority::Normal => self.unwritten(),
            Priority::Delete | Priority::Commit => Load::default(),
        };
        let load = load_of(delta) + unwritten + self.promises.flights.load(priority);
        bound(&self.trees(), &load)
    }

    /// What unwritten content will change.
    fn unwritten(&self) -> Load {
        let sectors = self.dirty_bytes.load(Ordering::Relaxed) / self.sector();
        let pieces = self.dirty_pieces.all().min(sectors);
        let inline = self.dirty_pieces.first() * self.geometry.max_inline() as u64;
        self.content(sectors, pieces) + Load { bytes: inline, ..Load::default() }
    }

    /// What `sectors` of content in `pieces` change when they land. A piece becomes a run of
    /// extent items, one extent or more where free space is in pieces, in place of another run;
    /// its inode is written. Each of its sectors may take the place of an extent of its own, whose
    /// checksums lie anywhere.
    fn content(&self, sectors: u64, pieces: u64) -> Load {
        let extents = sectors.min(pieces + self.space.pieces(Kind::Data));
        let sums = sectors * self.geometry.csum.size() as u64;
        Load {
            places: pieces * (RUN_PLACES as u64 + 1),
            bytes: (extents + 3 * pieces) * UNWRITTEN + sums,
            // Those that come, and both ends of those that go.
            sums: extents + 2 * sectors,
        }
    }

    /// Starts a commit when the delta has used up its memory; waits when it is far over.
    fn hold_back(&self, priority: Priority) -> Result<()> {
        if priority == Priority::Delete && self.is_short_of_room() {
            return Ok(());
        }
        let bytes = self.layers.load().current.bytes();
        if bytes > self.options.delta_bytes {
            self.committer.wake();
            if bytes > self.options.delta_bytes * 2 || !self.options.background {
                self.stats.throttled.add(1);
                self.commit_what_lands()?;
            }
        }
        let dirty = self.dirty_bytes.load(Ordering::Relaxed);
        if dirty > self.options.dirty_bytes {
            self.committer.wake();
            if dirty > self.options.dirty_bytes * 3 / 2 || !self.options.background {
                self.stats.throttled.add(1);
                // What is not written is the business of those who wrote it.
                let _landed = self.flush_some()?;
            }
        }
        Ok(())
    }
}

/// What a delta changes.
fn load_of(delta: &Delta) -> Load {
    let (items, extents) = (&delta.items, &delta.extents);
    Load {
        places: items.spread(),
        bytes: items.growth() + extents.bytes(),
        sums: 2 * extents.count(),
    }
}

/// What taking `items` items of one inode away changes, which lie in a run.
fn removal_of(items: u64) -> Load {
    Load { places: OF_AN_INODE, bytes: REWRITTEN, sums: 2 * items }
}
