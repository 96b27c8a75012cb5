//! Something that is to be found right once, before anybody relies on it.
//!
//! Invariant: whoever is told that it is right sees what the one saw and did who found it so;
//! while one looks the others wait for him, and what was found wrong is looked at again.
//! (tests/lockfree)

use super::sync::{AtomicBool, Mutex, Ordering, Rank};

pub(super) struct Proof {
    good: AtomicBool,
    turn: Mutex<()>,
}

impl Default for Proof {
    fn default() -> Proof {
        Proof { good: AtomicBool::new(false), turn: Mutex::new(Rank::GroupProof, ()) }
    }
}

impl Proof {
    /// There is nothing to look at.
    pub(super) fn needless(&self) {
        self.good.store(true, Ordering::Release);
    }

    /// One load once it is known to be right.
    pub(super) fn is_good(&self) -> bool {
        self.good.load(Ordering::Acquire)
    }

    /// Runs `check` unless somebody has found it right already.
    pub(super) fn once<E>(&self, check: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let _turn = self.turn.lock();
        if !self.is_good() {
            check()?;
            self.needless();
        }
        Ok(())
    }
}
