//! What the gate needs of the standard library, so that a test can put a model in its place.

pub use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use std::cell::Cell;

pub const LANES: usize = 32;

/// A number of this thread, spread evenly.
pub fn lane_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static LANE: Cell<usize> = const { Cell::new(usize::MAX) });
    LANE.with(|lane| {
        if lane.get() == usize::MAX {
            lane.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        lane.get()
    })
}

/// Waits a little, longer after many times.
pub fn relax(times: u32) {
    if times < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
