//! The table: blocks of slots, and where threads look.
//!
//! Invariants:
//! * blocks come in segments, each as large as all before it, and stay where they are as long as
//!   the table: a slot's number means the same slot for good;
//! * a slot that is claimed belongs to who claimed it, until he releases it, once; but for that
//!   only a commit changes it, of which there is one at a time;
//! * an epoch is handed over before the one after the next begins.
//!
//! [unsafe] Segments are reached by addresses that are set once.
//!
//! What it does not know: what the numbers are of.

use super::slot::{self, FREE};
use super::sync::{AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering, PLACES, SLOTS, place};
use std::ptr::null_mut;

/// A segment more doubles the table.
const SEGMENTS: usize = 24;
/// Full blocks that a claim passes before it asks how full the table is.
/// Chosen, not measured.
const PATIENCE: usize = 4;

/// The allocator refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

/// A claimed slot; its owner's alone to release.
#[must_use = "nobody else can release it"]
#[derive(PartialEq, Eq, Hash, Debug)]
pub struct Slot(u32);

/// What a release leaves to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: a commit is told of it or it is not.
pub enum Release {
    /// Came and went within the epoch: no commit is told of it.
    Forgotten,
    /// The commit of the epoch of the release is told that it went.
    ToTell,
}

/// What a commit is told of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: a commit carries out each; one passed over is an item left behind.
pub enum Change {
    /// It is in the table, and no commit was told yet.
    Put(u64),
    /// An earlier commit was told of it, and it went.
    Remove(u64),
}

#[repr(align(128))]
struct Block([AtomicU64; SLOTS]);

/// Where the threads of a place are, a cache line for itself.
#[repr(align(128))]
struct ClaimHint {
    /// The block in which the last search ended.
    block: AtomicUsize,
    /// Claims less releases.
    claimed: AtomicI64,
}

/// Numbers that are being deleted or truncated.
pub struct Orphans {
    places: Box<[ClaimHint]>,
    segments: [AtomicPtr<Block>; SEGMENTS],
    /// Segments that are there: the first ones.
    count: AtomicUsize,
}

/// Blocks of segment `at`, and the number of the first.
fn extent(at: usize) -> (usize, usize) {
    match at {
        0 => (PLACES, 0),
        _ => (PLACES << (at - 1), PLACES << (at - 1)),
    }
}

/// The segment of `block`, and its place there.
fn find(block: usize) -> (usize, usize) {
    match (block / PLACES).checked_ilog2() {
        None => (0, block),
        Some(bits) => (bits as usize + 1, block - (PLACES << bits)),
    }
}

fn make_segment(at: usize) -> Result<*mut Block, NoMemory> {
    let (blocks, _) = extent(at);
    let mut segment = Vec::new();
    segment.try_reserve_exact(blocks).map_err(|_| NoMemory)?;
    segment.extend((0..blocks).map(|_| Block(std::array::from_fn(|_| AtomicU64::new(FREE)))));
    Ok(Box::into_raw(segment.into_boxed_slice()).cast())
}

/// # Safety
/// `segment` is of `make_segment(at)`, and nobody uses it any more.
unsafe fn free_segment(segment: *mut Block, at: usize) {
    let blocks = std::ptr::slice_from_raw_parts_mut(segment, extent(at).0);
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(blocks) });
}

impl Orphans {
    /// An empty table; all later growth may be refused, this one too.
    pub fn new() -> Result<Orphans, NoMemory> {
        let place =
            |block| ClaimHint { block: AtomicUsize::new(block), claimed: AtomicI64::new(0) };
        let table = Orphans {
            places: (0..PLACES).map(place).collect(),
            segments: std::array::from_fn(|_| AtomicPtr::new(null_mut())),
            count: AtomicUsize::new(0),
        };
        table.grow(0)?;
        Ok(table)
    }

    fn blocks(&self) -> usize {
        match self.count.load(Ordering::Acquire) {
            0 => 0,
            count => {
                let (blocks, first) = extent(count - 1);
                first + blocks
            }
        }
    }

    fn block(&self, number: usize) -> &Block {
        let (segment, at) = find(number);
        let blocks = self.segments[segment].load(Ordering::Acquire);
        assert!(!blocks.is_null(), "blocks are counted behind their segment");
        // SAFETY: set once, to a segment of so many blocks that stays as long as the table.
        unsafe { &*blocks.add(at) }
    }

