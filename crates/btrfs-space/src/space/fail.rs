//! Allocations that fail on request: how tests see what follows.

use super::Kind;
use btrfs_disk::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Numbers count from 0, all kinds together.
#[derive(Default)]
pub(super) struct Faults {
    count: AtomicU64,
    from: AtomicU64,
    to: AtomicU64,
    no_data: AtomicBool,
}

impl Faults {
    pub fn pass(&self, kind: Kind) -> Result<()> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let to = self.to.load(Ordering::Relaxed);
        let fails = number < to && number >= self.from.load(Ordering::Relaxed);
        let fails = fails || kind == Kind::Data && self.no_data.load(Ordering::Relaxed);
        if fails { Err(Error::NoSpace) } else { Ok(()) }
    }
}

impl super::Space {
    /// Allocations so far, failed ones included.
    #[doc(hidden)]
    pub fn allocations(&self) -> u64 {
        self.faults.count.load(Ordering::Relaxed)
    }

    /// These find no room, whatever is free.
    #[doc(hidden)]
    pub fn fail_allocations(&self, which: Range<u64>) {
        self.faults.from.store(which.start, Ordering::Relaxed);
        self.faults.to.store(which.end, Ordering::Relaxed);
    }

    /// Content finds no room any more, or does again.
    #[doc(hidden)]
    pub fn fail_data(&self, yes: bool) {
        self.faults.no_data.store(yes, Ordering::Relaxed);
    }
}
