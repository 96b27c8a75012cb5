//! One block group: what of it is free, pinned, used.
//!
//! Invariant: free + pinned + used + in flight (allocated, not yet committed) +
//! excluded = length. Every change of the index is told to the class's counters under
//! the group's lock. In debug builds each change says what it moves, which is held against what
//! the index has lost or gained here, and against what the class had there (class.rs).

use super::class::Class;
use super::free_index::FreeIndex;
use super::proof::Proof;
use super::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Rank};
use crate::Extent;
use crate::free_space::Ranges;
use btrfs_disk::items::BlockGroupItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, FixedSize, Key, Logical, Result};
use std::ops::Range;
use std::sync::Arc;

pub(super) struct Group {
    pub start: u64,
    pub len: u64,
    pub flags: u64,
    pub class: Arc<Class>,
    /// Superblock copies: never allocated, free in the free-space tree.
    excluded: Vec<(u64, u64)>,
    /// The first commit that knows the chunk; 0: it was there, `u64::MAX`: none yet.
    pub recorded: AtomicU64,
    /// Hint, read without the lock: the largest range that can be had.
    largest: AtomicU64,
    /// Whether the free ranges were held against the extent tree.
    pub proof: Proof,
    /// It seems empty and could not be found so: not to be given back in this mount.
    pub doubtful: AtomicBool,
    state: Mutex<State>,
}

struct State {
    free: FreeIndex,
    /// What is free while the group is being emptied: nobody gets it.
    aside: Option<Ranges>,
    pinned: u64,
    /// As the block group item says or, in a commit, will say.
    used: u64,
}

/// What an allocation asks for.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Ask {
    pub want: u64,
    pub min: u64,
    /// Where it would continue something.
    pub goal: Option<Logical>,
    /// A reservation answers for it.
    pub paid: bool,
    /// It moves: while a balance converts, a group of another profile is no place for it.
    pub converts: bool,
}

/// How an allocation may deviate from what is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    Whole,
    /// The largest range, if it has this many bytes.
    AtLeast(u64),
}

/// What a change does to the free bytes of a group that can be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moved {
    /// Just so many go.
    Out(u64),
    /// So many come at least: what is too short to be allocated may become part of them.
    In(u64),
    /// Cut anywhere.
    Some,
}

impl Moved {
    fn fits(self, before: u64, after: u64) -> bool {
        match self {
            Moved::Out(bytes) => after + bytes == before,
            Moved::In(bytes) => after >= before + bytes,
            Moved::Some => true,
        }
    }
}

impl Group {
    pub(super) fn new(
        span: Extent,
        flags: u64,
        class: Arc<Class>,
        excluded: Vec<(u64, u64)>,
        used: u64,
    ) -> Group {
        let free = FreeIndex::new(class.unit);
        Group {
            start: span.logical.0,
            len: span.len,
            flags,
            class,
            excluded,
            recorded: AtomicU64::new(0),
            largest: AtomicU64::new(0),
            doubtful: AtomicBool::new(false),
            proof: Proof::default(),
            state: Mutex::new(Rank::Group, State { free, aside: None, pinned: 0, used }),
        }
    }

    /// True if a commit has recorded the chunk, or the running one has.
    pub(super) fn is_known(&self) -> bool {
        self.recorded.load(Ordering::Relaxed) != u64::MAX
    }

    /// About: who holds a reservation is not told less than what it was made of.
    pub(super) fn largest(&self) -> u64 {
        self.largest.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }

    pub(super) fn holds(&self, extent: &Extent) -> bool {
        extent.logical.0 >= self.start && extent.end() <= self.end()
    }

    /// Bytes that superblock copies keep from being allocated.
    pub(super) fn excluded(&self) -> u64 {
        self.excluded.iter().map(|(_, len)| len).sum()
    }

