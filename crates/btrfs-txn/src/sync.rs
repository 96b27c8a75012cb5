//! What lock-free code needs of the libraries, so that a test can put loom's model in its place
//! (tests/lockfree): whatever is modelled takes its atomics and its locks from here.

pub(crate) use locks::{Mutex, MutexGuard, Rank, thread_number};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use std::time::Duration;

/// Parts of a gate's counter.
/// Chosen, not measured.
pub(crate) const LANES: usize = 32;

/// What is waited for takes microseconds, or its thread has lost its processor.
/// Chosen, not measured.
const SPINS: u32 = 256;
/// Until whoever has lost it has it again.
/// Chosen, not measured.
const NAP: Duration = Duration::from_micros(50);

/// Waits a little, longer after many times. It never yields: who does gives up what is left of its slice,
/// and on Linux 6.18 comes behind all others that are ready, with 32 callers on two processors for 7 to 9
/// milliseconds instead of the microseconds that an epoch is held still. Who sleeps keeps its place.
pub(crate) fn relax(times: u32) {
    match times {
        0..SPINS => std::hint::spin_loop(),
        _ => std::thread::sleep(NAP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn who_waits_for_long_sleeps_each_time() {
        for times in SPINS..SPINS + 64 {
            let start = Instant::now();
            relax(times);
            // One that yields comes back at once where nobody else is ready.
            assert!(start.elapsed() >= NAP, "after {times} times");
        }
    }
}
