//! Ends polling: when pollers have heard of no request for long enough, and where others have
//! work for a processor.
//!
//! It is of normal priority, so it comes to run when pollers do not, and looks several
//! hundred times a second for as long as they are at it. A poller that did not run for a whole
//! tick, on a processor that served no request meanwhile, is kept from it by others: that
//! processor is not idle without polling either. On the classic transport it is also the
//! longest that a request waits for pollers to look.

use super::Polling;
use super::poller::Passes;
use super::rests::Rests;
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    Asked,
    OthersWork,
}

impl Watcher {
    pub(super) fn new(
        polling: &Arc<Polling>,
        watched: Vec<(usize, Passes)>,
        servers: Option<&Arc<Servers>>,
    ) -> Watcher {
        Watcher { polling: polling.clone(), watched, servers: servers.cloned() }
    }

    pub(super) fn run(self) {
        let mut rests = Rests::default();
        while self.polling.wait() {
            self.polling.end_asked.0.store(false, Ordering::SeqCst);
            let begin = Instant::now();
            let why = self.watch();
            match &self.servers {
                Some(servers) => servers.end_polling(),
                None => self.polling.end(),
            }
            if why == Why::OthersWork {
                let time = rests.after(begin.elapsed());
                tracing::trace!(?time, "others have work for a processor: polling rests");
                self.polling.rest(time);
            }
        }
    }

    /// Until it should end.
    fn watch(&self) -> Why {
        let mut before = self.look();
        loop {
            let looks = self.looks();
            let begin = Instant::now();
            // Woken early at times, for something else.
            while let Some(left) = TICK.checked_sub(begin.elapsed()) {
                if self.is_asked() {
                    return Why::Asked;
                }
                thread::park_timeout(left);
            }
            let now = self.look();
            if now.iter().zip(&before).any(|(now, before)| now == before) || self.waits(looks) {
                return Why::OthersWork;
            }
            before = now;
        }
    }

    /// By a poller that heard of no request, or at the mount's end.
    fn is_asked(&self) -> bool {
        self.polling.end_asked.0.load(Ordering::SeqCst) || !self.polling.is_on()
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
