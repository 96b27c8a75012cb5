//! Notices at once when more requests are being served than the processors could serve.
//!
//! Who watches (`pace.rs`) looks several times a second, which is too seldom for this:
//! with 32 callers in fsync, ring threads of the idle class were kept from the processor
//! by the callers, some while they held what other ring threads waited for, and the
//! longest fsync took twice as long as without that class.
//!
//! READs and WRITEs do not count: readahead and writeback send several of them for one
//! caller. It does not know what its watcher makes of it.

use crate::abi::Opcode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::Thread;

/// Requests in service, for each processor, that are no crowd yet: one that works, and one
/// that waits for a device or a lock.
const USUAL_PER_PROCESSOR: u32 = 2;

pub(crate) struct Crowd {
    usual: u32,
    serving: AtomicU32,
    /// Until the watcher has done with it: then it is woken no more.
    seen: AtomicBool,
    /// Is woken; nothing is counted before there is one.
    watcher: OnceLock<Thread>,
}

/// A request is being served until this is dropped.
pub(crate) struct Served<'a>(Option<&'a Crowd>);

impl Crowd {
    pub fn new(processors: usize) -> Crowd {
        Crowd {
            usual: (processors as u32).saturating_mul(USUAL_PER_PROCESSOR),
            serving: AtomicU32::new(0),
            seen: AtomicBool::new(false),
            watcher: OnceLock::new(),
        }
    }

    /// From now on the calling thread is woken (`unpark`) when there is a crowd.
    pub fn watch(&self) {
        let _ = self.watcher.set(std::thread::current());
    }

    /// A request comes into service.
    pub fn enter(&self, opcode: u32) -> Served<'_> {
        let Some(watcher) = self.watcher.get() else { return Served(None) };
        if comes_in_numbers(opcode) {
            return Served(None);
        }
        let serving = self.serving.fetch_add(1, Ordering::Relaxed) + 1;
        let crowd = serving > self.usual && !self.seen.load(Ordering::Relaxed);
        if crowd && !self.seen.swap(true, Ordering::Relaxed) {
            watcher.unpark();
        }
        Served(Some(self))
    }

    /// Whether there was a crowd since the last `forget`.
    pub fn was_seen(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// The next crowd wakes the watcher again.
    pub fn forget(&self) {
        self.seen.store(false, Ordering::Relaxed);
    }
}

/// One caller is enough for several of them at once.
fn comes_in_numbers(opcode: u32) -> bool {
    matches!(
        Opcode::from_number(opcode),
        Some(Opcode::Read | Opcode::Write | Opcode::Forget | Opcode::BatchForget)
    )
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Some(crowd) = self.0 {
            crowd.serving.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_usual_is_seen_once() {
        let crowd = Crowd::new(2);
        let fsync = Opcode::Fsync.number();
        {
            let _all: Vec<_> = (0..9).map(|_| crowd.enter(fsync)).collect();
            assert!(!crowd.was_seen(), "nobody watched");
        }
        crowd.watch();
        let mut all: Vec<_> = (0..4).map(|_| crowd.enter(fsync)).collect();
        all.extend((0..9).map(|_| crowd.enter(Opcode::Write.number())));
        assert!(!crowd.was_seen());
        all.push(crowd.enter(fsync));
        assert!(crowd.was_seen());
        drop(all);
        crowd.forget();
        assert_eq!(crowd.serving.load(Ordering::Relaxed), 0);
        let _few: Vec<_> = (0..4).map(|_| crowd.enter(fsync)).collect();
        assert!(!crowd.was_seen());
    }

    #[test]
    fn the_watcher_is_woken() {
        let crowd = Crowd::new(1);
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let crowd = &crowd;
            let watcher = scope.spawn(move || {
                crowd.watch();
                tell.send(()).unwrap();
                while !crowd.was_seen() {
                    std::thread::park();
                }
            });
            told.recv().unwrap();
            let _three: Vec<_> = (0..3).map(|_| crowd.enter(Opcode::Lookup.number())).collect();
            watcher.join().unwrap();
        });
    }
}
