//! The device becomes larger or smaller.
//!
//! Invariants: no chunk lies behind the end; while the device is made smaller, none comes to lie behind
//! the end to be, and what is reserved fits without that room. While it is made larger the same holds of
//! the old end, so that the new one can be taken back whole. A commit records the size once nothing is behind
//! it: a crash before that finds the old size.
//!
//! What it does not know: what lies in the chunks behind the end, and who moves it.

use super::chunk_alloc::{Device, without_chunks};
use super::totals::GroupInfo;
use super::{Kind, Space};
use btrfs_disk::{Error, Logical, Result};
use std::sync::atomic::Ordering;

impl Space {
    /// Bytes of the device that are the volume's.
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes.load(Ordering::Relaxed)
    }

    /// The device is to have `total` bytes, no less than before. No chunk is made in what is new, until `grown`.
    pub fn grow(&self, total: u64) -> Result<()> {
        let mut device = self.device.lock();
        let old = device.item.total_bytes;
        assert!(total >= old && device.limit.is_none(), "{total} bytes are no more than {old}");
        self.volume.resize(total)?;
        device.item.total_bytes = total;
        device.limit = Some(old);
        self.resized(&device);
        Ok(())
    }

    /// It has them.
    pub fn grown(&self) {
        self.forget_limit(&mut self.device.lock());
    }

    /// The device ends at `old` again, as before `grow`. False: something lies behind that.
    pub fn not_grown(&self, old: u64) -> Result<bool> {
        let mut device = self.device.lock();
        for group in self.behind(old).iter().filter_map(|group| self.group_at(group.logical)) {
            // What is reserved has not the room then that it had not before.
            if !group.close(i64::MIN) {
                return Ok(false);
            }
            self.give_up(&mut device, &group)?;
        }
        self.volume.resize(old)?;
        let total = device.item.total_bytes;
        device.holes.subtract(old, total - old);
        (device.item.total_bytes, device.limit) = (old, None);
        self.resized(&device);
        Ok(true)
    }

    /// No chunk is made behind `total` from now on, until `shrink` or `do_not_shrink`. `NoSpace`: what
    /// is reserved needs that room.
    pub fn will_shrink(&self, total: u64) -> Result<()> {
        let mut device = self.device.lock();
        let old = device.item.total_bytes;
        assert!(total <= old && device.limit.is_none(), "one shrinks it at a time");
        device.holes.subtract(total, old - total);
        device.limit = Some(total);
        let owed = self.class(Kind::Metadata).owed(0);
        if !self.mixed() && device.unallocated() < owed {
            self.forget_limit(&mut device);
            return Err(Error::NoSpace);
        }
        self.retune(&device);
        Ok(())
    }

    /// Takes `will_shrink` back.
    pub fn do_not_shrink(&self) {
        self.forget_limit(&mut self.device.lock());
    }

    /// Block groups that lie behind the end to be, at least in part.
    pub fn behind(&self, total: u64) -> Vec<GroupInfo> {
        let behind = |logical: Logical| {
            let chunk = self.volume.chunk(logical);
            chunk.is_some_and(|c| c.stripes.iter().any(|(_, at)| at.0 + c.len > total))
        };
        self.group_infos().into_iter().filter(|group| behind(group.logical)).collect()
    }

    /// The device ends where `will_shrink` said: nothing is left behind that.
    pub fn shrink(&self) -> Result<()> {
        let mut device = self.device.lock();
        let Some(total) = device.limit else { return Ok(()) };
        self.volume.resize(total)?;
        device.item.total_bytes = total;
        device.limit = None;
        self.resized(&device);
        Ok(())
    }

    fn forget_limit(&self, device: &mut Device) {
        if let Some(limit) = device.limit.take() {
            self.tail_is_free(device, limit);
            self.retune(device);
        }
    }

    /// What no chunk has behind `from` is a hole.
    fn tail_is_free(&self, device: &mut Device, from: u64) {
        let total = device.item.total_bytes;
        if total == from {
            return;
        }
        device.holes.subtract(from, total - from);
        let whole = device.holes.insert(from, total - from);
        debug_assert!(whole.is_ok(), "nothing was there");
        without_chunks(&mut device.holes, &self.volume.chunks());
    }

    fn resized(&self, device: &Device) {
        self.device_bytes.store(device.item.total_bytes, Ordering::Relaxed);
        self.retune(device);
    }
}
