//! What the space's lock-free code needs of the libraries, so that a test can put loom's model
//! in its place (tests/lockfree): whatever is modelled takes its atomics and its locks from here.

pub(super) use locks::{Mutex, Rank};
pub(super) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
