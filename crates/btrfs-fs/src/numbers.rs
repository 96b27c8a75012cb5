//! Inode numbers of one subvolume: each is given once, in ascending order.
//!
//! Invariant: the counter is 0 until somebody has looked up where to begin, and stays where it is
//! when it is behind the last number of the format: nobody gets one then, however often it is
//! asked (tests/lockfree).
//!
//! What it does not know: which numbers are in use.

use crate::sync::{AtomicU64, Ordering};
use btrfs_disk::ids::LAST_FREE_OBJECTID;
use vfs::{Errno, Result};

#[derive(Default)]
pub(crate) struct Numbers(AtomicU64);

impl Numbers {
    /// A new number. `begin` tells the first one; it may be asked by several threads at once,
    /// of which one is believed.
    pub(crate) fn take(&self, begin: impl FnOnce() -> Result<u64>) -> Result<u64> {
        if self.0.load(Ordering::Acquire) == 0 {
            let first = begin()?;
            let _ = self.0.compare_exchange(0, first, Ordering::AcqRel, Ordering::Acquire);
        }
        // Not a plain add: one that goes on behind the end comes to 0 again, and to numbers
        // that are in use.
        let below = |next: u64| (next < LAST_FREE_OBJECTID).then(|| next + 1);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below);
        taken.map_err(|_| Errno::ENOSPC.into())
    }
}
