//! loom's locks with the faces of `locks`', for modules that are modelled (tests/lockfree of
//! several crates). Behind the feature `loom`.

pub use locks::Rank;
pub use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(_: Rank, value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no model panics with a lock held")
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

pub struct RwLock<T>(loom::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub fn new(_: Rank, value: T) -> RwLock<T> {
        RwLock(loom::sync::RwLock::new(value))
    }

    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect("no model panics with a lock held")
    }

    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect("no model panics with a lock held")
    }
}