    /// The longest piece between those: of an empty group no extent can have more.
    pub(super) fn longest(&self) -> u64 {
        let ends = self.excluded.iter().map(|(start, len)| (*start, start + len));
        let (mut at, mut longest) = (self.start, 0);
        for (start, end) in ends.chain([(self.end(), self.end())]) {
            longest = longest.max(start.saturating_sub(at));
            at = end;
        }
        longest
    }

    pub(super) fn excluded_ranges(&self) -> &[(u64, u64)] {
        &self.excluded
    }

    /// Changes the index and carries the difference over to the class; a reservation has
    /// paid for `paid` bytes of it already.
    fn with<T>(&self, state: &mut State, change: impl FnOnce(&mut State) -> (T, i64)) -> T {
        self.moving(state, |state| {
            let (out, paid) = change(state);
            (out, paid, Moved::Some)
        })
    }

    /// As `with`, of a change that knows how much it moves.
    fn moving<T>(
        &self,
        state: &mut State,
        change: impl FnOnce(&mut State) -> (T, i64, Moved),
    ) -> T {
        let (before, pieces) = (state.free.usable(), state.free.pieces());
        let (out, paid, moved) = change(state);
        let (after, left) = (state.free.usable(), state.free.pieces());
        debug_assert!(moved.fits(before, after), "{moved:?}: {before} bytes became {after}");
        // Release: who sees that something was taken sees what its taker gave back before.
        self.largest.store(state.free.largest(), Ordering::Release);
        if pieces != left {
            self.class.pieces.fetch_add(left as i64 - pieces as i64, Ordering::Relaxed);
        }
        self.class.free_changed(after as i64 - before as i64, paid);
        out
    }

    /// Puts ranges into the free index, less what is excluded.
    pub(super) fn add_free(&self, mut ranges: impl Iterator<Item = (u64, u64)>) -> Result<()> {
        let mut state = self.state.lock();
        self.with(&mut state, |state| (ranges.try_for_each(|r| self.insert(state, r)), 0))
    }

    fn insert(&self, state: &mut State, (start, len): (u64, u64)) -> Result<()> {
        let overlaps = || Corrupt::new("freed extent overlaps free space").at(Logical(start));
        if let Some(aside) = &mut state.aside {
            aside.insert(start, len).map_err(|_| overlaps())?;
            self.excluded.iter().for_each(|(start, len)| aside.subtract(*start, *len));
            return Ok(());
        }
        let free = &mut state.free;
        free.insert(start, len).map_err(|_| overlaps())?;
        for (start, len) in &self.excluded {
            free.subtract(*start, *len);
        }
        Ok(())
    }

    /// What an extent of whole units brings; what superblock copies lie under, and what is cut
    /// otherwise (of a damaged volume), nobody knows.
    fn coming(&self, state: &State, extent: &Extent) -> Moved {
        if state.aside.is_some() {
            return Moved::Some;
        }
        let unit = self.class.unit;
        let whole = extent.logical.0.is_multiple_of(unit) && extent.len.is_multiple_of(unit);
        if whole && self.excluded.is_empty() { Moved::In(extent.len) } else { Moved::Some }
    }

    /// `None` if nothing fits, or, without patience, if another thread is at work here.
    pub(super) fn alloc(&self, ask: &Ask, fit: Fit, patience: bool) -> Option<Extent> {
        let mut state = if patience { self.state.lock() } else { self.state.try_lock()? };
        let taken = self.moving(&mut state, |state| {
            let taken = match fit {
                Fit::Whole => state.free.take(ask.want, ask.goal.map(|goal| goal.0)),
                Fit::AtLeast(min) => state.free.take_largest(ask.want, min),
            };
            let len = taken.map_or(0, |(_, len)| len);
            (taken, if ask.paid { len as i64 } else { 0 }, Moved::Out(len))
        });
        taken.map(|(start, len)| Extent { logical: Logical(start), len })
    }

    /// Whether `close` may find it empty.
    pub(super) fn seems_empty(&self) -> bool {
        self.is_empty(&self.state.lock())
    }

