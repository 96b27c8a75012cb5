//! Reservations: promised bytes as values.
//!
//! Invariant: the class counts as promised what all reservations of it have together, less
//! what is being paid out. What of one was not used goes back when it is dropped.
//!
//! What it does not know: whether a promise may be made ([`super::reserve`]).

use super::class::Class;
use std::sync::Arc;

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
            /// Of `bytes` that the class has just promised.
            pub(super) fn new(class: &Arc<Class>, bytes: u64) -> $name {
                $name(Promise { class: Arc::clone(class), bytes })
            }

            pub(super) fn class(&self) -> &Class {
                &self.0.class
            }

            /// An allocation has taken `bytes` of the promise, and told the class.
            pub(super) fn spend(&mut self, bytes: u64) {
                self.0.bytes -= bytes;
            }

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
