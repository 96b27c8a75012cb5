//! Who is inside an epoch: a counter that sealing waits for.
//!
//! Invariant: after `seal` returned no operation is inside and none will enter. Operations
//! inside never wait for I/O (they read before they enter), so `seal` is short.
//!
//! The counter is split over cache lines, since every operation of every thread touches it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const LANES: usize = 32;

#[repr(align(128))]
struct Lane(AtomicUsize);

pub struct Gate {
    lanes: Box<[Lane]>,
    sealed: AtomicBool,
}

/// The lane of this thread.
fn lane_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static LANE: Cell<usize> = const { Cell::new(usize::MAX) });
    LANE.with(|lane| {
        if lane.get() == usize::MAX {
            lane.set(NEXT.fetch_add(1, Ordering::Relaxed) % LANES);
        }
        lane.get()
    })
}

impl Gate {
    pub fn new() -> Gate {
        Gate {
            lanes: (0..LANES).map(|_| Lane(AtomicUsize::new(0))).collect(),
            sealed: AtomicBool::new(false),
        }
    }

    /// Enters, or says that the epoch is over. The caller pairs it with `leave`.
    pub fn enter(&self) -> Option<Active> {
        let lane = lane_index();
        // SeqCst on both sides: either the sealer sees our count or we see its flag.
        self.lanes[lane].0.fetch_add(1, Ordering::SeqCst);
        if self.sealed.load(Ordering::SeqCst) {
            self.lanes[lane].0.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        Some(Active(lane))
    }

    pub fn leave(&self, active: Active) {
        let before = self.lanes[active.0].0.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "left an epoch more often than entered");
    }

    /// Lets nobody in any more and waits for those inside.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::SeqCst);
        let mut spins = 0u32;
        while self.lanes.iter().any(|lane| lane.0.load(Ordering::SeqCst) != 0) {
            spins += 1;
            if spins < 64 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// Proof of having entered.
#[must_use]
pub struct Active(usize);
