//! Discards that are due (`-o discard`): space that came back to the allocator without a commit,
//! so that no commit's list of what it freed tells the device of it (`roots.rs` does that):
//! content that was written and deleted, cut or written over within one epoch, nodes of logs that
//! are void.
//!
//! Such space can be had again at once, and what is noted here may be in use by now. A commit
//! that is durable tells the device of what still is free, while nobody can allocate it
//! (`Space::discard_free`). That is no more than a new owner could do, who would write over it:
//! the last commit, its log, a sealed delta and readers need nothing that is free. What the log
//! refers to does not come back before the commit, nor this way (`ExtentDelta::mark_logged`).
//!
//! Invariant: without the option there is nothing here.
//!
//! What it does not know: chunks that were given up since; what was noted in them is not told.

use btrfs_disk::Result;
use btrfs_space::free_space::Ranges;
use btrfs_space::{Extent, Space};
use locks::{Mutex, Rank};

/// What came back to the allocator and the device does not know of yet.
pub struct PendingDiscards(Option<Mutex<Ranges>>);

impl PendingDiscards {
    /// `discard`: the device is to be told. Else nothing is kept.
    pub fn new(discard: bool) -> PendingDiscards {
        PendingDiscards(discard.then(|| Mutex::new(Rank::Discards, Ranges::new())))
    }

    /// Whether the device is to be told at all.
    pub fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// `extent` is in the allocator's hands again: a commit that comes now may tell of it.
    pub fn add(&self, extent: &Extent) {
        let Some(ranges) = &self.0 else { return };
        let mut ranges = ranges.lock();
        ranges.subtract(extent.logical.0, extent.len);
        let added = ranges.insert(extent.logical.0, extent.len);
        debug_assert!(added.is_ok(), "what was in the way is gone");
    }

    /// For a commit that is durable.
    pub fn issue(&self, space: &Space) -> Result<()> {
        let ranges = self.take();
        if ranges.is_empty() {
            return Ok(());
        }
        let left_out = space.discard_free(&ranges)?;
        left_out.iter().for_each(|extent| self.add(extent));
        Ok(())
    }

    fn take(&self) -> Ranges {
        self.0.as_ref().map_or_else(Ranges::new, |ranges| std::mem::take(&mut *ranges.lock()))
    }
}
