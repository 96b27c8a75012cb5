//! src/sync.rs as loom's models see it.

pub use crate::index::{Epochs, Grown, Index, Pin, Ref, Refused, Reservation, Reserve};
pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
pub use loom::thread::{Thread, current as current_thread, park};
pub use std::sync::Arc;
pub use testkit::model_locks::{Mutex, Rank, RwLock, RwLockReadGuard};
