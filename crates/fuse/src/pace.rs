//! Keeps callers on the processor where they are served, while the machine has time to spare.
//!
//! Linux wakes the sender of a request on an idle processor if there is one, away from
//! where it slept and where its ring thread runs. The next request then moves both again.
//! In a virtual machine that made a request three times as long (36 us instead of 12).
//! A processor that runs nothing but threads of the class SCHED_IDLE counts as idle, so
//! callers stay with ring threads of that class. On a machine with other work the class
//! would starve them: so a watcher looks several times a second at how much idle time
//! there is and how long ring threads waited to run, and puts them into one class or the
//! other; a crowd of requests ends the idle class at once (`crowd.rs`). When no requests
//! come they wait in the normal class: a load that sets in all at once would starve them.
//!
//! Needs the right to leave the class again (CAP_SYS_NICE); without it nothing happens.
//! It does not know requests, only that some came.

use crate::dispatch::Dispatcher;
use crate::sys;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Machines with more ring threads than this are large ones, where idle processors are
/// woken quickly, and asking for each thread would take long.
const MOST_THREADS: usize = 64;
const TICK: Duration = Duration::from_millis(100);
const TICK_WITHOUT_REQUESTS: Duration = Duration::from_millis(500);

/// Shares of all processors' time that was idle: from here on there is time to spare, and
/// below there is not.
const IDLE_ENOUGH: f64 = 0.25;
const IDLE_TOO_LITTLE: f64 = 0.12;
/// Share of the time that one thread was ready and did not run, from which on it starves.
const STARVING: f64 = 0.4;
/// Ticks in the normal class after starving; doubled each time.
const PENALTY: std::ops::RangeInclusive<u32> = 20..=1200;
/// Ticks in the normal class after a crowd was seen.
const AFTER_A_CROWD: u32 = 20;

/// The ring threads that live, by their ids: a number of one that has ended may be
/// another program's by now.
#[derive(Clone, Default)]
pub(crate) struct Roster(Arc<Mutex<Vec<i32>>>);

/// The calling thread is on the roster until this is dropped, which it does itself.
pub(crate) struct Member {
    roster: Roster,
    thread: i32,
}

impl Roster {
    pub fn enter(&self) -> Member {
        let thread = sys::thread_id();
        self.0.lock().push(thread);
        Member { roster: self.clone(), thread }
    }

