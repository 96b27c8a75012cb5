//! What lock-free code needs of the libraries, so that a test can put loom's model in its place
//! (tests/lockfree): whatever is modelled takes its atomics and its locks from here.

pub(crate) use locks::{Mutex, MutexGuard, Rank, thread_number};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use std::time::Duration;

/// Parts of a gate's counter.
/// Chosen, not measured.
pub(crate) const LANES: usize = 32;

/// Waits a little, longer after many times. Who is waited for may have lost its processor, and
/// one that yields takes as much of it as one that works: in the end it sleeps.
pub(crate) fn relax(times: u32) {
    /// What is waited for takes microseconds, or its thread has lost its processor.
    /// Chosen, not measured.
    const NAP: Duration = Duration::from_micros(50);
    match times {
        0..64 => std::hint::spin_loop(),
        64..128 => std::thread::yield_now(),
        _ => std::thread::sleep(NAP),
    }
}
