//! What lock-free code needs of the libraries, so that a test can put loom's model in its place
//! (tests/lockfree): whatever is modelled takes its atomics from here.

pub(crate) use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Slots of a block.
/// Chosen, not measured.
pub(crate) const SLOTS: usize = 64;
/// Blocks of a new table, and places in which threads note where they are.
/// Chosen, not measured.
pub(crate) const PLACES: usize = 16;

thread_local! {
    static PLACE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PLACES
    };
}

/// Where this thread begins: in a block of its own, as long as there are not more threads.
pub(crate) fn place() -> usize {
    PLACE.with(|place| *place)
}
