//! Keeps processors from halting while requests come in quick succession.
//!
//! A request sends two threads to sleep and wakes two. Where an idle processor halts, a
//! wake-up takes several times as long as serving the request does (in a virtual machine
//! above all: the host has to be asked), and Linux prefers idle processors: callers and
//! servers wander, and wait for a halted processor at each step. So while requests come, a
//! thread of lowest priority (nice 19) on each processor keeps it awake: none counts as idle,
//! callers stay where they are served, and nobody waits for a halted one. Hypervisors
//! know this as halt polling; here it is for callers of one mount, it needs no right, and it
//! ends with them.
//!
//! Who wants the processor has it before a poller: it yields all the time, and is of no
//! weight beside others. Whoever serves requests is of normal priority, as without it. Where
//! others have work for a processor, there is nothing to gain, and polling rests (`watcher`).
//! That is told by our own threads, which do not come to run; the accounts of the machine know
//! nothing of containers.
//!
//! On the classic transport pollers also find out on which processor a request waits
//! (`poller`), and call who serves it there (`classic::Servers`).
//!
//! Invariant: `on` is set and no poller runs only for as long as threads need to wake or to
//! see that it ended. It does not know requests, only that some were served.

mod machine;
mod poller;
mod rests;
mod watcher;

pub(crate) use machine::polling_pays;

use crate::classic::Servers;
use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Without a request for so long, processors may halt. Callers that do a little of their own
/// between requests (tar, cp) take some tens of microseconds for it.
pub(crate) const USUAL: Duration = Duration::from_micros(100);
/// So many requests, each soon after the one before: now is when polling begins. A single
/// request is not worth the wake-ups, nor is opening a file.
const SUCCESSION: u32 = 16;

/// A value on a cache line of its own.
#[repr(align(128))]
#[derive(Default, Debug)]
struct Alone<T>(T);

pub(crate) struct Polling {
    /// Zero: never.
    limit: Duration,
    clock: Instant,
    on: Alone<AtomicBool>,
    end_asked: Alone<AtomicBool>,
    /// Requests, by the processor that served them.
    served: Box<[Alone<AtomicU64>]>,
    succession: Alone<Succession>,
    /// Pollers and their watcher, once they are there.
    threads: OnceLock<Vec<Thread>>,
    ended: AtomicBool,
}

#[derive(Default, Debug)]
struct Succession {
    /// When the last request was served, in nanoseconds of `clock`; kept while off.
    last: AtomicU64,
    length: AtomicU32,
    /// Polling does not begin before.
    rests_until: AtomicU64,
}

impl Polling {
    /// On a machine with processors of numbers below `processors`.
    pub(crate) fn new(limit: Duration, processors: usize) -> Polling {
        Polling {
            limit,
            clock: Instant::now(),
            on: Alone::default(),
            end_asked: Alone::default(),
            served: (0..processors).map(|_| Alone::default()).collect(),
            succession: Alone::default(),
            threads: OnceLock::new(),
            ended: AtomicBool::new(false),
        }
    }

