//! Requests that wait for something that may take hours, and what ends the waiting: a signal that the
//! caller got (INTERRUPT), or the end of the mount. What they wait for goes on.
//!
//! An INTERRUPT may overtake the thread that begins to wait, so numbers that nobody waits under are
//! remembered for a while; the kernel uses none twice. It does not know what is waited for.

use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vfs::{Errno, Result};

/// INTERRUPTs that are remembered: mostly of requests that do not wait here.
const REMEMBERED: usize = 256;
/// How soon a signal is heard of, and the end of what is waited for, at the latest.
const LONGEST: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Waits {
    interrupted: Mutex<Interrupted>,
    ended: AtomicBool,
}

#[derive(Default)]
struct Interrupted {
    all: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Waits {
    /// The caller of request `unique` got a signal.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut interrupted = self.interrupted.lock();
        if interrupted.all.insert(unique) {
            interrupted.order.push_back(unique);
        }
        if interrupted.order.len() > REMEMBERED
            && let Some(oldest) = interrupted.order.pop_front()
        {
            interrupted.all.remove(&oldest);
        }
    }

    /// The mount has ended, and nobody hears an answer.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Asks `done` again and again until it says so.
    pub(super) fn wait(&self, unique: u64, done: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        let mut pause = Duration::from_millis(1);
        while !done()? {
            let signal = self.interrupted.lock().all.contains(&unique);
            if signal || self.ended.load(Ordering::Acquire) {
                return Err(Errno::EINTR.into());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_and_the_end_are_heard() {
        let waits = Waits::default();
        let mut asked = 0;
        let mut third = || {
            asked += 1;
            Ok(asked == 3)
        };
        waits.wait(1, &mut third).unwrap();
        waits.interrupt(2);
        let heard = |unique| waits.wait(unique, &mut || Ok(false)).unwrap_err().errno();
        assert_eq!(heard(2), libc::EINTR);
        (3..4 + REMEMBERED as u64).for_each(|unique| waits.interrupt(unique));
        let interrupted = waits.interrupted.lock();
        assert_eq!((interrupted.all.len(), interrupted.order.len()), (REMEMBERED, REMEMBERED));
        assert!(!interrupted.all.contains(&2));
        drop(interrupted);
        waits.end();
        assert_eq!(heard(9999), libc::EINTR);
        waits.wait(9999, &mut || Ok(true)).unwrap();
    }
}
