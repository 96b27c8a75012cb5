//! Reservations as values.
//!
//! Invariant: the class counts as reserved what all reservations of it have together, less
//! what is being paid out. What of one was not used goes back when it is dropped.
//!
//! What many hold together ([`SharedReservation`]) is a number that all of them change without a lock: it
//! is only ever added to and taken from, and who takes gets no more than is there.
//!
//! What it does not know: whether a reservation may be made ([`super::reserve`]).

use super::class::Class;
use super::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// Bytes reserved out of one class.
struct Reserved {
    class: Arc<Class>,
    bytes: u64,
}

impl Reserved {
    fn give_back(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.class.forgo(bytes as i64);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.class.forgo(self.bytes as i64);
    }
}

/// Data bytes that will find room.
#[must_use = "dropping a reservation gives the bytes back"]
pub struct DataReservation(Reserved);

/// Bytes of new tree nodes that will find room.
#[must_use = "dropping a reservation gives the bytes back"]
pub struct MetadataReservation(Reserved);

macro_rules! reservation {
    ($name:ident) => {
        impl $name {
            /// Of `bytes` that the class has just reserved.
            pub(super) fn new(class: &Arc<Class>, bytes: u64) -> $name {
                $name(Reserved { class: Arc::clone(class), bytes })
            }

            pub(super) fn class(&self) -> &Class {
                &self.0.class
            }

            /// An allocation has taken `bytes` of the reservation, and told the class.
            pub(super) fn spend(&mut self, bytes: u64) {
                self.0.bytes -= bytes;
            }

            /// Bytes that are still reserved.
            pub fn bytes(&self) -> u64 {
                self.0.bytes
            }

            /// Gives `bytes` of the bytes back (all of it, if it has fewer).
            pub fn shrink(&mut self, bytes: u64) {
                self.0.give_back(bytes);
            }

            /// Takes over the reservation of `other`, of the same volume.
            pub fn absorb(&mut self, mut other: $name) {
                assert!(Arc::ptr_eq(&self.0.class, &other.0.class), "one volume");
                self.0.bytes += std::mem::take(&mut other.0.bytes);
            }

            /// Splits off `bytes` of the reservation (all of it, if it has fewer).
            pub fn split(&mut self, bytes: u64) -> $name {
                let bytes = bytes.min(self.0.bytes);
                self.0.bytes -= bytes;
                $name(Reserved { class: Arc::clone(&self.0.class), bytes })
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

/// Data bytes that are reserved for all who come to it.
pub struct SharedReservation {
    class: Arc<Class>,
    bytes: AtomicU64,
}

impl SharedReservation {
    /// Of nothing.
    pub(super) fn new(class: &Arc<Class>) -> SharedReservation {
        SharedReservation { class: Arc::clone(class), bytes: AtomicU64::new(0) }
    }

    /// Bytes that are reserved at this moment.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes over the reservation of `more`, of the same volume.
    pub fn absorb(&self, mut more: DataReservation) {
        assert!(Arc::ptr_eq(&self.class, &more.0.class), "one volume");
        self.bytes.fetch_add(std::mem::take(&mut more.0.bytes), Ordering::Relaxed);
    }

    /// Splits off `bytes` of it (all of it, if it has fewer).
    pub fn split(&self, bytes: u64) -> DataReservation {
        DataReservation(Reserved { class: Arc::clone(&self.class), bytes: self.take(bytes) })
    }

    /// Gives `bytes` of it back (all of it, if it has fewer).
    pub fn shrink(&self, bytes: u64) {
        self.class.forgo(self.take(bytes) as i64);
    }

    fn take(&self, bytes: u64) -> u64 {
        let rest = |all: u64| Some(all - bytes.min(all));
        let all = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        bytes.min(all.unwrap_or(0))
    }
}

impl Drop for SharedReservation {
    fn drop(&mut self) {
        self.shrink(u64::MAX);
    }
}
