//! Ends polling where others have work for a processor.
//!
//! It is of normal priority, so it comes to run when pollers do not, and looks several
//! hundred times a second for as long as they are at it. A poller that did not run for a whole
//! tick, on a processor that served no request meanwhile, is kept from it by others: that
//! processor is not idle without polling either. On the classic transport it is also the
//! longest that a request waits for pollers to look.

use super::poller::Passes;
use super::rests::Rests;
use super::{Polling, end};
use crate::classic::Servers;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(2);

pub(super) struct Watcher {
    polling: Arc<Polling>,
    watched: Vec<(usize, Passes)>,
    servers: Option<Arc<Servers>>,
}

/// What was seen of one processor: whether its poller ran, and requests were served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sight {
    passes: u64,
    served: u64,
}

impl Watcher {
    pub fn new(
        polling: &Arc<Polling>,
        watched: Vec<(usize, Passes)>,
        servers: Option<&Arc<Servers>>,
    ) -> Watcher {
        Watcher { polling: polling.clone(), watched, servers: servers.cloned() }
    }

    pub fn run(self) {
        let mut rests = Rests::default();
        while self.polling.wait() {
            let begin = Instant::now();
            if self.others_have_work() {
                end(&self.polling, self.servers.as_ref());
                let time = rests.after(begin.elapsed());
                tracing::trace!(?time, "others have work for a processor: polling rests");
                self.polling.rest(time);
            }
        }
    }

    /// False when polling is off.
    fn others_have_work(&self) -> bool {
        let mut before = self.look();
        loop {
            let looks = self.looks();
            let begin = Instant::now();
            // Woken early at times, for something else.
            while let Some(left) = TICK.checked_sub(begin.elapsed()) {
                if !self.polling.is_on() {
                    return false;
                }
                thread::park_timeout(left);
            }
            if !self.polling.is_on() {
                return false;
            }
            let now = self.look();
            if now.iter().zip(&before).any(|(now, before)| now == before) || self.waits(looks) {
                return true;
            }
            before = now;
        }
    }

    fn look(&self) -> Vec<Sight> {
        let sight = |(processor, passes): &(usize, Passes)| Sight {
            passes: passes.0.load(Ordering::Relaxed),
            served: self.polling.served_on(*processor),
        };
        self.watched.iter().map(sight).collect()
    }

    fn looks(&self) -> u64 {
        self.servers.as_ref().map_or(0, |servers| servers.looks())
    }

    /// True if a request waits and nobody looked since there had been so many looks.
    fn waits(&self, looks: u64) -> bool {
        self.servers.as_ref().is_some_and(|servers| servers.looks() == looks && servers.is_ready())
    }
}
