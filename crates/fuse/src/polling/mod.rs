//! Keeps processors from halting while requests come in quick succession.
//!
//! A request sends two threads to sleep and wakes two. Where an idle processor halts, a
//! wake-up takes several times as long as serving the request does (in a virtual machine
//! above all: the host has to be asked), and Linux prefers idle processors: callers and
//! servers wander, and wait for a halted processor at each step. So while requests come, a
//! thread of lowest priority (nice 19) keeps each processor awake that serves none: it does
//! not count as idle, and callers stay where they are served. Hypervisors know this as halt
//! polling; here it is for callers of one mount, it needs no right, and it ends with them.
//!
//! Whoever serves requests is of normal priority, as without it. A poller yields all the time,
//! and keeps away from processors where callers are: Linux lets it go first there at times,
//! though its priority is the lowest, when they have had more than their share (for 30 ms,
//! measured). Where others have work for a processor, there is nothing to gain, and polling rests
//! (`watcher`). That is told by our own threads, which do not come to run; the accounts of the
//! machine know nothing of containers.
//!
//! Server threads of io_uring are pinned, and the kernel asks the one at hand. Those of the
//! classic transport are all asked by one queue: they *follow* callers, pinned to the processor
//! where a poller notices them (`poller`).
//!
//! No lock is taken here. It does not know requests, only who made one and that it was served.

mod machine;
mod poller;
mod rests;
mod watcher;

pub(crate) use machine::polling_pays;

use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Without a request for so long, processors may halt. Callers that do a little of their own
/// between requests (tar, cp) take some tens of microseconds for it; the host of a virtual
/// machine may take a processor for longer.
pub(crate) const USUAL: Duration = Duration::from_micros(300);
/// So many requests, each soon after the one before: now is when polling begins. A single
/// request is not worth the wake-ups, nor is opening a file.
/// Not measured apart from polling as a whole.
const SUCCESSION: u32 = 16;

const NOWHERE: usize = usize::MAX;

/// A value on a cache line of its own.
#[repr(align(128))]
#[derive(Default, Debug)]
struct Alone<T>(T);

pub(crate) struct Polling {
    /// Zero: never.
    limit: Duration,
    clock: Instant,
    /// Whether servers follow callers.
    follows: AtomicBool,
    on: Alone<AtomicBool>,
    end_asked: Alone<AtomicBool>,
    processors: Box<[Alone<Processor>]>,
    callers: Alone<Callers>,
    succession: Alone<Succession>,
    /// Once pollers are there.
    watcher: OnceLock<Thread>,
    ended: AtomicBool,
}

#[derive(Default, Debug)]
struct Processor {
    /// Requests that it served.
    served: AtomicU64,
    /// How often its poller came to run.
    passes: AtomicU64,
    /// Callers are served there: no poller shall run.
    busy: AtomicBool,
    poller: OnceLock<Thread>,
}

