//! src/sync.rs as loom's models see it.

pub use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::cell::Cell;
pub use testkit::model_locks::{Mutex, Rank};

pub const BITS: u32 = 1;
pub const PLACES: usize = 3;
pub const BATCH: usize = 1;

pub fn full_fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

loom::thread_local! {
    static PLACE: Cell<usize> = Cell::new(0);
}

/// This thread's place from now on. Numbers of loom's threads are new in each run, and what a
/// model does must not depend on them.
pub fn sit_at(place: usize) {
    PLACE.with(|mine| mine.set(place));
}

pub fn place() -> usize {
    PLACE.with(Cell::get)
}
