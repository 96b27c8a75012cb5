//! What a commit told the space, taken back: see [`crate::Settle::no_room`].
//!
//! What it does not know: which commit, and why.

use super::Space;
use super::chunk_alloc::GoneChunk;
use super::chunk_alloc::NewChunk;
use super::group::Group;
use crate::Extent;
use btrfs_disk::Result;
use std::sync::atomic::Ordering;

impl Space {
    /// No commit records `extent`: it is in flight again.
    pub(crate) fn not_created(&self, extent: &Extent) -> Result<()> {
        self.group_of(extent)?.not_created(extent.len)
    }

    /// No commit drops `extent`.
    pub(crate) fn not_freed(&self, extent: &Extent) -> Result<()> {
        self.group_of(extent)?.not_freed(extent.len)
    }

    /// As before `pin_unrecorded`.
    pub(crate) fn not_pinned(&self, extent: &Extent) -> Result<()> {
        self.group_of(extent)?.not_pinned(extent.len)
    }

    /// Chunks that came and went wait for another commit. Of what came and has been given up
    /// since no commit need know.
    pub(crate) fn not_recorded(&self, chunks: &[NewChunk], gone: &[GoneChunk]) {
        if chunks.is_empty() && gone.is_empty() {
            return;
        }
        let mut device = self.device.lock();
        device.gone.extend_from_slice(gone);
        for new in chunks {
            if let Some(at) = device.gone.iter().position(|gone| gone.logical == new.logical) {
                device.gone.remove(at);
                continue;
            }
            device.unrecorded.push(new.clone());
            let unknown = |group: &Group| group.recorded.store(u64::MAX, Ordering::Release);
            self.group_at(new.logical).iter().for_each(|group| unknown(group));
        }
        self.all_recorded.store(u64::MAX, Ordering::Release);
    }
}
