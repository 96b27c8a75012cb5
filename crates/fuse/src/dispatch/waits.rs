//! Requests that wait for something that may take hours, or do it, and what ends that: a signal that the
//! caller got (INTERRUPT), or the end of the mount. What they wait for goes on.
//!
//! Invariant: of a request that listens, from before it begins what it may come to wait for, each INTERRUPT is
//! kept until it has ended. One may overtake the thread that is about to listen: so numbers under which nobody
//! does are remembered for a while, and the kernel uses none twice. It does not know what is waited for.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vfs::{Errno, Result};

/// INTERRUPTs that are remembered of requests that do not listen: mostly they never will.
/// Chosen, not measured.
const REMEMBERED: usize = 256;
/// How soon a signal is heard of, and the end of what is waited for, at the latest.
/// Chosen, not measured.
const LONGEST: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct Waits {
    interrupted: Mutex<Interrupted>,
    ended: AtomicBool,
}

#[derive(Default)]
struct Interrupted {
    /// Requests that listen, and whether their caller got a signal.
    listening: HashMap<u64, bool>,
    others: HashSet<u64>,
    order: VecDeque<u64>,
}

/// A request that hears of its caller's signals, also of those that came before it waits.
pub(super) struct Listening<'w> {
    waits: &'w Waits,
    unique: u64,
}

impl Waits {
    /// The caller of request `unique` got a signal.
    pub(super) fn interrupt(&self, unique: u64) {
        let interrupted = &mut *self.interrupted.lock();
        if let Some(signal) = interrupted.listening.get_mut(&unique) {
            *signal = true;
            return;
        }
        if interrupted.others.insert(unique) {
            interrupted.order.push_back(unique);
        }
        if interrupted.order.len() > REMEMBERED
            && let Some(oldest) = interrupted.order.pop_front()
        {
            interrupted.others.remove(&oldest);
        }
    }

    /// From here on request `unique` hears of its caller's signals.
    pub(super) fn listen(&self, unique: u64) -> Listening<'_> {
        let interrupted = &mut *self.interrupted.lock();
        interrupted.listening.insert(unique, interrupted.others.contains(&unique));
        Listening { waits: self, unique }
    }

    /// The mount has ended, and nobody hears an answer.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

impl Listening<'_> {
    /// Asks `done` again and again until it says so.
    pub(super) fn wait(&self, done: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        let mut pause = Duration::from_millis(1);
        while !done()? {
            self.goes_on()?;
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
        Ok(())
    }

    /// EINTR: there was a signal, or the mount has ended.
    pub(super) fn goes_on(&self) -> Result<()> {
        let ends = self.got_signal() || self.waits.ended.load(Ordering::Acquire);
        if ends { Err(Errno::EINTR.into()) } else { Ok(()) }
    }

    fn got_signal(&self) -> bool {
        self.waits.interrupted.lock().listening.get(&self.unique) == Some(&true)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.waits.interrupted.lock().listening.remove(&self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(waits: &Waits, unique: u64) -> i32 {
        waits.listen(unique).wait(&mut || Ok(false)).unwrap_err().errno()
    }

    /// Of requests that listen to nothing.
    fn interrupt_others(waits: &Waits) {
        (1000..1001 + REMEMBERED as u64).for_each(|unique| waits.interrupt(unique));
    }

    #[test]
    fn signals_and_the_end_are_heard() {
        let waits = Waits::default();
        let mut asked = 0;
        let mut third = || {
            asked += 1;
            Ok(asked == 3)
        };
        waits.listen(1).wait(&mut third).unwrap();
        waits.interrupt(2);
        assert_eq!(heard(&waits, 2), libc::EINTR);
        interrupt_others(&waits);
        let interrupted = waits.interrupted.lock();
        assert_eq!((interrupted.others.len(), interrupted.order.len()), (REMEMBERED, REMEMBERED));
        assert!(!interrupted.others.contains(&2) && interrupted.listening.is_empty());
        drop(interrupted);
        waits.end();
        assert_eq!(heard(&waits, 9999), libc::EINTR);
        waits.listen(9999).wait(&mut || Ok(true)).unwrap();
    }

    /// However many others get one between it and the next look, be it before the waiting or in it.
    #[test]
    fn no_signal_of_who_listens_is_forgotten() {
        let waits = Waits::default();
        let listening = waits.listen(1);
        waits.interrupt(1);
        interrupt_others(&waits);
        let mut asked = 0;
        let end = |asked: &mut u32| {
            *asked += 1;
            Ok(*asked == 3)
        };
        let heard = listening.wait(&mut || end(&mut asked)).unwrap_err();
        assert_eq!((heard.errno(), asked), (libc::EINTR, 1));
        let listening = waits.listen(2);
        let mut asked = 0;
        let heard = listening.wait(&mut || {
            waits.interrupt(2);
            interrupt_others(&waits);
            end(&mut asked)
        });
        assert_eq!((heard.unwrap_err().errno(), asked), (libc::EINTR, 1));
    }
}
