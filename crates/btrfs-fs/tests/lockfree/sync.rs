//! src/sync.rs as loom's models see it.

pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
pub use loom::thread::{Thread, current as current_thread, park};
pub use testkit::model_locks::{Mutex, Rank, RwLock, RwLockReadGuard};

pub const SHARDS: usize = 2;

/// `std`'s, with a count that others can read too early or too late: loom's own has none that
/// can be read.
pub struct Arc<T>(std::sync::Arc<Counted<T>>);

struct Counted<T> {
    count: AtomicUsize,
    value: T,
}

impl<T> Arc<T> {
    pub fn new(value: T) -> Arc<T> {
        Arc(std::sync::Arc::new(Counted { count: AtomicUsize::new(1), value }))
    }

    /// `std` promises no order with it.
    pub fn strong_count(this: &Arc<T>) -> usize {
        this.0.count.load(Ordering::Relaxed)
    }

    pub fn ptr_eq(a: &Arc<T>, b: &Arc<T>) -> bool {
        std::sync::Arc::ptr_eq(&a.0, &b.0)
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Arc<T> {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        Arc(self.0.clone())
    }
}

impl<T> Drop for Arc<T> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Release);
    }
}

impl<T> std::ops::Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}
