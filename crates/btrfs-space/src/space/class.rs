//! All block groups of one kind: their counters and where allocations begin. The groups tell it
//! what changes; it does not know which they are (list.rs).
//!
//! Invariant: `free` is the sum of the groups' usable free bytes; `available` is `free`
//! less what is reserved. `available` goes below zero by metadata reservations
//! alone, and not below what unallocated device space can make good. Whoever reserves room
//! that was freed finds it: the group's hint stands before the class hears of it, and a search that
//! others may have spoiled is made again. (tests/lockfree)

use super::sync::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use btrfs_disk::ids::block_group::{DATA, DUP};

/// Searches for one allocation, each of which others' releases spoiled, until it is given up.
/// Chosen, not measured.
const SEARCHES: u32 = 100;

/// No target.
const OWN: u64 = u64::MAX;

/// Threads begin their searches in this many places.
/// Chosen, not measured.
pub(super) const SLOTS: usize = 32;

#[derive(Default)]
#[repr(align(128))]
pub(super) struct Slot(pub AtomicUsize);

pub(super) struct Class {
    /// Block group type bits (of a mixed volume: data and metadata).
    pub type_flags: u64,
    /// Allocations are multiples of this, at multiples of this.
    pub unit: u64,
    pub slots: [Slot; SLOTS],
    free: AtomicI64,
    available: AtomicI64,
    /// How often something became free.
    returns: AtomicU64,
    pub total: AtomicU64,
    pub used: AtomicU64,
    pub pinned: AtomicU64,
    pub excluded: AtomicU64,
    /// Profile bits of all groups together.
    profile: AtomicU64,
    /// What new chunks get instead, while a balance converts; `OWN`: nothing.
    target: AtomicU64,
    /// What moves may go to others on its way there.
    by_others: AtomicBool,
    /// Pieces that free space is in, as far as they can be allocated.
    pub pieces: AtomicI64,
    /// Nodes that no reservation had paid for.
    pub unpaid: AtomicU64,
    /// How far below zero reservations may take `available`: what new chunks could add.
    pub overcommit: AtomicI64,
    /// What is kept from ordinary reservations.
    pub global_reserve: AtomicI64,
    /// The part of it that only deletions and commits may use.
    pub last_reserve: AtomicI64,
    /// The part of that which only commits may use.
    pub commit_reserve: AtomicI64,
}

impl Class {
    pub(super) fn new(type_flags: u64, unit: u64) -> Class {
        Class {
            type_flags,
            unit,
            slots: Default::default(),
            free: AtomicI64::new(0),
            available: AtomicI64::new(0),
            returns: AtomicU64::new(0),
            total: AtomicU64::new(0),
            used: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            excluded: AtomicU64::new(0),
            profile: AtomicU64::new(0),
            target: AtomicU64::new(OWN),
            by_others: AtomicBool::new(false),
            pieces: AtomicI64::new(0),
            unpaid: AtomicU64::new(0),
            overcommit: AtomicI64::new(0),
            global_reserve: AtomicI64::new(0),
            last_reserve: AtomicI64::new(0),
            commit_reserve: AtomicI64::new(0),
        }
    }

    pub(super) fn holds_nodes_only(&self) -> bool {
        self.type_flags & DATA == 0
    }

    /// The profile of new chunks: that of the groups there are; two copies win.
    pub(super) fn profile(&self) -> u64 {
        self.target().unwrap_or_else(|| self.profile.load(Ordering::Relaxed))
    }

    /// What a balance converts to.
    pub(super) fn target(&self) -> Option<u64> {
        match self.target.load(Ordering::Relaxed) {
            OWN => None,
            target => Some(target),
        }
    }

    /// A balance converts, and what moves goes there or nowhere.
    pub(super) fn is_strict(&self) -> bool {
        self.target().is_some() && !self.by_others.load(Ordering::Relaxed)
    }

    pub(super) fn go_by_others(&self, on: bool) {
        self.by_others.store(on, Ordering::Relaxed);
    }

    pub(super) fn set_target(&self, target: Option<u64>) {
        self.target.store(target.unwrap_or(OWN), Ordering::Relaxed);
    }

    /// Device bytes behind a byte of a new chunk.
    pub(super) fn copies(&self) -> u64 {
        if self.profile() & DUP != 0 { 2 } else { 1 }
    }

    /// Flags of a new chunk, and its copies.
    pub(super) fn form(&self) -> (u64, u64) {
        (self.type_flags | self.profile(), self.copies())
    }

    /// A group is there, of `len` bytes.
    pub(super) fn group_came(&self, len: u64, excluded: u64, used: u64, profile: u64) {
        self.total.fetch_add(len, Ordering::Relaxed);
        self.excluded.fetch_add(excluded, Ordering::Relaxed);
        self.used.fetch_add(used, Ordering::Relaxed);
        self.profile.fetch_or(profile, Ordering::Relaxed);
    }