    /// Takes all of an empty group away from allocation for good, unless reservations need it:
    /// the class must have `floor` bytes available without it.
    pub(super) fn close(&self, floor: i64) -> bool {
        let mut state = self.state.lock();
        let usable = state.free.usable();
        if !self.is_empty(&state) || !self.class.reserve(usable as i64, floor) {
            return false;
        }
        self.moving(&mut state, |state| {
            state.free = FreeIndex::new(self.class.unit);
            ((), usable as i64, Moved::Out(usable))
        });
        true
    }

    /// Takes what is free away from allocation until `take_back`, so that the group only empties;
    /// false if reservations need it: the class must have `floor` bytes available without it.
    pub(super) fn set_aside(&self, floor: i64) -> bool {
        let mut state = self.state.lock();
        if state.aside.is_some() {
            return true;
        }
        let usable = state.free.usable();
        if !self.class.reserve(usable as i64, floor) {
            return false;
        }
        self.moving(&mut state, |state| {
            let free = std::mem::replace(&mut state.free, FreeIndex::new(self.class.unit));
            state.aside = Some(free.ranges().clone());
            ((), usable as i64, Moved::Out(usable))
        });
        true
    }

    /// What was set aside can be allocated again.
    pub(super) fn take_back(&self) -> Result<()> {
        let mut state = self.state.lock();
        let Some(aside) = state.aside.take() else { return Ok(()) };
        self.with(&mut state, |state| {
            (aside.iter().try_for_each(|range| self.insert(state, range)), 0)
        })
    }

    pub(super) fn is_set_aside(&self) -> bool {
        self.state.lock().aside.is_some()
    }

    /// Nothing is in the group, and nothing can come into it.
    pub(super) fn is_emptied(&self) -> bool {
        let state = self.state.lock();
        state.aside.is_some() && self.is_empty(&state)
    }

    fn is_empty(&self, state: &State) -> bool {
        let free = state.aside.as_ref().unwrap_or(state.free.ranges()).bytes();
        state.used == 0 && state.pinned == 0 && free + self.excluded() == self.len
    }

    /// What can be allocated of a group that nothing uses; `None`: something does.
    pub(super) fn empty(&self) -> Option<u64> {
        let state = self.state.lock();
        self.is_empty(&state).then(|| state.free.usable())
    }

    /// An allocated extent that no commit knows comes back; `reserved`: as part of a
    /// reservation, so that nobody else can have it.
    pub(super) fn release(&self, extent: &Extent, reserved: bool) -> Result<()> {
        let paid = if reserved { -(extent.len as i64) } else { 0 };
        let mut state = self.state.lock();
        self.moving(&mut state, |state| {
            let put = self.insert(state, (extent.logical.0, extent.len));
            let (paid, moved) =
                if put.is_ok() { (paid, self.coming(state, extent)) } else { (0, Moved::Some) };
            (put, paid, moved)
        })
    }

    /// Takes exactly this extent out of what is free.
    pub(super) fn claim(&self, extent: &Extent) -> Result<()> {
        let mut state = self.state.lock();
        let taken =
            self.with(&mut state, |state| (state.free.remove(extent.logical.0, extent.len), 0));
        taken.map_err(|_| {
            Corrupt::new("extent is not free as its tree says").at(extent.logical).into()
        })
    }

    /// Takes this range out of what is free for a while, if it still is and no reservation needs
    /// it, nor what is kept for commits and removals; `release` gives it back.
    pub(super) fn hold(&self, extent: &Extent) -> bool {
        let mut state = self.state.lock();
        let len = extent.len as i64;
        let kept = self.class.global_reserve.load(Ordering::Relaxed);
        if !self.class.reserve(len, kept) {
            return false;
        }
        let taken = self.with(&mut state, |state| {
            let taken = state.free.remove(extent.logical.0, extent.len);
            let paid = if taken.is_ok() { len } else { 0 };
            (taken, paid)
        });
        if taken.is_err() {
            self.class.forgo(len);
        }
        taken.is_ok()
    }

