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
    content: bool,
    stop: bool,
}

/// What the background driver is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: the driver serves each; one passed over would be waited for in vain.
pub enum Request {
    /// A commit of this.
    Commit(Wanted),
    /// Content may be written back, without a commit.
    WriteBack,
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

    /// There is content that may be written back before the next commit.
    pub fn wake_for_content(&self) {
        let mut signal = self.signal.lock();
        if !signal.content {
            signal.content = true;
            self.changed.notify_one();
        }
    }

    /// Somebody wants a commit that has not begun.
    pub fn is_asked(&self) -> bool {
        let signal = self.signal.lock();
        signal.wanted.is_some() || signal.stop
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

    /// Waits to be woken, until `until` at most, when a commit of `otherwise` is wanted; `None` when it is time to
    /// stop.
    pub fn wait(&self, until: Instant, otherwise: Wanted) -> Option<Request> {
        let mut signal = self.signal.lock();
        if signal.wanted.is_none() && !signal.content && !signal.stop {
            self.changed.wait_until(&mut signal, until);
        }
        if signal.stop {
            return None;
        }
        // A commit that is due does not wait for content, of which there may be more at any time.
        if signal.wanted.is_none() && Instant::now() < until && std::mem::take(&mut signal.content)
        {
            return Some(Request::WriteBack);
        }
        // Nor does it become one of less because somebody asks for that again and again.
        let due = (Instant::now() >= until).then_some(otherwise);
        Some(Request::Commit(signal.wanted.take().max(due).unwrap_or(otherwise)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_commit_that_is_due_is_of_all_that_it_is_to_be_of() {
        let requests = CommitRequests::default();
        let (past, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        requests.wake_for_chunks();
        let due = requests.wait(past, Wanted::Everything);
        assert_eq!(due, Some(Request::Commit(Wanted::Everything)));
        requests.wake_for_chunks();
        let early = requests.wait(later, Wanted::Everything);
        assert_eq!(early, Some(Request::Commit(Wanted::WrittenBack)));
        requests.wake();
        let more = requests.wait(past, Wanted::WrittenBack);
        assert_eq!(more, Some(Request::Commit(Wanted::Everything)));
    }
}
