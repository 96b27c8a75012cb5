//! The clock of a mount for whose files the kernel keeps times itself (`-o writeback`): the one that the kernel stamps
//! with. With a finer one of ours a file would be older behind its first write than when it was made.

use crate::sys;
use btrfs_disk::items::Timespec;
use btrfs_fs::Clock;

#[derive(Debug)]
pub struct KernelClock;

impl Clock for KernelClock {
    fn now(&self) -> Timespec {
        let (sec, nsec) = sys::of_kernel();
        Timespec { sec, nsec }
    }
}
