//! What lock-free code needs of the libraries, so that a test can put loom's model in its place
//! (tests/lockfree): whatever is modelled takes its atomics and its locks from here.

pub(crate) use locks::{Mutex, Rank};
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bits of a number that one node decides.
/// Chosen, not measured.
pub(crate) const BITS: u32 = 6;
/// Places in which threads mark that they are reading.
/// Chosen, not measured.
pub(crate) const PLACES: usize = 64;
/// How much is given up in a place before somebody looks whether it can be freed.
/// Chosen, not measured.
pub(crate) const BATCH: usize = 32;

/// Between a mark and the loads that it protects, and between an unlinking and the look at the
/// marks. Nothing here: all four are sequentially consistent themselves. loom takes those for
/// acquire and release, and knows the order by fences alone.
pub(crate) fn full_fence() {}

thread_local! {
    static PLACE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PLACES
    };
}

/// Where this thread marks: its own, as long as there are not more threads than places.
pub(crate) fn place() -> usize {
    PLACE.with(|place| *place)
}
