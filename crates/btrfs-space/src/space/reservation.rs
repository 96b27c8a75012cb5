//! Reservations as values.
//!
//! Invariant: the class counts as reserved what all reservations of it have together, less
//! what is being paid out. What of one was not used goes back when it is dropped.
//!
//! What it does not know: whether a reservation may be made ([`super::reserve`]).

use super::class::Class;
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
