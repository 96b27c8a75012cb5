//! src/sync.rs as loom's models see it.

pub use crate::index::{Epochs, Grown, Index, Pin, Ref, Refused, Reservation, Reserve};
pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
pub use loom::thread::{Thread, current as current_thread, park};
pub use std::sync::Arc;
pub use testkit::model_locks::{Mutex, Rank, RwLock, RwLockReadGuard};

/// Two, so that threads have the same and others.
pub const DIRTY_LISTS: usize = 2;

/// As loom numbers its threads, anew in each execution.
pub fn thread_number() -> usize {
    let id = format!("{:?}", current_thread().id());
    let digits: String = id.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("a thread's number: {id}"))
}
