//! The thread that keeps one processor awake.
//!
//! Everybody who wants the processor has it before this thread, which offers it in each pass
//! (sched_yield: others of lowest priority have it, too). So when it runs, all that ran
//! here sleeps; and when it notices that it did not run for a moment, somebody has been here
//! and has gone to sleep: on the classic transport most likely a caller that waits for
//! an answer. Then it looks for a request and has it served on this processor, where
//! the caller will wake. The other processors' pollers noticed nothing and leave it alone, but
//! for a look now and then (`LATE`) for requests whose caller goes on, or waits behind others.
//!
//! It serves nothing itself, and takes no lock: at its priority it might stop in the middle.

use super::{Alone, Polling};
use crate::classic::Servers;
use crate::sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

/// A pass takes a third of this if nobody else wants to run; a switch to another thread and
/// back takes longer.
const GAP: Duration = Duration::from_nanos(900);
/// Twice the time in which a caller's own processor has found its request.
const LATE: Duration = Duration::from_micros(20);
/// Passes between two looks at what was served, whose cache lines servers write to.
const SELDOM: u64 = 16;

pub(super) type Passes = Arc<Alone<AtomicU64>>;

pub(super) struct Poller {
    polling: Arc<Polling>,
    processor: usize,
    servers: Option<Arc<Servers>>,
    passes: Passes,
}

impl Poller {
    pub(super) fn new(
        polling: &Arc<Polling>,
        processor: usize,
        servers: Option<&Arc<Servers>>,
    ) -> Poller {
        let (polling, servers) = (polling.clone(), servers.cloned());
        Poller { polling, processor, servers, passes: Passes::default() }
    }

    /// How often it came to run.
    pub(super) fn passes(&self) -> Passes {
        self.passes.clone()
    }

    /// `coming` goes when it has its place: from then on it asks the kernel for nothing.
    pub(super) fn run(self, coming: Sender<()>) {
        if let Err(error) = sys::pin_to(self.processor).and_then(|()| sys::lowest_priority()) {
            // One that may wander, or that takes time from others, is worse than none.
            tracing::debug!(processor = self.processor, "no polling there: {error}");
            return;
        }
        drop(coming);
        while self.polling.wait() {
            self.poll();
        }
    }

    fn poll(&self) {
        let limit = self.polling.limit.as_nanos() as u64;
        let (gap, late) = (GAP.as_nanos() as u64, LATE.as_nanos() as u64);
        let start = self.polling.nanos();
        // When it ran, looked, and heard of a request.
        let (mut ran, mut looked, mut heard) = (start, 0, start);
        let mut served = self.polling.served_anywhere();
        let mut pass = self.passes.0.load(Ordering::Relaxed);
        while self.polling.is_on() {
            thread::yield_now();
            pass += 1;
            self.passes.0.store(pass, Ordering::Relaxed);
            let now = self.polling.nanos();
            let others_ran = now - ran > gap;
            let looks = others_ran || now - looked > late;
            // Whom it calls runs at once, and his caller behind him.
            let called = looks && self.look();
            if others_ran || pass.is_multiple_of(SELDOM) {
                let now_served = self.polling.served_anywhere();
                if std::mem::replace(&mut served, now_served) != now_served {
                    heard = now;
                }
            }
            if now - heard > limit {
                self.polling.ask_end();
            }
            ran = now;
            if looks {
                looked = self.polling.nanos();
                ran = if called { 0 } else { looked };
            }
        }
    }

    /// True if somebody was called.
    fn look(&self) -> bool {
        self.servers.as_ref().is_some_and(|servers| servers.look(self.processor))
    }
}
