//! What lock-free code needs of the libraries, so that a test can put loom's model in its place
//! (tests/lockfree): whatever is modelled takes its atomics and its locks from here.

pub(crate) use inode_index::{Epochs, Grown, Index, Pin, Ref, Refused, Reservation, Reserve};
pub(crate) use locks::thread_number;
pub(crate) use locks::{Mutex, Rank, RwLock, RwLockReadGuard};
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
pub(crate) use std::thread::{Thread, current as current_thread, park};

/// Parts of the list of dirty inodes.
/// With one, threads met here more than anywhere; that sixteen are enough was chosen, not measured.
pub(crate) const DIRTY_LISTS: usize = 16;
