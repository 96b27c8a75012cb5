//! The errors of the device over its life, in an item of the device tree, as the kernel counts and
//! keeps them (`btrfs device stats`).
//!
//! What a mount meets goes into the item with a commit that somebody asks for (or the clock), not with
//! one that an operation needs for room; a volume that gives up writing loses what came since.
//!
//! Invariants: the item is written only where a number in it changes; what follows the numbers that
//! are known here stays. One that could not be read is never written.
//!
//! It does not know what counts as an error: the volume does.

use crate::error::IntoFs;
use crate::reserve::{Reservations, cost};
use btrfs_disk::ids::DEV_STATS_OBJECTID;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_space::Priority;
use btrfs_txn::{Core, ObjectId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use vfs::Result;

/// Writes, reads and flushes that the device refused, sectors that were not what they should be, and
/// of another generation: in the order of the item.
pub type DeviceErrors = [u64; 5];

/// What the item had when the volume was opened.
#[derive(Default)]
struct Stored {
    numbers: DeviceErrors,
    /// Behind them.
    rest: Vec<u8>,
}

pub(crate) struct DeviceStats {
    core: Arc<Core>,
    reservations: Arc<Reservations>,
    /// Empty where it could not be read.
    stored: OnceLock<Stored>,
    /// What is to be added to the volume's own counters.
    offset: [AtomicU64; 5],
    /// What the item has, or will with the next commit.
    written: [AtomicU64; 5],
    /// Somebody is about to write it.
    busy: AtomicBool,
}

impl DeviceStats {
    pub(crate) fn new(core: &Arc<Core>, reservations: &Arc<Reservations>) -> DeviceStats {
        let stats = DeviceStats {
            core: core.clone(),
            reservations: reservations.clone(),
            stored: OnceLock::new(),
            offset: Default::default(),
            written: Default::default(),
            busy: AtomicBool::new(false),
        };
        stats.load();
        stats
    }

    fn devid(&self) -> u64 {
        self.core.volume.superblock().fields.dev_item.devid
    }

    /// What cannot be read is told, and hinders nothing else.
    fn load(&self) {
        let key = Key::new(DEV_STATS_OBJECTID, kind::PERSISTENT_ITEM, self.devid());
        let found = self.core.view().get(TreeId::DEV, &key);
        let item = match &found {
            Ok(item) => item.as_deref().unwrap_or_default(),
            Err(error) => return tracing::warn!(%error, "the device's errors of before"),
        };
        let mut stored = Stored::default();
        let mut words = item.chunks_exact(8);
        for (number, word) in stored.numbers.iter_mut().zip(&mut words) {
            *number = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        }
        stored.rest = item.get(5 * 8..).unwrap_or_default().to_vec();
        for (at, number) in stored.numbers.iter().enumerate() {
            self.offset[at].store(*number, Ordering::Relaxed);
            self.written[at].store(*number, Ordering::Relaxed);
        }
        let _only_once = self.stored.set(stored);
    }

    /// Since the volume was opened.
    fn met(&self) -> DeviceErrors {
        let c = self.core.volume.counters();
        [c.write_errors, c.read_errors, c.flush_errors, c.corruption_errors, c.generation_errors]
    }

    /// Over the device's life.
    pub(crate) fn errors(&self) -> DeviceErrors {
        let mut all = self.met();
        for (number, offset) in all.iter_mut().zip(&self.offset) {
            *number = number.wrapping_add(offset.load(Ordering::Relaxed));
        }
        all
    }

    /// They count from zero again; answers what they were. What is met meanwhile is in one of both.
    pub(crate) fn reset(&self) -> Result<DeviceErrors> {
        self.core.health.changeable().fs()?;
        let mut all = self.met();
        for (number, offset) in all.iter_mut().zip(&self.offset) {
            let before = offset.swap(0u64.wrapping_sub(*number), Ordering::Relaxed);
            *number = number.wrapping_add(before);
        }
        Ok(all)
    }

    /// Puts the item into the epoch, if it changes. Without room a later call does.
    pub(crate) fn write(&self) {
        if let Some(stored) = self.stored.get()
            && !self.busy.swap(true, Ordering::Acquire)
        {
            self.put(stored);
            self.busy.store(false, Ordering::Release);
        }
    }

    fn put(&self, stored: &Stored) {
        let errors = self.errors();
        let is_written =
            |(error, written): (&u64, &AtomicU64)| written.load(Ordering::Relaxed) == *error;
        if errors.iter().zip(&self.written).all(is_written)
            || self.core.health.changeable().is_err()
        {
            return;
        }
        let mut item: Vec<u8> = errors.iter().flat_map(|error| error.to_le_bytes()).collect();
        item.extend_from_slice(&stored.rest);
        let cost = cost::device_stats(item.len() as u64);
        let Ok(_room) = self.reservations.hold(cost, Priority::Delete) else { return };
        let object = ObjectId { tree: TreeId::DEV, objectid: DEV_STATS_OBJECTID };
        let Ok(op) = self.core.begin_change() else { return };
        op.put(object, kind::PERSISTENT_ITEM, self.devid(), item.into());
        drop(op);
        for (written, error) in self.written.iter().zip(errors) {
            written.store(error, Ordering::Relaxed);
        }
    }
}
