//! Who is inside an epoch: a counter that sealing waits for.
//!
//! Invariant: after `seal` returned no operation is inside and none will enter. Operations
//! inside never wait for I/O (they read before they enter), so `seal` is short.
//!
//! The counter is split over cache lines, since every operation of every thread touches it.
//! `sync` stands for the standard library, or for loom's model of it (tests/lockfree).

use crate::sync::{AtomicBool, AtomicUsize, LANES, Ordering, fence, relax, thread_number};

#[repr(align(128))]
struct Lane(AtomicUsize);

/// Counts who is inside an epoch, and closes behind the last of them.
pub struct Gate {
    lanes: Box<[Lane]>,
    sealed: AtomicBool,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

impl Gate {
    /// Open, nobody inside.
    pub fn new() -> Gate {
        Gate {
            lanes: (0..LANES).map(|_| Lane(AtomicUsize::new(0))).collect(),
            sealed: AtomicBool::new(false),
        }
    }

    /// Lets operations in again after `seal`: the epoch was only held still for a moment.
    pub fn reopen(&self) {
        self.sealed.store(false, Ordering::Release);
    }

    /// Enters, or says that the epoch is over or held still. The caller pairs it with `leave`.
    pub fn enter(&self) -> Option<Active> {
        // Who waits for it to open again and asks often only reads: counts that come and go look like operations
        // that are inside, and whoever seals waits for those.
        if self.sealed.load(Ordering::Relaxed) {
            return None;
        }
        let lane = thread_number() % LANES;
        // A fence on both sides: either the sealer sees our count or we see its flag. Where it
        // has opened again, we see what it did while the epoch was held still, too.
        self.lanes[lane].0.fetch_add(1, Ordering::Acquire);
        fence(Ordering::SeqCst);
        if self.sealed.load(Ordering::Acquire) {
            self.lanes[lane].0.fetch_sub(1, Ordering::Release);
            return None;
        }
        Some(Active(lane))
    }

    /// Ends what `enter` began.
    pub fn leave(&self, active: Active) {
        let before = self.lanes[active.0].0.fetch_sub(1, Ordering::Release);
        assert!(before > 0, "left an epoch more often than entered");
    }

    /// Returns when all who are inside now have left. Others may come in meanwhile, and who has left is not told
    /// from them; so it gives up after tens of milliseconds, for who looks again whether that is so. False: it has.
    pub fn wait_for_those_inside(&self) -> bool {
        const MOST: u32 = 1000;
        fence(Ordering::SeqCst);
        let mut spins = 0;
        for lane in &self.lanes {
            while lane.0.load(Ordering::Acquire) != 0 && spins < MOST {
                spins += 1;
                relax(spins);
            }
        }
        spins < MOST
    }

    /// Somebody is inside, or looks whether he may be.
    pub(super) fn looks_occupied(&self) -> bool {
        self.lanes.iter().any(|lane| lane.0.load(Ordering::Acquire) != 0)
    }

    /// Lets nobody in any more and waits for those inside.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        let mut spins = 0;
        while self.looks_occupied() {
            spins += 1;
            relax(spins);
        }
    }
}

/// Proof of having entered.
#[must_use]
pub struct Active(usize);
