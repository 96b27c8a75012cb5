//! What the operator wants to know of a device: how often it lied and how much it did.
//!
//! Relaxed atomics; a snapshot is not one instant.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A snapshot of the counters since the volume was opened.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct VolumeCounters { $($(#[$doc])* pub $name: u64),* }

        impl VolumeCounters {
            /// Each counter with its name, as statistics show it.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((concat!("device.", stringify!($name)), self.$name)),*]
            }
        }

        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> VolumeCounters {
                VolumeCounters { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}

counters! {
    /// Reads that reached the device.
    reads,
    /// Bytes of them.
    read_bytes,
    /// Writes that reached the device; a write to two mirrors counts twice.
    writes,
    /// Bytes of them.
    written_bytes,
    /// Flushes that the device was asked for.
    flushes,
    /// Reads that the device refused.
    read_errors,
    /// Writes and discards that the device refused.
    write_errors,
    /// Flushes that the device refused.
    flush_errors,
    /// Copies of nodes and sectors of data that failed their checksum or the gate.
    checksum_errors,
    /// Of those what the kernel's statistics of a device count: sectors of content.
    corruption_errors,
    /// The same: nodes of another generation than their pointers', which a scrub met.
    generation_errors,
    /// Bad copies that were rewritten from a good one.
    repairs,
    /// Superblock copies that were not what the volume was opened by, rewritten.
    superblock_repairs,
    /// Writes of superblock copies, but the first one, that the device refused.
    superblock_refusals,
    /// Nodes and sectors of data of which no copy was good.
    unrecoverable,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
