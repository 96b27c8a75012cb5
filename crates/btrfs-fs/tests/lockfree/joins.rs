//! Callers of fsync, one of whom writes for all: who hears what?

#[path = "../../src/join.rs"]
mod join;

use crate::bounded;
use join::{Queue, Turn};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

#[derive(Default)]
struct Log {
    queue: Queue<usize>,
    led: AtomicBool,
    writes: AtomicU64,
    /// By caller: what the write that he was in came to. Relaxed: who is told of a write sees
    /// it by having been told.
    written: [AtomicU64; 3],
}

const GOOD: u64 = 1;
const BAD: u64 = 2;

impl Log {
    /// The caller's fsync; the write number `fails` fails.
    fn sync(&self, caller: usize, fails: Option<u64>) {
        let told = match self.queue.join(caller) {
            Turn::Settled(done) => done,
            Turn::Lead(batch) => {
                assert!(!self.led.swap(true, Ordering::Relaxed), "two lead");
                let good = Some(self.writes.fetch_add(1, Ordering::Relaxed)) != fails;
                thread::yield_now();
                for item in batch.items() {
                    let before =
                        self.written[*item].swap(if good { GOOD } else { BAD }, Ordering::Relaxed);
                    assert_eq!(before, 0, "written twice");
                }
                self.led.store(false, Ordering::Relaxed);
                if good {
                    batch.done();
                }
                good
            }
        };
        let came = self.written[caller].load(Ordering::Relaxed);
        assert_eq!(came, if told { GOOD } else { BAD }, "of caller {caller}, who heard {told}");
    }
}

fn three_callers(fails: Option<u64>) {
    bounded(3).check(move || {
        let log = Arc::new(Log::default());
        let caller = |number| {
            let log = log.clone();
            thread::spawn(move || log.sync(number, fails))
        };
        let others = [caller(1), caller(2)];
        log.sync(0, fails);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// Nobody sleeps for ever, and who is told that it is written finds it written.
#[test]
fn one_writes_for_all_who_wait() {
    three_callers(None);
}

/// Who was in a write that failed is told so, and nobody else.
#[test]
fn a_write_that_fails_is_told_to_those_in_it() {
    for fails in 0..2 {
        three_callers(Some(fails));
    }
}