    fn nanos(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// A request was served.
    pub(crate) fn served(&self) {
        if self.threads.get().is_none() {
            return;
        }
        if let Some(served) = self.served.get(sys::this_cpu()) {
            served.0.fetch_add(1, Ordering::Relaxed);
        }
        if !self.is_on() {
            self.succeeds();
        }
    }

    /// Counts requests that follow each other; enough of them begin it. Callers at once
    /// may count wrong by a few.
    fn succeeds(&self) {
        let Succession { last, length, rests_until } = &self.succession.0;
        let now = self.nanos();
        let before = last.swap(now, Ordering::Relaxed);
        // The pause of the caller, and the time that a request takes.
        let soon = self.limit * 2;
        if now.saturating_sub(before) > soon.as_nanos() as u64 {
            length.store(0, Ordering::Relaxed);
        } else if length.fetch_add(1, Ordering::Relaxed) >= SUCCESSION
            && now >= rests_until.load(Ordering::Relaxed)
        {
            length.store(0, Ordering::Relaxed);
            self.begin();
        }
    }

    fn served_on(&self, processor: usize) -> u64 {
        self.served.get(processor).map_or(0, |served| served.0.load(Ordering::Relaxed))
    }

    fn served_anywhere(&self) -> u64 {
        self.served.iter().map(|served| served.0.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn begin(&self) {
        if !self.on.0.swap(true, Ordering::SeqCst) {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        for thread in self.threads.get().into_iter().flatten() {
            thread.unpark();
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.0.load(Ordering::SeqCst)
    }

    /// A poller heard of no request for long enough. Its watcher ends it, who may take locks.
    fn ask_end(&self) {
        if !self.end_asked.0.swap(true, Ordering::SeqCst)
            && let Some(watcher) = self.threads.get().and_then(|threads| threads.last())
        {
            watcher.unpark();
        }
    }

    /// Pollers go to sleep. Who relies on their looking makes sure of another first
    /// (`Servers::end_polling`).
    pub(crate) fn end(&self) {
        self.on.0.store(false, Ordering::SeqCst);
    }

    fn rest(&self, time: Duration) {
        let until = self.nanos() + time.as_nanos() as u64;
        self.succession.0.rests_until.store(until, Ordering::Relaxed);
    }

    /// Sleeps until it is on; false at the end.
    fn wait(&self) -> bool {
        loop {
            if self.ended.load(Ordering::SeqCst) {
                return false;
            }
            if self.is_on() {
                return true;
            }
            thread::park();
        }
    }
}

/// The threads; they end when this is dropped.
pub(crate) struct Pollers {
    polling: Arc<Polling>,
    threads: Vec<JoinHandle<()>>,
}

type Work = Box<dyn FnOnce() + Send>;

impl Pollers {
    /// One for each of these processors, and one that watches over them. With `servers` they
    /// look for requests, too. All have their places when this returns.
    pub(crate) fn start(
        polling: &Arc<Polling>,
        processors: &[usize],
        servers: Option<&Arc<Servers>>,
        mut spawn: impl FnMut(String, Work) -> vfs::Result<JoinHandle<()>>,
    ) -> vfs::Result<Option<Pollers>> {
        if polling.limit.is_zero() {
            return Ok(None);
        }
        let mut pollers = Pollers { polling: polling.clone(), threads: Vec::new() };
        let mut watched = Vec::new();
        let (coming, there) = channel();
        for &processor in processors {
            let poller = poller::Poller::new(polling, processor, servers);
            watched.push((processor, poller.passes()));
            let coming = coming.clone();
            let work = Box::new(move || poller.run(coming));
            pollers.threads.push(spawn(format!("fuse-poll-{processor}"), work)?);
        }
        let watcher = watcher::Watcher::new(polling, watched, servers);
        pollers.threads.push(spawn("fuse-poll".into(), Box::new(move || watcher.run()))?);
        let threads = pollers.threads.iter().map(|thread| thread.thread().clone()).collect();
        // All have their places: nobody sends, it ends with the last of them.
        drop(coming);
        let _ = there.recv();
        let _ = polling.threads.set(threads);
        Ok(Some(pollers))
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.polling.ended.store(true, Ordering::SeqCst);
        self.polling.end();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> Polling {
        let polling = Polling::new(USUAL, 1);
        polling.threads.set(Vec::new()).unwrap();
        polling
    }

    #[test]
    fn a_quick_succession_begins_it() {
        // Far longer than this test takes.
        let polling = Polling { limit: Duration::from_secs(100), ..started() };
        for _ in 0..SUCCESSION {
            polling.served();
            assert!(!polling.is_on());
        }
        polling.served();
        assert!(polling.is_on());
    }

    #[test]
    fn a_slow_one_does_not() {
        let polling = Polling { limit: Duration::from_nanos(1), ..started() };
        for _ in 0..SUCCESSION * 3 {
            polling.served();
            thread::sleep(Duration::from_micros(1));
        }
        assert!(!polling.is_on());
    }

    #[test]
    fn it_rests() {
        let polling = Polling { limit: Duration::from_secs(100), ..started() };
        polling.rest(Duration::from_secs(100));
        (0..SUCCESSION * 3).for_each(|_| polling.served());
        assert!(!polling.is_on());
        polling.rest(Duration::ZERO);
        (0..=SUCCESSION).for_each(|_| polling.served());
        assert!(polling.is_on());
    }

    #[test]
    fn without_pollers_nothing_begins() {
        let polling = Polling::new(Duration::from_secs(100), 1);
        (0..SUCCESSION * 3).for_each(|_| polling.served());
        assert!(!polling.is_on());
    }

    #[test]
    fn pollers_sleep_after_the_last_request_and_end() {
        let polling = Arc::new(Polling::new(Duration::from_millis(5), 1));
        let spawn = |_: String, work: Work| Ok(thread::spawn(work));
        let pollers = Pollers::start(&polling, &[0], None, spawn).unwrap().unwrap();
        for _ in 0..3 {
            polling.begin();
            while polling.is_on() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        polling.begin();
        drop(pollers);
        assert!(!polling.is_on());
    }
}