    fn set_idle_class(&self, idle: bool) {
        // Nobody ends while the lock is held.
        for thread in self.0.lock().iter() {
            if let Err(error) = sys::set_idle_class(*thread, idle) {
                tracing::debug!(thread, "changing the class: {error}");
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.roster.0.lock().retain(|thread| *thread != self.thread);
    }
}

pub(crate) struct Watcher {
    /// Set, and the thread woken: it ends.
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Watches over ring threads, all of which are on the roster by now.
    pub fn start(
        roster: Roster,
        dispatcher: Arc<Dispatcher>,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> vfs::Result<JoinHandle<()>>,
    ) -> vfs::Result<Option<Watcher>> {
        if roster.0.lock().len() > MOST_THREADS {
            return Ok(None);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = spawn(Box::new(move || watch(&roster, &dispatcher, &stopped)))?;
        Ok(Some(Watcher { stop, thread: Some(thread) }))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn watch(roster: &Roster, dispatcher: &Dispatcher, stopped: &AtomicBool) {
    if !sys::may_leave_idle_class() {
        tracing::debug!("no right to leave the idle class; ring threads stay in the normal one");
        return;
    }
    let crowd = dispatcher.crowd();
    crowd.watch();
    let mut judge = Judge::default();
    let mut gauge = Gauge::default();
    // What was before the mount does not count.
    gauge.read(roster);
    let mut handled = dispatcher.handled();
    let mut tick = TICK;
    let set = |changed: bool, judge: &Judge| {
        if changed {
            tracing::debug!(idle_class = judge.idle_class, "ring threads change their class");
            roster.set_idle_class(judge.idle_class);
        }
    };
    loop {
        // Woken early by a crowd or at the end, and sometimes for nothing.
        std::thread::park_timeout(tick);
        if crowd.was_seen() && !stopped.load(Ordering::Relaxed) {
            set(judge.sees_crowd(), &judge);
            // One that stays wakes nobody before the next look.
            std::thread::park_timeout(TICK);
            crowd.forget();
        }
        if stopped.load(Ordering::Relaxed) {
            return;
        }
        let before = std::mem::replace(&mut handled, dispatcher.handled());
        tick = if handled == before { TICK_WITHOUT_REQUESTS } else { TICK };
        let Some(mut sample) = gauge.read(roster) else { continue };
        if handled == before {
            // Who comes next may come with much other work: the normal class meets it better.
            sample.idle = 0.0;
        }
        set(judge.changes(sample), &judge);
    }
}

/// What was seen since the last look.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Share of all processors' time.
    idle: f64,
    /// Of the thread that waited longest to run, the share of the time.
    starved: f64,
}

#[derive(Debug)]
struct Judge {
    idle_class: bool,
    /// Ticks for which the normal class is kept whatever is seen.
    hold: u32,
    penalty: u32,
}

impl Default for Judge {
    fn default() -> Judge {
        Judge { idle_class: false, hold: 0, penalty: *PENALTY.start() }
    }
}

impl Judge {
    /// More requests are in service than processors can serve; true if the class changed.
    fn sees_crowd(&mut self) -> bool {
        self.hold = self.hold.max(AFTER_A_CROWD);
        std::mem::replace(&mut self.idle_class, false)
    }

    /// Takes a sample in; true if the class changed.
    fn changes(&mut self, sample: Sample) -> bool {
        self.hold = self.hold.saturating_sub(1);
        let starving = sample.starved > STARVING;
        let wanted = if self.idle_class {
            !starving && sample.idle >= IDLE_TOO_LITTLE
        } else {
            self.hold == 0 && sample.idle >= IDLE_ENOUGH
        };
        if self.idle_class && starving {
            self.hold = self.penalty;
            self.penalty = (self.penalty * 2).min(*PENALTY.end());
        }
        let changed = wanted != self.idle_class;
        self.idle_class = wanted;
        changed
    }
}

/// Reads the kernel's accounts and remembers what they said last.
#[derive(Default)]
struct Gauge {
    time: (u64, u64),
    waited: BTreeMap<i32, u64>,
    at: Option<Instant>,
}

impl Gauge {
    fn read(&mut self, roster: &Roster) -> Option<Sample> {
        let elapsed = self.at.replace(Instant::now()).map_or(TICK, |at| at.elapsed());
        let mut longest = 0;
        let threads = roster.0.lock().clone();
        for thread in threads {
            let path = format!("/proc/self/task/{thread}/schedstat");
            // Kernels without these accounts: the share of idle time decides alone.
            let now = fs::read_to_string(path).ok().and_then(|text| waited(&text)).unwrap_or(0);
            let before = self.waited.insert(thread, now).unwrap_or(now);
            longest = longest.max(now.saturating_sub(before));
        }
        let now = idle_and_all(&fs::read_to_string("/proc/stat").ok()?)?;
        let before = std::mem::replace(&mut self.time, now);
        let all = now.1.checked_sub(before.1).filter(|all| *all > 0)?;
        let idle = now.0.saturating_sub(before.0) as f64 / all as f64;
        Some(Sample { idle, starved: longest as f64 / elapsed.as_nanos().max(1) as f64 })
    }
}

/// Nanoseconds that a thread was ready and did not run: the second number.
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// Idle and whole time of all processors, from the first line: user, nice, system, idle,
/// waiting for I/O, and others.
fn idle_and_all(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let parts: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).collect();
    // The last two (guests') are in the first two already.
    let all = parts.iter().take(8).sum();
    Some((parts.get(3)? + parts.get(4)?, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(idle: f64, starved: f64) -> Sample {
        Sample { idle, starved }
    }

    #[test]
    fn idle_time_decides_and_does_not_flutter() {
        let mut judge = Judge::default();
        assert!(!judge.changes(sample(0.2, 0.0)));
        assert!(judge.changes(sample(0.5, 0.0)) && judge.idle_class);
        assert!(!judge.changes(sample(0.2, 0.1)) && judge.idle_class);
        assert!(judge.changes(sample(0.05, 0.1)) && !judge.idle_class);
        assert!(!judge.changes(sample(0.2, 0.9)) && !judge.idle_class);
        assert!(judge.changes(sample(0.3, 0.0)) && judge.idle_class);
    }

    #[test]
    fn a_thread_that_starves_ends_it_for_longer_each_time() {
        let mut judge = Judge::default();
        let mut holds = Vec::new();
        for _ in 0..8 {
            assert!(judge.changes(sample(0.9, 0.0)) && judge.idle_class);
            assert!(judge.changes(sample(0.9, 0.8)) && !judge.idle_class);
            let mut ticks = 1;
            while !judge.changes(sample(0.9, 0.0)) {
                ticks += 1;
            }
            holds.push(ticks);
            assert!(judge.changes(sample(0.0, 0.0)));
        }
        assert_eq!(holds, [20, 40, 80, 160, 320, 640, 1200, 1200]);
    }

    #[test]
    fn a_crowd_ends_it_at_once_and_for_a_while() {
        let mut judge = Judge::default();
        assert!(judge.changes(sample(0.9, 0.0)) && judge.idle_class);
        assert!(judge.sees_crowd() && !judge.idle_class);
        assert!(!judge.sees_crowd());
        let ticks = (1..).find(|_| judge.changes(sample(0.9, 0.0)));
        assert_eq!(ticks, Some(AFTER_A_CROWD));
        assert!(judge.idle_class && judge.penalty == *PENALTY.start());
    }

    #[test]
    fn who_ended_is_off_the_roster() {
        let roster = Roster::default();
        let member = roster.enter();
        std::thread::scope(|scope| {
            let (there, wait) = std::sync::mpsc::channel();
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let other = roster.clone();
            let thread = scope.spawn(move || {
                let _member = other.enter();
                there.send(()).unwrap();
                assert!(gone.recv().is_err());
            });
            wait.recv().unwrap();
            assert_eq!(roster.0.lock().len(), 2);
            drop(go);
            thread.join().unwrap();
        });
        assert_eq!(*roster.0.lock(), [sys::thread_id()]);
        drop(member);
        assert!(roster.0.lock().is_empty());
    }

    #[test]
    fn accounts_are_read() {
        let stat = "cpu  100 5 50 700 20 1 2 3 40 4\ncpu0 1 2 3\n";
        assert_eq!(idle_and_all(stat), Some((720, 881)));
        assert_eq!(idle_and_all("intr 5"), None);
        assert_eq!(waited("1398837 163132 3\n"), Some(163132));
        // This machine's own.
        assert!(idle_and_all(&fs::read_to_string("/proc/stat").unwrap()).is_some());
    }
}
