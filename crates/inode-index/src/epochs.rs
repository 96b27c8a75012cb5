//! When memory that readers may still look at can be freed.
//!
//! A reader counts itself in its thread's place while it looks ([`Pin`]). What was unlinked is
//! given up in the place of who did it, and freed when every count of every place has been seen
//! at zero once since then: whoever could have seen it has looked away. Places have two counts,
//! of which new readers take the one that `side` says, so that busy readers do not keep
//! both from ever being zero; which one a reader took is of no importance for safety.
//!
//! Invariant: nobody is told of an address behind its `give_up`; who was told before holds a pin.
//!
//! [unsafe] What is given up is freed by a function that whoever gave it up named.
//!
//! What it does not know: what is freed.

// An estimate that nothing depends on: no model looks at it.
use super::sync::{
    AtomicU32, AtomicUsize, BATCH, Mutex, Ordering, PLACES, Rank, full_fence, place,
};
use std::sync::atomic::AtomicI64;

/// Something unlinked, and what frees it.
struct GivenUp {
    what: *mut (),
    free: unsafe fn(*mut ()),
}

// SAFETY: `give_up` asks for what any thread may free.
unsafe impl Send for GivenUp {}

#[derive(Default)]
struct Bag {
    /// Given up since the last look.
    new: Vec<GivenUp>,
    /// Freed when `unseen` is empty.
    waiting: Vec<GivenUp>,
    /// A bit for each count that was not zero yet at any look since `waiting` was unlinked.
    unseen: u128,
}

/// A cache line (and the one that is fetched beside it) for itself.
#[repr(align(128))]
struct ReaderSlot {
    reading: [AtomicU32; 2],
    /// Entries that came less those that went, by threads of this place.
    entries: AtomicI64,
    bag: Mutex<Bag>,
}

/// Readers of some indexes, and what waits for them.
pub struct Epochs {
    places: Box<[ReaderSlot]>,
    /// The count that new readers take.
    side: AtomicUsize,
}

/// As long as it lives nothing that can be reached through it is freed.
pub struct Pin<'e> {
    epochs: &'e Epochs,
    reading: &'e AtomicU32,
}

impl Default for Epochs {
    fn default() -> Epochs {
        let place = || ReaderSlot {
            reading: [AtomicU32::new(0), AtomicU32::new(0)],
            entries: AtomicI64::new(0),
            bag: Mutex::new(Rank::Leaf, Bag::default()),
        };
        Epochs { places: (0..PLACES).map(|_| place()).collect(), side: AtomicUsize::new(0) }
    }
}

impl Epochs {
    /// Short: what is given up meanwhile stays in memory.
    pub fn pin(&self) -> Pin<'_> {
        let reading = &self.places[place()].reading[self.side.load(Ordering::Relaxed) & 1];
        reading.fetch_add(1, Ordering::SeqCst);
        full_fence();
        Pin { epochs: self, reading }
    }

    /// How many entries the indexes have; beside who changes them an estimate.
    pub fn entries(&self) -> usize {
        let of = |place: &ReaderSlot| place.entries.load(std::sync::atomic::Ordering::Relaxed);
        self.places.iter().map(of).sum::<i64>().max(0) as usize
    }

    pub(crate) fn count(&self, more: i64) {
        let entries = &self.places[place()].entries;
        entries.fetch_add(more, std::sync::atomic::Ordering::Relaxed);
    }

    /// Frees `what` by `free` when nobody who is pinned now is so any more.
    ///
    /// # Safety
    /// It was unlinked by a sequentially consistent operation, so that nobody who pins from
    /// now on finds it; it is given up once; `free` may be called with it, by any thread,
    /// when those who are pinned now are done.
    pub(crate) unsafe fn give_up(&self, what: *mut (), free: unsafe fn(*mut ())) {
        let mut bag = self.places[place()].bag.lock();
        // Refused: it is never freed, which is better than to abort, or to wait for readers of
        // whom this thread may be one.
        if bag.new.try_reserve(1).is_err() {
            return;
        }
        bag.new.push(GivenUp { what, free });
        if bag.new.len() < BATCH {
            return;
        }
        let ready = self.look(&mut bag);
        drop(bag);
        free_all(ready);
    }

    /// Frees what nobody looks at any more, of all places.
    pub fn collect(&self) {
        for place in &self.places {
            // Twice: what was new becomes waiting in the first.
            for _ in 0..2 {
                let ready = self.look(&mut place.bag.lock());
                free_all(ready);
            }
        }
    }

    /// What of `bag` can be freed.
    fn look(&self, bag: &mut Bag) -> Vec<GivenUp> {
        if bag.waiting.is_empty() {
            if bag.new.is_empty() {
                return Vec::new();
            }
            bag.waiting = std::mem::take(&mut bag.new);
            bag.unseen = u128::MAX >> (128 - 2 * PLACES);
        }
        full_fence();
        for (at, place) in self.places.iter().enumerate() {
            for side in 0..2 {
                let bit = 1 << (side * PLACES + at);
                if bag.unseen & bit != 0 && place.reading[side].load(Ordering::SeqCst) == 0 {
                    bag.unseen &= !bit;
                }
            }
        }
        if bag.unseen == 0 {
            return std::mem::take(&mut bag.waiting);
        }
        self.turn_from(bag.unseen);
        Vec::new()
    }

    /// Readers from now on take the other count, if only the one that they take is `unseen`.
    fn turn_from(&self, unseen: u128) {
        let side = self.side.load(Ordering::Relaxed) & 1;
        let of = |side: usize| (unseen >> (side * PLACES)) & (u128::MAX >> (128 - PLACES));
        if of(side) != 0 && of(1 - side) == 0 {
            self.side.store(1 - side, Ordering::Relaxed);
        }
    }
}

fn free_all(ready: Vec<GivenUp>) {
    for GivenUp { what, free } in ready {
        // SAFETY: every count was zero at some time behind the unlinking. The loads that saw it
        // and the readers' additions are sequentially consistent, as the unlinking and the
        // readers' loads are: a reader counted behind such a load does not find it. One counted
        // before has taken itself off, which the load of zero acquired. So `give_up`'s promise
        // holds, and each is taken out of its bag once.
        unsafe { free(what) };
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        // Pins borrow it, so there is none.
        self.collect();
    }
}

impl Pin<'_> {
    /// Whether it protects what is under `epochs`.
    pub(crate) fn is_of(&self, epochs: &Epochs) -> bool {
        std::ptr::eq(self.epochs, epochs)
    }

    pub(crate) fn epochs(&self) -> &Epochs {
        self.epochs
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.reading.fetch_sub(1, Ordering::Release);
    }
}
