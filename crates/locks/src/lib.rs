//! Locks that know their place: in debug builds, and so in all tests, a thread that takes one
//! which comes before one that it holds panics, whether or not the others are there to make it a
//! deadlock. In release builds they are `parking_lot`'s, and nothing else.
//!
//! A place is a [`Rank`] (the table below is the lock order of the whole engine) and a number for
//! locks of one rank: inodes are taken by ascending number.
//!
//! Invariant: a thread takes locks by ascending place. `try_` calls do not wait, so they may take
//! any, and count from then on.
//!
//! A thread that waits at a [`Condvar`] holds the lock that belongs to it and no other: whoever is
//! to wake it could need that one.
//!
//! What it does not know: what is locked.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(unreachable_pub))]
#![forbid(unsafe_code)]

mod contention;
mod order;
mod thread;

#[cfg(feature = "count-contention")]
pub use contention::{Waits, take_waits};
pub use order::{Position, Rank};
pub use thread::thread_number;

use contention::counted;
use order::Held;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// As `parking_lot::Mutex`.
pub struct Mutex<T> {
    place: Position,
    lock: parking_lot::Mutex<T>,
}

/// The right to the value, until it is dropped.
pub struct MutexGuard<'a, T> {
    guard: parking_lot::MutexGuard<'a, T>,
    held: Held,
}

impl<T> Mutex<T> {
    /// Around `value`, at its place in the order.
    pub fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex::numbered(rank, 0, value)
    }

    /// As [`RwLock::numbered`].
    pub fn numbered(rank: Rank, number: u128, value: T) -> Mutex<T> {
        Mutex { place: Position::of(rank, number), lock: parking_lot::Mutex::new(value) }
    }

    /// Waits until nobody else holds it.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::wait(self.place);
        let guard = counted(|| self.lock.try_lock(), || self.lock.lock());
        MutexGuard { guard, held }
    }

    /// `None`: somebody holds it. The order is that of [`Mutex::lock`].
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        Some(MutexGuard { guard, held: Held::at_once(self.place) })
    }

    /// The value, which nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

/// As `parking_lot::Condvar`.
#[derive(Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Wakes one that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Gives the lock back until somebody wakes this thread, or until `until`; spuriously, too.
    #[track_caller]
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) {
        guard.held.assert_alone();
        self.0.wait_until(&mut guard.guard, until);
    }
}

/// As `parking_lot::RwLock`.
pub struct RwLock<T> {
    place: Position,
    lock: parking_lot::RwLock<T>,
}

/// The right to read the value, until it is dropped.
pub struct RwLockReadGuard<'a, T> {
    guard: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// The right to the value, until it is dropped.
pub struct RwLockWriteGuard<'a, T> {
    guard: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> RwLock<T> {
    /// Around `value`, at its place in the order.
    pub fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock::numbered(rank, 0, value)
    }

    /// One of many of its rank, of which a thread takes several by ascending `number`.
    pub fn numbered(rank: Rank, number: u128, value: T) -> RwLock<T> {
        RwLock { place: Position::of(rank, number), lock: parking_lot::RwLock::new(value) }
    }

    /// Waits until nobody writes.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = Held::wait(self.place);
        let guard = counted(|| self.lock.try_read(), || self.lock.read());
        RwLockReadGuard { guard, _held: held }
    }

    /// `None`: somebody writes, or waits to. The order is that of [`RwLock::read`].
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let guard = self.lock.try_read()?;
        Some(RwLockReadGuard { guard, _held: Held::at_once(self.place) })
    }

    /// Waits until nobody else holds it.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = Held::wait(self.place);
        let guard = counted(|| self.lock.try_write(), || self.lock.write());
        RwLockWriteGuard { guard, _held: held }
    }

    /// The value, which nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }

    /// Asserts the order as `read` does: it is for who waits if this fails.
    #[track_caller]
    pub fn read_or_count(&self, wait: impl FnOnce()) -> RwLockReadGuard<'_, T> {
        let held = Held::wait(self.place);
        let wait = || {
            wait();
            self.lock.read()
        };
        let guard = match self.lock.try_read() {
            Some(guard) => guard,
            None => counted(|| None, wait),
        };
        RwLockReadGuard { guard, _held: held }
    }

    /// As `read_or_count`.
    #[track_caller]
    pub fn write_or_count(&self, wait: impl FnOnce()) -> RwLockWriteGuard<'_, T> {
        let held = Held::wait(self.place);
        let wait = || {
            wait();
            self.lock.write()
        };
        let guard = match self.lock.try_write() {
            Some(guard) => guard,
            None => counted(|| None, wait),
        };
        RwLockWriteGuard { guard, _held: held }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
