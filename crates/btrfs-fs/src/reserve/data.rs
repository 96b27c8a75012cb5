//! Room for content: promised when it is written, paid for when it lands.
//!
//! Invariant: the promise covers all dirty bytes; an extent that is allocated for them and
//! not used after all goes back into it.

use super::Room;
use super::search::Tried;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::refusals::refused;
use btrfs_disk::Error;
use btrfs_space::{DataReservation, Extent, Kind, Priority};
use std::sync::atomic::Ordering;
use vfs::{Errno, Result};

impl Engine {
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
        let sector = self.sector();
        let mut part = self.promises.data.lock().as_mut().map(|held| held.split(want));
        let paid = part.as_mut().map(|part| part.alloc(&self.space, want, sector, None));
        let result = match paid {
            // No promise, or none of a whole sector: nobody else's may be broken.
            None | Some(Err(Error::NoSpace)) => self
                .space
                .reserve_data(sector)
                .and_then(|mut one| one.alloc(&self.space, sector, sector, None)),
            Some(other) => other,
        };
        if let Some(rest) = part {
            self.keep_promise(rest);
        }
        self.allocated(result)
    }

    /// An extent from the allocator. Where free space is not what it was said to be, nothing
    /// may be written any more.
    pub fn allocated(&self, result: btrfs_disk::Result<Extent>) -> Result<Extent> {
        if let Err(error @ Error::Corrupt(_)) = &result {
            self.poison(&format!("{}: {error}", self.volume.device().name()));
        }
        result.fs()
    }

    /// An extent that was not used after all: its room is promised as it was before.
    pub fn unallocate(&self, extent: Extent) {
        match self.space.release_promised(extent) {
            Ok(promise) => {
                self.keep_promise(promise);
                self.untold.add(&extent);
            }
            Err(error) => self.poison(&format!("giving back an extent: {error}")),
        }
    }

    /// Promises room for `bytes` of unwritten content.
    pub fn promise_data(&self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let promise = self.data_promise(bytes)?;
        self.keep_promise(promise);
        if self.space.make_ahead() || self.much_comes_back() {
            // Before the old chunks are full, so that fsyncs need not commit.
            self.committer.wake_for_chunks();
        }
        self.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Room for data runs short, and the next commit would free as much as is left or more.
    fn much_comes_back(&self) -> bool {
        let freed = || self.layers.load().current.extents.dropped();
        self.space.low_on_data().is_some_and(|mark| freed() >= mark)
    }

    /// Room for `data` bytes of content, and for an operation that changes about `items`
    /// items of `bytes` bytes. The caller forgets what does not become dirty.
    pub fn reserve_content(&self, data: u64, items: u64, bytes: u64) -> Result<Room<'_>> {
        // In this order: what the content will need in the trees counts for the operation.
        self.promise_data(data)?;
        let room = self.reserve(items, bytes);
        let reserved = room.and_then(|room| self.memory_for_content().map(|()| room));
        reserved.inspect_err(|_| self.forget_dirty(data))
    }

    /// EIO where all memory for unwritten content is taken by what the device refuses: nothing of
    /// it is dropped, so there is no more.
    fn memory_for_content(&self) -> Result<()> {
        let dirty = self.dirty_bytes.load(Ordering::Relaxed);
        if self.refusals.are_left() && dirty > self.options.dirty_bytes / 2 * 3 {
            let why = "memory is full of content that the device refuses";
            return Err(refused(why.into()));
        }
        Ok(())
    }

    fn keep_promise(&self, promise: DataReservation) {
        let mut held = self.promises.data.lock();
        match held.as_mut() {
            Some(reservation) => reservation.absorb(promise),
            None => *held = Some(promise),
        }
    }

    /// Room for `bytes` of data that the caller holds itself.
    pub fn data_promise(&self, bytes: u64) -> Result<DataReservation> {
        let mut tried = Tried::default();
        loop {
            match self.space.reserve_data(bytes) {
                Err(Error::NoSpace) => {}
                other => return other.fs(),
            }
            if !self.find_room(&mut tried, Kind::Data, bytes, Priority::Normal)? {
                return Err(Errno::ENOSPC.into());
            }
        }
    }
}
