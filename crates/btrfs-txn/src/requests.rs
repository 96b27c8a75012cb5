//! Asking for a commit without knowing who commits.
//!
//! Who needs one soon (the delta is large, chunks are to be on the volume) leaves word here and
//! goes on; the background driver waits here. Who waits for a commit to end is counted, so that
//! one at work makes haste.
//!
//! What it does not know: what a commit does.

use crate::turns::Wanted;
use locks::{Condvar, Mutex, Rank};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Word that is left for who commits.
pub struct CommitRequests {
    signal: Mutex<Signal>,
    changed: Condvar,
    /// How many wait for a running commit to end.
    waiting: AtomicUsize,
}

#[derive(Clone, Copy, Default)]
struct Signal {
    wanted: Option<Wanted>,
    stop: bool,
}

/// Somebody waits for a commit until this is dropped.
pub struct Waiting<'r>(&'r CommitRequests);

impl Default for CommitRequests {
    fn default() -> CommitRequests {
        CommitRequests {
            signal: Mutex::new(Rank::Leaf, Signal::default()),
            changed: Condvar::default(),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl CommitRequests {
    /// Asks the background driver for a commit soon.
    pub fn wake(&self) {
        self.ask(Wanted::Everything);
    }

    /// As `wake`, for new chunks alone: content may stay in memory.
    pub fn wake_for_chunks(&self) {
        self.ask(Wanted::WrittenBack);
    }

    fn ask(&self, what: Wanted) {
        let mut signal = self.signal.lock();
        if signal.wanted < Some(what) {
            signal.wanted = Some(what);
            self.changed.notify_one();
        }
    }

    /// The background driver is to end.
    pub fn stop(&self) {
        self.signal.lock().stop = true;
        self.changed.notify_one();
    }

    /// Waits to be woken, until `until` at most, when `otherwise` is wanted; `None` when it is time to
    /// stop.
    pub fn wait(&self, until: Instant, otherwise: Wanted) -> Option<Wanted> {
        let mut signal = self.signal.lock();
        if signal.wanted.is_none() && !signal.stop {
            self.changed.wait_until(&mut signal, until);
        }
        let wanted = signal.wanted.take().unwrap_or(otherwise);
        (!signal.stop).then_some(wanted)
    }

    /// The caller waits for a commit from here on.
    pub fn begin_waiting(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Somebody waits for the running commit, or for the next.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 || self.signal.lock().stop
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
