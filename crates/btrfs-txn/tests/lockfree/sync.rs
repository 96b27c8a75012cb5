//! src/sync.rs as loom's models see it.

pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
pub use testkit::model_locks::{Mutex, MutexGuard, Rank};

use std::cell::Cell;

pub const LANES: usize = 2;

loom::thread_local!(static LANE: Cell<usize> = Cell::new(0));

pub fn thread_number() -> usize {
    LANE.with(Cell::get)
}

/// The lane of this thread from now on.
pub fn use_lane(lane: usize) {
    LANE.with(|mine| mine.set(lane));
}

pub fn relax(_: u32) {
    loom::thread::yield_now();
}
