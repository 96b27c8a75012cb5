//! Promises of space, before anything is allocated.
//!
//! A reservation is a value that only this module makes; what of it was not used goes
//! back when it is dropped. Making one is an atomic update of its class's counter; only
//! where that fails a chunk may be made, under the chunk lock.
//!
//! Invariants: data promises are always covered by free space of data block groups.
//! Metadata promises may count on half of the unallocated device space, which data
//! chunks leave alone then. The global reserve is touched by nobody but who says that
//! space comes back ([`Priority::Delete`]): where data and metadata share their block
//! groups data leaves it alone, too.

use super::class::Class;
use super::group::Ask;
use super::{Kind, Space};
use crate::Extent;
use btrfs_disk::{Error, Logical, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Who may use the last metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    Normal,
    /// What frees space in the end: deletions, truncation, the commit itself.
    Delete,
}

/// Bytes promised out of one class.
struct Promise {
    class: Arc<Class>,
    bytes: u64,
}

impl Promise {
    fn give_back(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.class.forgo(bytes as i64);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.class.forgo(self.bytes as i64);
    }
}

/// Data bytes that will find room.
#[must_use = "dropping a reservation gives the promise back"]
pub struct DataReservation(Promise);

/// Bytes of new tree nodes that will find room.
#[must_use = "dropping a reservation gives the promise back"]
pub struct MetadataReservation(Promise);

macro_rules! reservation {
    ($name:ident) => {
        impl $name {
            /// Bytes that are still promised.
            pub fn bytes(&self) -> u64 {
                self.0.bytes
            }

            /// Gives `bytes` of the promise back (all of it, if it has fewer).
            pub fn shrink(&mut self, bytes: u64) {
                self.0.give_back(bytes);
            }

            /// Takes over the promise of `other`, of the same volume.
            pub fn absorb(&mut self, mut other: $name) {
                assert!(Arc::ptr_eq(&self.0.class, &other.0.class), "one volume");
                self.0.bytes += std::mem::take(&mut other.0.bytes);
            }

            /// Splits off `bytes` of the promise (all of it, if it has fewer).
            pub fn split(&mut self, bytes: u64) -> $name {
                let bytes = bytes.min(self.0.bytes);
                self.0.bytes -= bytes;
                $name(Promise { class: Arc::clone(&self.0.class), bytes })
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0.bytes)
            }
        }
    };
}
reservation!(DataReservation);
reservation!(MetadataReservation);

impl DataReservation {
    /// Takes up to `want` bytes in one piece, at least `min`, out of the promise; at
    /// `goal` if that is free. Fails where the promise has fewer than `min` or free
    /// space is too fragmented for `min` (a sector always fits).
    pub fn alloc(
        &mut self,
        space: &Space,
        want: u64,
        min: u64,
        goal: Option<Logical>,
    ) -> Result<Extent> {
        let unit = self.0.class.unit;
        let want = want.min(self.0.bytes / unit * unit);
        if want < min {
            return Err(Error::NoSpace);
        }
        let extent = space.alloc_ask(Kind::Data, &Ask { want, min, goal, paid: true })?;
        self.0.bytes -= extent.len;
        Ok(extent)
    }
}

impl MetadataReservation {
    /// Takes one node out of the promise, or, where that is used up, out of what is free.
    pub fn alloc_node(&mut self, space: &Space, node_size: u64) -> Result<Extent> {
        let paid = self.0.bytes >= node_size;
        if !paid {
            self.0.class.unpaid.fetch_add(1, Ordering::Relaxed);
        }
        let ask = Ask { want: node_size, min: node_size, goal: None, paid };
        let extent = space.alloc_ask(Kind::Metadata, &ask)?;
        self.0.bytes -= if paid { node_size } else { 0 };
        Ok(extent)
    }
}

impl Space {
    /// Promises `bytes` of data; `NoSpace` if not even new chunks could hold them. (The
    /// caller may commit, unpin and ask again.)
    pub fn reserve_data(&self, bytes: u64) -> Result<DataReservation> {
        let class = self.class(Kind::Data);
        let signed = i64::try_from(bytes).map_err(|_| Error::NoSpace)?;
        let floor = || match self.mixed() {
            true => class.global_reserve.load(Ordering::Relaxed),
            false => 0,
        };
        while !class.promise(signed, floor()) {
            self.could_hold(Kind::Data, signed, floor())?;
            self.chunk_for(Kind::Data, class.snapshot().len())?;
        }
        Ok(DataReservation(Promise { class: Arc::clone(class), bytes }))
    }

    /// Gives back a data extent that no commit knows, and promises its bytes anew at once.
    pub fn release_promised(&self, extent: Extent) -> Result<DataReservation> {
        self.group_of(&extent)?.release(&extent, true)?;
        let class = Arc::clone(self.class(Kind::Data));
        Ok(DataReservation(Promise { class, bytes: extent.len }))
    }

    /// Sets the global reserve: `wish`, but no more than an eighth of what metadata has,
    /// and `least` all the same (no more than half).
    pub fn keep_for_removal(&self, least: u64, wish: u64) {
        let mut device = self.device.lock();
        device.kept = Some((least, wish));
        self.retune(&device);
    }

    /// Promises room for `bytes` of new nodes.
    pub fn reserve_metadata(&self, bytes: u64, priority: Priority) -> Result<MetadataReservation> {
        let class = self.class(Kind::Metadata);
        let signed = i64::try_from(bytes).map_err(|_| Error::NoSpace)?;
        let floor = || {
            let reserve = match priority {
                Priority::Normal => class.global_reserve.load(Ordering::Relaxed),
                Priority::Delete => 0,
            };
            reserve - class.overcommit.load(Ordering::Relaxed)
        };
        while !class.promise(signed, floor()) {
            self.could_hold(Kind::Metadata, signed, floor())?;
            self.chunk_for(Kind::Metadata, class.snapshot().len())?;
        }
        Ok(MetadataReservation(Promise { class: Arc::clone(class), bytes }))
    }

    /// Refuses what all chunks together could not hold, before any is made.
    fn could_hold(&self, kind: Kind, bytes: i64, floor: i64) -> Result<()> {
        let unallocated = self.unallocated.load(Ordering::Relaxed) as i64;
        let most = self.class(kind).available().saturating_add(unallocated).saturating_sub(floor);
        if bytes > most { Err(Error::NoSpace) } else { Ok(()) }
    }
}
