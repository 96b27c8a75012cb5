//! Memory for what is not durable yet: changed items, and content that no extent holds.
//!
//! It counts and compares. What is done about too much of it is its users' business.

use std::sync::atomic::{AtomicU64, Ordering};

/// How much memory is taken, and how much may be.
pub struct Memory {
    /// Bytes of content that no extent holds yet.
    dirty: AtomicU64,
    /// From where on a commit is asked for, in bytes of content and of the delta.
    most_dirty: u64,
    most_delta: u64,
}

impl Memory {
    /// Of content and of the delta, in bytes, from where on something is done about it.
    pub fn new(most_dirty: u64, most_delta: u64) -> Memory {
        Memory { dirty: AtomicU64::new(0), most_dirty, most_delta }
    }

    /// Bytes of content that no extent holds yet.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// So many more.
    pub fn add_dirty(&self, bytes: u64) {
        self.dirty.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many fewer: they have landed, or are gone.
    pub fn sub_dirty(&self, bytes: u64) {
        let before = self.dirty.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{bytes} of {before} bytes are no longer dirty");
    }

    /// From where on content is written back.
    pub fn most_dirty(&self) -> u64 {
        self.most_dirty
    }

    /// From where on a delta is committed.
    pub fn most_delta(&self) -> u64 {
        self.most_delta
    }

    /// Half way from where a commit is asked for to where who changes something must wait.
    pub fn is_short(&self, delta: u64) -> bool {
        self.dirty() > self.most_dirty / 4 * 5 || delta > self.most_delta / 2 * 3
    }
}
