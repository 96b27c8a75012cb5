//! The clock that stamps what is written, and whether others want the processors: parameters,
//! so that one seed replays one world, its times and its rests included.
//!
//! It does not know intervals: how long something took, and when a commit is due, is measured
//! with `Instant` and leaves no mark on a volume.

use btrfs_disk::items::Timespec;
use std::fmt::Debug;

/// The time that inodes and roots are stamped with.
pub trait Clock: Send + Sync + Debug {
    /// Seconds since 1970 (before it: below 0) and nanoseconds.
    fn now(&self) -> Timespec;
}

/// Whether others want the processors. A parameter: tests run beside each other.
pub trait Contention: Send + Sync + Debug {
    /// Gives the processor to whoever waits for it; true if somebody did.
    fn give_way(&self) -> bool;
}