    /// A commit records the extent.
    pub(super) fn created(&self, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        let used = state.used + len;
        if used + state.pinned > self.len {
            return Err(Corrupt::new("block group is used beyond its length")
                .at(Logical(self.start))
                .into());
        }
        state.used = used;
        self.class.used_grew(len);
        Ok(())
    }

    /// A commit drops the extent; it stays untouchable until it is unpinned.
    pub(super) fn freed(&self, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        let used = state.used.checked_sub(len).ok_or_else(|| {
            Corrupt::new("more is freed than the block group says is used").at(Logical(self.start))
        })?;
        state.used = used;
        state.pinned += len;
        self.class.used_shrank(len);
        self.class.pinned_grew(len);
        Ok(())
    }

    /// Pins an allocated extent that no commit has recorded.
    pub(super) fn pin_unrecorded(&self, len: u64) {
        self.state.lock().pinned += len;
        self.class.pinned_grew(len);
    }

    /// No commit records the extent after all.
    pub(super) fn not_created(&self, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.used = state.used.checked_sub(len).ok_or_else(|| self.off_balance())?;
        self.class.used_shrank(len);
        Ok(())
    }

    /// No commit drops the extent after all.
    pub(super) fn not_freed(&self, len: u64) -> Result<()> {
        self.not_pinned(len)?;
        self.created(len)
    }

    /// An extent that was pinned is in flight again, or used.
    pub(super) fn not_pinned(&self, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.pinned = state.pinned.checked_sub(len).ok_or_else(|| self.off_balance())?;
        self.class.pinned_shrank(len);
        Ok(())
    }

    fn off_balance(&self) -> Corrupt {
        let what = "more is taken back than the block group was told";
        Corrupt::new(what).at(Logical(self.start))
    }

    pub(super) fn unpin(&self, extent: &Extent) -> Result<()> {
        let mut state = self.state.lock();
        state.pinned = state.pinned.checked_sub(extent.len).ok_or_else(|| {
            Corrupt::new("extent is unpinned that was not pinned").at(extent.logical)
        })?;
        self.class.pinned_shrank(extent.len);
        self.moving(&mut state, |state| {
            let put = self.insert(state, (extent.logical.0, extent.len));
            let moved = if put.is_ok() { self.coming(state, extent) } else { Moved::Some };
            (put, 0, moved)
        })
    }

    pub(super) fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Bytes that can be allocated.
    pub(super) fn usable(&self) -> u64 {
        self.state.lock().free.usable()
    }

    /// Free ranges as of now.
    pub(super) fn free_ranges(&self) -> Vec<(u64, u64)> {
        self.state.lock().free.ranges().iter().collect()
    }

    /// What is free, also if nobody gets it while the group is emptied.
    pub(super) fn claimed_ranges(&self) -> Vec<(u64, u64)> {
        let state = self.state.lock();
        state.aside.as_ref().unwrap_or(state.free.ranges()).iter().collect()
    }

    /// What of a logical range is free as of now: (start, end).
    pub(super) fn free_within(&self, range: &Range<u64>) -> Vec<(u64, u64)> {
        let state = self.state.lock();
        let (mut at, mut out) = (range.start, Vec::new());
        while let Some((start, len)) = state.free.ranges().from(at) {
            if start >= range.end {
                break;
            }
            out.push((start.max(range.start), (start + len).min(range.end)));
            at = start + len;
        }
        out
    }

    pub(super) fn item_key(&self) -> Key {
        Key::new(self.start, kind::BLOCK_GROUP_ITEM, self.len)
    }

    pub(super) fn item_data(&self) -> Vec<u8> {
        let chunk_objectid = btrfs_disk::ids::FIRST_CHUNK_TREE_OBJECTID;
        BlockGroupItem { used: self.used(), chunk_objectid, flags: self.flags }.to_vec()
    }
}
