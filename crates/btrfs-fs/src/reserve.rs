//! Promises are made only when they can be kept: metadata room for the commit, data room
//! for unwritten content, memory for the delta.
//!
//! A commit rewrites each touched node once, so what it can need at most is bounded two
//! ways: by the items changed (each on its own path of nodes), and by all nodes there are
//! plus the new bytes. The smaller bound is held as a reservation that the commit takes
//! over; it grows with the delta, before an operation enters the epoch.
//!
//! Reserving may wait for a commit, which locks inodes: reserve before locking any.

use crate::delta::Delta;
use crate::engine::Engine;
use crate::error::IntoFs;
use btrfs_disk::Error;
use btrfs_space::{DataReservation, Kind, MetadataReservation, Priority};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::{Errno, FsError, Result};

/// Tree levels that one changed item may rewrite in its own tree.
const PATH: u64 = 3;
/// Nodes that one changed extent may rewrite (extent, checksum, free-space trees).
const EXTENT_PATH: u64 = 6;
/// Metadata is reserved in steps of this many bytes where there is plenty.
const STEP: u64 = 8 << 20;
/// Unwritten content is expected to become extents of this size when metadata is reckoned.
const LIKELY_EXTENT: u64 = 16 << 10;

/// What the engine holds of promised space.
#[derive(Default)]
pub struct Promises {
    /// For the commit of the current epoch.
    metadata: Mutex<Option<MetadataReservation>>,
    metadata_bytes: AtomicU64,
    /// For all unwritten content.
    data: Mutex<Option<DataReservation>>,
}

impl Promises {
    /// Hands the metadata over to the commit of the epoch that was just sealed.
    pub fn take_metadata(&self) -> Option<MetadataReservation> {
        let mut held = self.metadata.lock();
        self.metadata_bytes.store(0, Ordering::Release);
        held.take()
    }
}

impl Engine {
    /// Room for an operation that changes about `items` items of `bytes` bytes.
    pub fn reserve(&self, items: u64, bytes: u64) -> Result<()> {
        self.reserve_with(items, bytes, Priority::Normal)
    }

    /// As `reserve`, for what gives space back: it may use the global reserve.
    pub fn reserve_for_removal(&self, items: u64) -> Result<()> {
        self.reserve_with(items, 0, Priority::Delete)
    }

    fn reserve_with(&self, items: u64, bytes: u64, priority: Priority) -> Result<()> {
        self.writable()?;
        self.hold_back()?;
        match self.hold(items, bytes, priority) {
            Err(FsError::Posix(Errno::ENOSPC)) => {}
            other => return other,
        }
        // What is pinned or held for too much comes back with a commit.
        self.commit()?;
        self.hold(items, bytes, priority)
    }

    /// Grows the reservation to what the current delta and the operation need.
    fn hold(&self, items: u64, bytes: u64, priority: Priority) -> Result<()> {
        let need = self.need(&self.layers.load().current, items, bytes);
        if need <= self.promises.metadata_bytes.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut held = self.promises.metadata.lock();
        let have = held.as_ref().map_or(0, MetadataReservation::bytes);
        if need <= have {
            return Ok(());
        }
        let missing = need - have;
        let more = match self.space.reserve_metadata(missing + STEP, priority) {
            Err(Error::NoSpace) => self.space.reserve_metadata(missing, priority),
            other => other,
        }
        .fs()?;
        match held.as_mut() {
            Some(reservation) => reservation.absorb(more),
            None => *held = Some(more),
        }
        let total = held.as_ref().map_or(0, MetadataReservation::bytes);
        self.promises.metadata_bytes.store(total, Ordering::Release);
        Ok(())
    }

    fn need(&self, delta: &Delta, items: u64, bytes: u64) -> u64 {
        let node = u64::from(self.geometry.node_size);
        let unwritten = self.dirty_bytes.load(Ordering::Relaxed) / LIKELY_EXTENT;
        let slots = delta.items.slots() + items + unwritten;
        let extents = delta.extents.count() + unwritten;
        let by_items = (slots * PATH + extents * EXTENT_PATH + 16).saturating_mul(node);
        let new_bytes = 2 * (delta.bytes() + bytes) + extents * 256;
        let by_nodes = self.space.used_by(Kind::Metadata) + new_bytes + 16 * node;
        by_items.min(by_nodes)
    }

    /// Starts a commit when the delta has used up its memory; waits when it is far over.
    fn hold_back(&self) -> Result<()> {
        let bytes = self.layers.load().current.bytes();
        if bytes > self.options.delta_bytes {
            self.committer.wake();
            if bytes > self.options.delta_bytes * 2 || !self.options.background {
                self.stats.throttled.add(1);
                self.commit()?;
            }
        }
        let dirty = self.dirty_bytes.load(Ordering::Relaxed);
        if dirty > self.options.dirty_bytes {
            self.committer.wake();
            if dirty > self.options.dirty_bytes * 3 / 2 || !self.options.background {
                self.stats.throttled.add(1);
                self.flush_all()?;
            }
        }
        Ok(())
    }

    /// Content of `bytes` bytes is no longer waiting for an extent.
    pub fn forget_dirty(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(held) = self.promises.data.lock().as_mut() {
            held.shrink(bytes);
        }
    }

    /// Promises room for `bytes` of unwritten content.
    pub fn promise_data(&self, bytes: u64) -> Result<()> {
        let promise = match self.space.reserve_data(bytes) {
            Err(Error::NoSpace) if self.space.pinned(Kind::Data) > 0 || self.dirty_elsewhere() => {
                // Space that this or the last epoch freed comes back with commits.
                self.commit()?;
                self.space.reserve_data(bytes)
            }
            other => other,
        }
        .fs()?;
        let mut held = self.promises.data.lock();
        match held.as_mut() {
            Some(reservation) => reservation.absorb(promise),
            None => *held = Some(promise),
        }
        self.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Freed extents of the current epoch are not pinned yet; a commit makes them so.
    fn dirty_elsewhere(&self) -> bool {
        !self.layers.load().current.is_empty()
    }
}
