//! Who had to wait for a lock, and where: for the bench alone, behind a feature that no release has.
//!
//! Only those who wait are counted, so that who does not pays for one more attempt and nothing
//! else. What it does not know: how long they waited.

#[cfg(feature = "count-contention")]
pub use counting::{Waits, take_waits};

#[cfg(feature = "count-contention")]
pub(crate) use counting::counted;

/// Nobody counts: `wait` makes the attempt as well.
#[cfg(not(feature = "count-contention"))]
#[inline]
pub(crate) fn counted<G>(_: impl FnOnce() -> Option<G>, wait: impl FnOnce() -> G) -> G {
    wait()
}

#[cfg(feature = "count-contention")]
mod counting {
    use std::collections::BTreeMap;
    use std::panic::Location;

    pub(super) static WAITS: parking_lot::Mutex<BTreeMap<(&str, u32), u64>> =
        parking_lot::Mutex::new(BTreeMap::new());

    /// A line that takes a lock, and how often somebody waited there.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Waits {
        /// As the compiler calls it.
        pub file: &'static str,
        /// In it.
        pub line: u32,
        /// Since the last [`take_waits`].
        pub times: u64,
    }

    /// What was counted since the last call.
    pub fn take_waits() -> Vec<Waits> {
        let waits = std::mem::take(&mut *WAITS.lock());
        waits.into_iter().map(|((file, line), times)| Waits { file, line, times }).collect()
    }

    /// What `attempt` brings, or, where somebody holds the lock, `wait`.
    #[track_caller]
    pub(crate) fn counted<G>(attempt: impl FnOnce() -> Option<G>, wait: impl FnOnce() -> G) -> G {
        // Not in a closure, whose caller is another.
        let at = Location::caller();
        attempt().unwrap_or_else(|| {
            *WAITS.lock().entry((at.file(), at.line())).or_default() += 1;
            wait()
        })
    }
}

#[cfg(all(test, feature = "count-contention"))]
mod tests {
    use crate::{Mutex, Rank};

    const LINE: u32 = line!() + 2;
    fn wait_for(lock: &Mutex<i32>) {
        *lock.lock() += 1;
    }

    #[test]
    fn who_waits_is_counted_where() {
        let lock = Mutex::new(Rank::Leaf, 0);
        *lock.lock() += 1;
        super::take_waits();
        std::thread::scope(|scope| {
            let guard = lock.lock();
            let waiting = scope.spawn(|| wait_for(&lock));
            while super::counting::WAITS.lock().is_empty() {
                std::thread::yield_now();
            }
            drop(guard);
            waiting.join().unwrap();
        });
        let waits = super::take_waits();
        let expected = super::Waits { file: file!(), line: LINE, times: 1 };
        assert_eq!(waits, [expected]);
    }
}