    /// A group with nothing in it is there no more.
    pub(super) fn group_went(&self, len: u64, excluded: u64) {
        self.total.fetch_sub(len, Ordering::Relaxed);
        self.excluded.fetch_sub(excluded, Ordering::Relaxed);
    }

    /// Profile bits of all groups that are left.
    pub(super) fn has_profiles(&self, profile: u64) {
        self.profile.store(profile, Ordering::Relaxed);
    }

    /// The groups' free ranges changed; `paid` bytes of it were reserved before (negative:
    /// are reserved from now on).
    pub(super) fn free_changed(&self, by: i64, paid: i64) {
        if by > 0 {
            // Before anybody can be seen to take something in exchange.
            self.returns.fetch_add(1, Ordering::Release);
        }
        let free = self.free.fetch_add(by, Ordering::Relaxed);
        debug_assert!(free + by >= 0, "groups told of {by} bytes beside {free} that are free");
        self.available.fetch_add(by + paid, Ordering::AcqRel);
    }

    /// A group says, under its lock, that commits use `len` bytes more of it.
    pub(crate) fn used_grew(&self, len: u64) {
        self.used.fetch_add(len, Ordering::Relaxed);
    }

    /// Or fewer: no group takes back what it has not told.
    pub(crate) fn used_shrank(&self, len: u64) {
        let used = self.used.fetch_sub(len, Ordering::Relaxed);
        debug_assert!(used >= len, "{len} bytes are used no more, of {used}");
    }

    /// A group says that `len` bytes more of it stay untouchable.
    pub(crate) fn pinned_grew(&self, len: u64) {
        self.pinned.fetch_add(len, Ordering::Relaxed);
    }

    /// Or fewer.
    pub(crate) fn pinned_shrank(&self, len: u64) {
        let pinned = self.pinned.fetch_sub(len, Ordering::Relaxed);
        debug_assert!(pinned >= len, "{len} bytes are pinned no more, of {pinned}");
    }

    /// What the groups say is `used` is what the class was told.
    pub(crate) fn assert_used(&self, used: u64) {
        let told = self.used.load(Ordering::Relaxed);
        assert_eq!(used, told, "block groups and their class differ on what is used");
    }

    pub(super) fn free(&self) -> i64 {
        self.free.load(Ordering::Relaxed)
    }

    pub(super) fn available(&self) -> i64 {
        self.available.load(Ordering::Acquire)
    }

    /// Looks for something in the groups, and, for who has a reservation, again if
    /// he finds nothing and something became free meanwhile: that may lie where he had looked
    /// already, and what he was to find may be gone in exchange.
    pub(super) fn search<T, E>(
        &self,
        reserved: bool,
        mut look: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        for _ in 0..SEARCHES {
            let before = self.returns.load(Ordering::Acquire);
            let found = look()?;
            let same = self.returns.load(Ordering::Acquire) == before;
            if found.is_some() || !reserved || same {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Reserves `bytes` if `available` stays at `floor` or above.
    pub(super) fn reserve(&self, bytes: i64, floor: i64) -> bool {
        self.available
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                now.checked_sub(bytes).filter(|left| *left >= floor)
            })
            .is_ok()
    }

    /// As `reserve` if `available` stays at `kept` or above; else below it, as far as new
    /// chunks could make that good. `still` keeps chunks from being made while that is found
    /// out: one of data could take just what is counted on.
    pub(super) fn reserve_ahead<G>(
        &self,
        bytes: i64,
        kept: i64,
        still: impl FnOnce() -> G,
    ) -> bool {
        self.reserve(bytes, kept) || {
            let _still = still();
            self.reserve(bytes, kept - self.overcommit.load(Ordering::Relaxed))
        }
    }

    /// Device bytes that the reservations, less `forgone` bytes of them, count on beside what is
    /// free. With chunks kept still it grows no more: see `reserve_ahead`.
    pub(super) fn owed(&self, forgone: u64) -> u64 {
        let kept = self.global_reserve.load(Ordering::Relaxed);
        // Twice: reservations from now on see a limit that a data chunk does not undercut.
        let owed = kept - self.available() - forgone as i64;
        owed.max(0) as u64 * self.copies() * 2
    }

    /// Chunks to come can take `unallocated` bytes of the device.
    pub(super) fn count_on(&self, unallocated: u64) {
        let spare = unallocated / self.copies() / 2;
        self.overcommit.store(spare as i64, Ordering::Relaxed);
    }

    /// Takes back `bytes` of reservations.
    pub(super) fn forgo(&self, bytes: i64) {
        self.available.fetch_add(bytes, Ordering::AcqRel);
    }
}
