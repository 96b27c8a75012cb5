//! A semaphore: a few at a time do what keeps a processor busy, while any number wait.
//!
//! Where 64 callers are ready at once, each meets all others at every lock, the host's among them (that of
//! the image's file is handed from one sleeper to the next, each of whom has to come to run first). So a few
//! work, and the others wait in the order in which they came.
//!
//! Invariants: a permit that is given back goes to who has waited longest; who has one is not in the queue.
//! Nobody waits for longer than `longest`: those at work may wait themselves, for a device, and then
//! more of them are better. So a wait here cannot be a part of any deadlock.
//!
//! Lock order: the queue is held for moments only.
//!
//! What it does not know: what is done with a permit.

use crate::sync::{Mutex, Rank, Thread, current_thread};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// While one of a processor's is woken, others have work for it. Measured: docs/perf/fsync-callers.md.
const PER_PROCESSOR: usize = 4;
/// A few times what all the others take together when none of them waits for a device.
/// Chosen, not measured.
const LONGEST: Duration = Duration::from_millis(5);

#[derive(Default)]
struct State {
    free: usize,
    waiting: VecDeque<Thread>,
    #[cfg(test)]
    asked: usize,
}

pub(crate) struct Semaphore {
    longest: Duration,
    state: Mutex<State>,
}

/// To be at work, until it is dropped. `None`: he has waited for long enough, and has none to give back.
pub(crate) struct Permit<'s>(Option<&'s Semaphore>);

impl Semaphore {
    pub(crate) fn for_processors() -> Semaphore {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        Semaphore::new(PER_PROCESSOR * processors, LONGEST)
    }

    fn new(count: usize, longest: Duration) -> Semaphore {
        let state = State { free: count, ..State::default() };
        Semaphore { longest, state: Mutex::new(Rank::Leaf, state) }
    }

    /// How often somebody asked for one.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> usize {
        self.state.lock().asked
    }

    /// Returns when the caller has a permit, or when he has waited for long.
    pub(crate) fn acquire(&self) -> Permit<'_> {
        let me = current_thread();
        {
            let mut state = self.state.lock();
            #[cfg(test)]
            (state.asked += 1);
            if state.free > 0 {
                state.free -= 1;
                return Permit(Some(self));
            }
            state.waiting.push_back(me.clone());
        }
        let begun = Instant::now();
        loop {
            std::thread::park_timeout(self.longest.saturating_sub(begun.elapsed()));
            let waiting = &mut self.state.lock().waiting;
            match waiting.iter().position(|other| other.id() == me.id()) {
                None => return Permit(Some(self)),
                Some(at) if begun.elapsed() >= self.longest => {
                    waiting.remove(at);
                    return Permit(None);
                }
                Some(_) => {}
            }
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let Some(semaphore) = self.0 else { return };
        let next = {
            let mut state = semaphore.state.lock();
            let next = state.waiting.pop_front();
            state.free += usize::from(next.is_none());
            next
        };
        if let Some(next) = next {
            next.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const FOR_EVER: Duration = Duration::from_secs(1 << 20);

    #[test]
    fn no_more_than_so_many_are_at_work_and_all_come_to_it() {
        let (semaphore, at_work) = (Semaphore::new(2, FOR_EVER), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _permit = semaphore.acquire();
                        assert!(at_work.fetch_add(1, Ordering::Relaxed) < 2);
                        std::thread::yield_now();
                        at_work.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(semaphore.state.lock().free, 2, "none is lost");
    }

    #[test]
    fn who_has_waited_longest_is_next() {
        let (semaphore, order) = (Semaphore::new(1, FOR_EVER), Mutex::new(Rank::Leaf, Vec::new()));
        std::thread::scope(|scope| {
            let first = semaphore.acquire();
            for number in 0..4 {
                let (semaphore, order) = (&semaphore, &order);
                scope.spawn(move || {
                    let _permit = semaphore.acquire();
                    order.lock().push(number);
                });
                while semaphore.state.lock().waiting.len() <= number {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(*order.lock(), [0, 1, 2, 3]);
    }

    #[test]
    fn who_has_waited_for_long_goes_on_without() {
        let semaphore = Semaphore::new(1, Duration::ZERO);
        let first = semaphore.acquire();
        drop(semaphore.acquire());
        let state = || {
            let state = semaphore.state.lock();
            (state.free, state.waiting.len())
        };
        assert_eq!(state(), (0, 0), "the first has his permit still");
        drop(first);
        assert_eq!(state(), (1, 0));
    }
}
