//! Promises are made only when they can be kept: metadata room for the commit, data room
//! for unwritten content, memory for the delta.
//!
//! A commit rewrites each touched node once. What it can need is bounded by the places
//! that the delta touches, and by the nodes there are plus what the new bytes fill; of the
//! trees that keep account of space it needs at most all nodes. The smaller bound is held
//! as a reservation that the commit takes over; it grows with the delta, before an
//! operation enters the epoch.
//!
//! Invariant: only what gives space back is promised room out of the global reserve, so
//! that a full volume can still delete.
//!
//! Reserving may wait for a commit, which locks inodes: reserve before locking any, and
//! before taking a view, which would keep freed space from coming back.

use crate::delta::Delta;
use crate::engine::Engine;
use crate::error::IntoFs;
use btrfs_disk::Error;
use btrfs_space::{DataReservation, Extent, Kind, MetadataReservation, Priority};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::{Errno, FsError, Result};

/// Changes of the extent, free-space and checksum trees that a data extent makes.
const PER_EXTENT: u64 = 4;
/// The same for a node that is written anew; its successors lie together.
const PER_NODE: u64 = 2;
/// The same where snapshots share nodes: children of a copied node change owners.
const PER_SHARED_NODE: u64 = 64;
/// Children that interior nodes have at least, all in all.
const FANOUT: u64 = 32;
/// Nodes on the paths to what every commit changes.
const PATHS: u64 = 16;
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
    /// The part of it that was not taken from the global reserve.
    ordinary_bytes: AtomicU64,
    /// For all unwritten content.
    data: Mutex<Option<DataReservation>>,
    /// Bytes of the trees that keep account of space, as of the last commit.
    accounts: AtomicU64,
}

impl Promises {
    /// Hands the metadata over to the commit of the epoch that was just sealed.
    pub fn take_metadata(&self) -> Option<MetadataReservation> {
        let mut held = self.metadata.lock();
        self.metadata_bytes.store(0, Ordering::Release);
        self.ordinary_bytes.store(0, Ordering::Release);
        held.take()
    }

    fn held_for(&self, priority: Priority) -> u64 {
        match priority {
            Priority::Normal => self.ordinary_bytes.load(Ordering::Acquire),
            Priority::Delete => self.metadata_bytes.load(Ordering::Acquire),
        }
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
        let mut committed = false;
        loop {
            match self.hold(items, bytes, priority) {
                Err(FsError::Posix(Errno::ENOSPC)) => {}
                other => return other,
            }
            // What is pinned or held for too much comes back with a commit.
            if !committed {
                committed = true;
                self.commit_for_space()?;
            } else if !self.space.reclaim_for(Kind::Metadata).fs()? {
                // Removal gives space back: what is free must do, promised or not.
                let removes = priority == Priority::Delete && self.has_room(items);
                return if removes { Ok(()) } else { Err(Errno::ENOSPC.into()) };
            }
        }
    }

    /// True if the next commit, with `items` more, fits what is free of metadata.
    fn has_room(&self, items: u64) -> bool {
        let need = self.need(&self.layers.load().current, items, 0);
        need <= self.space.totals().metadata.free
    }

    /// A commit that shall free space; that some content found no room is known then.
    pub fn commit_for_space(&self) -> Result<()> {
        match self.commit() {
            Err(FsError::Posix(Errno::ENOSPC)) => Ok(()),
            other => other,
        }
    }

    /// Makes sure before the commit that it finds room for all of its nodes, also for
    /// those that writeback has just added. It may fail all the same: then what is free
    /// must do.
    pub fn hold_for_commit(&self) {
        while let Err(FsError::Posix(Errno::ENOSPC)) = self.hold(0, 0, Priority::Delete) {
            if !matches!(self.space.reclaim_for(Kind::Metadata), Ok(true)) {
                return;
            }
        }
    }