    fn word(&self, at: &Slot) -> &AtomicU64 {
        &self.block(at.0 as usize / SLOTS).0[at.0 as usize % SLOTS]
    }

    /// Notes `number` (at most 61 bits, not 0) as claimed in `epoch`.
    pub fn claim(&self, number: u64, epoch: u64) -> Result<Slot, NoMemory> {
        assert!((1..=slot::MOST).contains(&number), "a number that no slot can have");
        let born = slot::born(number, epoch);
        let place = &self.places[place()];
        let mut block = place.block.load(Ordering::Relaxed);
        let mut passed = 0;
        loop {
            if let Some(at) = claim_in(self.block(block), born) {
                place.block.store(block, Ordering::Relaxed);
                place.claimed.fetch_add(1, Ordering::Relaxed);
                return Ok(Slot((block * SLOTS + at) as u32));
            }
            let blocks = self.blocks();
            block = (block + 1) % blocks;
            passed += 1;
            if passed >= PATIENCE && (passed >= blocks || self.is_half_full(blocks)) {
                block = self.grow_from(blocks)?;
                passed = 0;
            }
        }
    }

    /// An estimate: whoever searches on would pass many that are full.
    fn is_half_full(&self, blocks: usize) -> bool {
        self.len() > blocks * SLOTS / 2
    }

    /// How many are claimed; beside claims and releases an estimate.
    pub fn len(&self) -> usize {
        let claimed = |place: &ClaimHint| place.claimed.load(Ordering::Relaxed);
        self.places.iter().map(claimed).sum::<i64>().max(0) as usize
    }

    /// Whether nothing is claimed; as [`len`](Self::len).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first block of the segment behind `blocks` blocks, where this thread begins.
    fn grow_from(&self, blocks: usize) -> Result<usize, NoMemory> {
        self.grow(find(blocks).0)?;
        Ok(blocks + place() % blocks)
    }

    fn grow(&self, at: usize) -> Result<(), NoMemory> {
        let place = self.segments.get(at).ok_or(NoMemory)?;
        if place.load(Ordering::Acquire).is_null() {
            let new = make_segment(at)?;
            let set = place.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
            if set.is_err() {
                // SAFETY: made above, and nobody has seen it.
                unsafe { free_segment(new, at) };
            }
        }
        // Whoever set it: it is there.
        self.count.fetch_max(at + 1, Ordering::AcqRel);
        Ok(())
    }

    /// What was claimed is done, in `epoch`.
    pub fn release(&self, at: Slot, epoch: u64) -> Release {
        let word = self.word(&at);
        let released = |before| Some(slot::released(before, epoch));
        let before = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, released);
        let before = before.unwrap_or(FREE);
        debug_assert!(before != FREE, "released twice");
        self.places[place()].claimed.fetch_sub(1, Ordering::Relaxed);
        match slot::released(before, epoch) {
            FREE => Release::Forgotten,
            _ => Release::ToTell,
        }
    }

    /// Tells the commit of `epoch`, in which nobody is at work any more, what it has to say of
    /// the numbers here. Others claim and release in the next epoch meanwhile.
    pub fn hand_over(&self, epoch: u64, mut tell: impl FnMut(Change)) {
        for block in 0..self.blocks() {
            for word in &self.block(block).0 {
                if word.load(Ordering::Acquire) == FREE {
                    continue;
                }
                let mut told = None;
                let hand = |before| {
                    let (after, there) = slot::handed_over(before, epoch)?;
                    told = Some((slot::number(before), there));
                    Some(after)
                };
                let handed = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, hand);
                match told.filter(|_| handed.is_ok()) {
                    Some((number, true)) => tell(Change::Put(number)),
                    Some((number, false)) => tell(Change::Remove(number)),
                    None => {}
                }
            }
        }
    }
}

/// The slot of `block` that has `born` now.
fn claim_in(block: &Block, born: u64) -> Option<usize> {
    block.0.iter().position(|word| {
        word.load(Ordering::Relaxed) == FREE
            && word.compare_exchange(FREE, born, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })
}

impl Drop for Orphans {
    fn drop(&mut self) {
        for (at, segment) in self.segments.iter().enumerate() {
            let segment = segment.load(Ordering::Relaxed);
            if !segment.is_null() {
                // SAFETY: of `make_segment(at)`; the table is nobody else's any more.
                unsafe { free_segment(segment, at) };
            }
        }
    }
}
