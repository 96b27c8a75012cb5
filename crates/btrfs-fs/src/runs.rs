//! Work in a thread of its own that somebody may want to end earlier (a balance, a scrub).
//!
//! Invariant: its status says that it runs from the moment that it is begun until nothing of it is left; which run
//! of it this is counts up with the status held. So who waits for one to end is not held up by the next.
//!
//! What it does not know: what the work is, and how it looks whether it is to end.

use locks::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vfs::{Errno, Result};

/// How soon who waits hears of the end.
/// Chosen, not measured.
const LOOKS: Duration = Duration::from_millis(2);

/// Which run of the work it is.
#[derive(Default)]
pub(crate) struct Runs(AtomicU64);

impl Runs {
    /// Another begins, or goes on. The caller holds the status.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Makes the `wish` that the work ends, and returns when it has. `none`: it does not run.
    pub(crate) fn end<S>(
        &self,
        status: &Mutex<S>,
        is_running: impl Fn(&S) -> bool,
        wish: impl FnOnce(),
        none: Errno,
    ) -> Result<()> {
        let this = {
            let status = status.lock();
            if !is_running(&status) {
                return Err(none.into());
            }
            wish();
            self.0.load(Ordering::Acquire)
        };
        let goes_on = || {
            let status = status.lock();
            is_running(&status) && self.0.load(Ordering::Acquire) == this
        };
        while goes_on() {
            std::thread::sleep(LOOKS);
        }
        Ok(())
    }
}