    /// Grows the reservation to what the current delta and the operation need, without
    /// waiting for anything: may be called with inodes locked.
    pub fn hold(&self, items: u64, bytes: u64, priority: Priority) -> Result<()> {
        let need = self.need(&self.layers.load().current, items, bytes);
        if need <= self.promises.held_for(priority) {
            return Ok(());
        }
        let mut held = self.promises.metadata.lock();
        let have = self.promises.held_for(priority);
        if need <= have {
            return Ok(());
        }
        let missing = need - have;
        let ordinary = match self.space.reserve_metadata(missing + STEP, Priority::Normal) {
            Err(Error::NoSpace) => self.space.reserve_metadata(missing, Priority::Normal),
            other => other,
        };
        let more = match ordinary {
            Err(Error::NoSpace) if priority == Priority::Delete => {
                self.space.reserve_metadata(missing, Priority::Delete)
            }
            Ok(more) => {
                self.promises.ordinary_bytes.fetch_add(more.bytes(), Ordering::AcqRel);
                Ok(more)
            }
            Err(error) => Err(error),
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
        let all = self.space.used_by(Kind::Metadata) / node;
        let accounts = self.promises.accounts.load(Ordering::Relaxed) / node;
        let unwritten = self.dirty_bytes.load(Ordering::Relaxed) / LIKELY_EXTENT;
        // Leaves that change, with a half that is split off or a neighbour that is merged.
        let leaves = 2 * (delta.items.spread() + items + unwritten);
        let inner = leaves.min(all / FANOUT + 1);
        let grown = 2 * (delta.bytes() + bytes) / node;
        let nodes = (leaves + inner).min(all) + grown;
        let extents = delta.extents.count() + unwritten;
        let per_node = if self.subvols.share_nodes() { PER_SHARED_NODE } else { PER_NODE };
        let changes = extents * PER_EXTENT + nodes * per_node;
        let records = (extents * 256 + nodes * 64) / node;
        (nodes + changes.min(accounts) + records + PATHS) * node
    }

    /// Looks up how large the trees are that keep account of space: at the start and after
    /// each commit.
    pub fn measure_accounts(&self) -> Result<()> {
        let used = crate::ops::statfs::accounts(self)?.0;
        self.promises.accounts.store(used, Ordering::Relaxed);
        Ok(())
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
        self.forget_landed(bytes, 0);
    }

    /// As `forget_dirty`, where extents took `paid` bytes out of the promise.
    pub fn forget_landed(&self, bytes: u64, paid: u64) {
        if bytes == 0 {
            return;
        }
        self.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if bytes > paid
            && let Some(held) = self.promises.data.lock().as_mut()
        {
            held.shrink(bytes - paid);
        }
    }

    /// A data extent of up to `want` bytes, out of the promise.
    pub fn allocate(&self, want: u64) -> Result<Extent> {
        let mut part = self.promises.data.lock().as_mut().map(|held| held.split(want));
        let paid = part.as_mut().map(|part| part.alloc(&self.space, want, self.sector(), None));
        let result = match paid {
            // Where a promise could not be renewed, what is free must do.
            None | Some(Err(Error::NoSpace)) => self.space.alloc(Kind::Data, want, self.sector()),
            Some(other) => other,
        };
        if let (Some(held), Some(rest)) = (self.promises.data.lock().as_mut(), part) {
            held.absorb(rest);
        }
        result.fs()
    }

    /// An extent that was not used after all; the promise is renewed if that is possible.
    pub fn unallocate(&self, extent: Extent) {
        self.give_back(extent);
        if let (Ok(promise), Some(held)) =
            (self.space.reserve_data(extent.len), self.promises.data.lock().as_mut())
        {
            held.absorb(promise);
        }
    }

    /// Promises room for `bytes` of unwritten content.
    pub fn promise_data(&self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let promise = self.data_promise(bytes)?;
        let mut held = self.promises.data.lock();
        match held.as_mut() {
            Some(reservation) => reservation.absorb(promise),
            None => *held = Some(promise),
        }
        self.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Room for `bytes` of data that the caller holds itself.
    pub fn data_promise(&self, bytes: u64) -> Result<DataReservation> {
        let mut committed = false;
        loop {
            match self.space.reserve_data(bytes) {
                Err(Error::NoSpace) => {}
                other => return other.fs(),
            }
            let comes_back = self.space.pinned(Kind::Data) > 0 || self.dirty_elsewhere();
            if !committed && comes_back {
                // Space that this or the last epoch freed comes back with commits.
                self.commit_for_space()?;
            } else if !self.space.reclaim_for(Kind::Data).fs()? {
                return Err(Errno::ENOSPC.into());
            }
            committed = true;
        }
    }

    /// Freed extents of the current epoch are not pinned yet; a commit makes them so.
    fn dirty_elsewhere(&self) -> bool {
        !self.layers.load().current.is_empty()
    }
}
