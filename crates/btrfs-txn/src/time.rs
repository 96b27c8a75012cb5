//! The clock that stamps what is written: a parameter, so that one seed replays one world,
//! its times included.
//!
//! It does not know intervals: how long something took, and when a commit is due, is measured
//! with `Instant` and leaves no mark on a volume.

use btrfs_disk::items::Timespec;
use std::fmt::Debug;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time that inodes and roots are stamped with.
pub trait Clock: Send + Sync + Debug {
    /// Seconds since 1970 (before it: below 0) and nanoseconds.
    fn now(&self) -> Timespec;
}

/// The machine's own.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timespec {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timespec { sec: since.as_secs() as i64, nsec: since.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let (secs, nanos) = (before.as_secs() as i64, before.subsec_nanos());
                match nanos {
                    0 => Timespec { sec: -secs, nsec: 0 },
                    _ => Timespec { sec: -secs - 1, nsec: 1_000_000_000 - nanos },
                }
            }
        }
    }
}