#[derive(Default, Debug)]
struct Callers {
    /// Who made the last request, and where it was served.
    last: AtomicU64,
    /// Where servers that follow are pinned.
    home: AtomicUsize,
    /// How often a caller or the servers' home went to another processor.
    moves: AtomicU64,
    /// How often another caller came after one.
    turns: AtomicU64,
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
            follows: AtomicBool::new(false),
            on: Alone::default(),
            end_asked: Alone::default(),
            processors: (0..processors).map(|_| Alone::default()).collect(),
            callers: Alone(Callers { home: AtomicUsize::new(NOWHERE), ..Callers::default() }),
            succession: Alone::default(),
            watcher: OnceLock::new(),
            ended: AtomicBool::new(false),
        }
    }

    /// Servers do from now on: to be said before there are pollers.
    pub(crate) fn servers_follow(&self) {
        self.follows.store(true, Ordering::Relaxed);
    }

    fn follows(&self) -> bool {
        self.follows.load(Ordering::Relaxed)
    }

    fn nanos(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// A request of that process was served.
    pub(crate) fn served(&self, caller: u32) {
        if self.watcher.get().is_none() {
            return;
        }
        let here = sys::this_cpu();
        let Some(processor) = self.processors.get(here) else { return };
        processor.0.served.fetch_add(1, Ordering::Relaxed);
        if !self.is_on() {
            return self.succeeds(here);
        }
        // FORGETs and what the kernel does by itself have no caller.
        if caller == 0 {
            return;
        }
        let now = u64::from(caller) << 32 | here as u64;
        let before = self.callers.0.last.swap(now, Ordering::Relaxed);
        if before != now {
            let Callers { moves, turns, .. } = &self.callers.0;
            let counter = if before >> 32 == u64::from(caller) { moves } else { turns };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts requests that follow each other; enough of them begin it. Callers at once
    /// may count wrong by a few.
    fn succeeds(&self, here: usize) {
        let Succession { last, length, rests_until } = &self.succession.0;
        let now = self.nanos();
        let before = last.swap(now, Ordering::Relaxed);
        if now.saturating_sub(before) > self.limit.as_nanos() as u64 {
            length.store(0, Ordering::Relaxed);
        } else if length.fetch_add(1, Ordering::Relaxed) >= SUCCESSION
            && now >= rests_until.load(Ordering::Relaxed)
        {
            length.store(0, Ordering::Relaxed);
            self.begin(here);
        }
    }

    fn served_anywhere(&self) -> u64 {
        self.processors.iter().map(|one| one.0.served.load(Ordering::Relaxed)).sum()
    }

    /// `here` a request was served just now.
    pub(crate) fn begin(&self, here: usize) {
        if self.is_on() {
            return;
        }
        // Servers that follow were on any processor till now: what was known before is better.
        let home = &self.callers.0.home;
        let _ = home.compare_exchange(NOWHERE, here, Ordering::Relaxed, Ordering::Relaxed);
        self.all_poll_but(if self.follows() { home.load(Ordering::Relaxed) } else { here });
        if !self.on.0.swap(true, Ordering::SeqCst) {
            self.wake_all();
        }
    }

    /// What was learned of the others is forgotten.
    fn all_poll_but(&self, here: usize) {
        for (number, processor) in self.processors.iter().enumerate() {
            processor.0.busy.store(number == here, Ordering::SeqCst);
        }
    }

    fn wake_all(&self) {
        let pollers = self.processors.iter().filter_map(|one| one.0.poller.get());
        pollers.chain(self.watcher.get()).for_each(Thread::unpark);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.0.load(Ordering::SeqCst)
    }

    /// The processor to which servers that follow are to be pinned; none while it is off.
    pub(crate) fn home(&self) -> Option<usize> {
        (self.follows() && self.is_on()).then(|| self.callers.0.home.load(Ordering::Relaxed))
    }

    /// Callers are on that processor.
    fn moves_to(&self, processor: usize) {
        let before = self.callers.0.home.swap(processor, Ordering::Relaxed);
        self.callers.0.moves.fetch_add(1, Ordering::Relaxed);
        self.processors[processor].0.busy.store(true, Ordering::SeqCst);
        if before != processor {
            self.polls_again(before);
        }
    }

    fn polls_again(&self, processor: usize) {
        if let Some(processor) = self.processors.get(processor) {
            processor.0.busy.store(false, Ordering::SeqCst);
            processor.0.poller.get().inspect(|poller| poller.unpark());
        }
    }

    /// A poller heard of no request for long enough.
    fn ask_end(&self) {
        if !self.end_asked.0.swap(true, Ordering::SeqCst) {
            self.watcher.get().inspect(|watcher| watcher.unpark());
        }
    }

    fn end(&self) {
        self.on.0.store(false, Ordering::SeqCst);
    }

    fn rest(&self, time: Duration) {
        let until = self.nanos() + time.as_nanos() as u64;
        self.succession.0.rests_until.store(until, Ordering::Relaxed);
    }

    /// Sleeps until it is on (and that processor is not busy); false at the end.
    fn wait(&self, processor: Option<usize>) -> bool {
        loop {
            if self.ended.load(Ordering::SeqCst) {
                return false;
            }
            if self.is_on() && !processor.is_some_and(|number| self.is_busy(number)) {
                return true;
            }
            thread::park();
        }
    }

    fn is_busy(&self, processor: usize) -> bool {
        self.processors[processor].0.busy.load(Ordering::SeqCst)
    }
}

/// The threads; they end when this is dropped.
pub(crate) struct Pollers {
    polling: Arc<Polling>,
    threads: Vec<JoinHandle<()>>,
}

type Work = Box<dyn FnOnce() + Send>;

impl Pollers {
    /// One for each of these processors, and one that watches over them. All have their places
    /// when this returns.
    pub(crate) fn start(
        polling: &Arc<Polling>,
        processors: &[usize],
        mut spawn: impl FnMut(String, Work) -> vfs::Result<JoinHandle<()>>,
    ) -> vfs::Result<Option<Pollers>> {
        if polling.limit.is_zero() {
            return Ok(None);
        }
        let mut pollers = Pollers { polling: polling.clone(), threads: Vec::new() };
        let (coming, there) = channel();
        for &processor in processors {
            let (polling, coming) = (polling.clone(), coming.clone());
            let work = Box::new(move || poller::run(&polling, processor, coming));
            let thread = spawn(format!("fuse-poll-{processor}"), work)?;
            let _ = pollers.polling.processors[processor].0.poller.set(thread.thread().clone());
            pollers.threads.push(thread);
        }
        // All have their places: nobody sends, it ends with the last of them.
        drop(coming);
        let _ = there.recv();
        let watched = (polling.clone(), processors.to_vec());
        let work = Box::new(move || watcher::run(&watched.0, &watched.1));
        let watcher = spawn("fuse-poll".into(), work)?;
        let _ = polling.watcher.set(watcher.thread().clone());
        pollers.threads.push(watcher);
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

    const LONG: Duration = Duration::from_secs(100);

    fn started(limit: Duration) -> Polling {
        // As many as are asked for: this runs on any of them.
        let polling = Polling::new(limit, 1024);
        polling.watcher.set(thread::current()).unwrap();
        polling
    }

    #[test]
    fn a_quick_succession_begins_it() {
        // Far longer than this test takes.
        let polling = started(LONG);
        for _ in 0..SUCCESSION {
            polling.served(1);
            assert!(!polling.is_on());
        }
        polling.served(1);
        assert!(polling.is_on());
    }

    #[test]
    fn a_slow_one_does_not() {
        let polling = started(Duration::from_nanos(1));
        for _ in 0..SUCCESSION * 3 {
            polling.served(1);
            thread::sleep(Duration::from_micros(1));
        }
        assert!(!polling.is_on());
    }

    #[test]
    fn it_rests() {
        let polling = started(LONG);
        polling.rest(LONG);
        (0..SUCCESSION * 3).for_each(|_| polling.served(1));
        assert!(!polling.is_on());
        polling.rest(Duration::ZERO);
        (0..=SUCCESSION).for_each(|_| polling.served(1));
        assert!(polling.is_on());
    }

    #[test]
    fn without_pollers_nothing_begins() {
        let polling = Polling::new(LONG, 1024);
        (0..SUCCESSION * 3).for_each(|_| polling.served(1));
        assert!(!polling.is_on());
    }

    #[test]
    fn servers_follow_callers() {
        let polling = Polling::new(LONG, 4);
        polling.servers_follow();
        assert_eq!(polling.home(), None);
        polling.begin(1);
        assert_eq!(polling.home(), Some(1));
        assert_eq!([0, 1, 2, 3].map(|number| polling.is_busy(number)), [false, true, false, false]);
        polling.moves_to(3);
        assert_eq!(polling.home(), Some(3));
        assert_eq!([0, 1, 2, 3].map(|number| polling.is_busy(number)), [false, false, false, true]);
        polling.end();
        assert_eq!(polling.home(), None);
        let pinned = Polling::new(LONG, 4);
        pinned.begin(1);
        assert_eq!(pinned.home(), None);
    }

    #[test]
    fn pollers_sleep_after_the_last_request_and_end() {
        let processors = sys::usable_cpus();
        let count = processors.iter().max().unwrap() + 1;
        let polling = Arc::new(Polling::new(Duration::from_millis(5), count));
        let spawn = |_: String, work: Work| Ok(thread::spawn(work));
        let pollers = Pollers::start(&polling, &processors, spawn).unwrap().unwrap();
        for _ in 0..3 {
            polling.begin(processors[0]);
            while polling.is_on() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        polling.begin(processors[0]);
        drop(pollers);
        assert!(!polling.is_on());
    }
}
