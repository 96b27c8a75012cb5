//! The outside judges and the machine they need: `btrfs check`, the kernel's own btrfs
//! over loop devices, scrub; and honest skipping where the machine lacks something.

mod caches;
mod capability;
mod command;
mod judge;
mod mount;
mod populate;
mod temp;

pub use caches::drop_caches;
pub use capability::{Capabilities, capabilities, record_skip, skip_count};
pub use command::{Report, run, sh};
pub use judge::{
    SCRUB, assert_clean, btrfs_check, btrfs_check_devices, mkfs_btrfs, mkfs_btrfs_devices,
    newer_btrfs, newer_btrfs_check, newer_mkfs, scrub, with_kernel,
};
pub use mount::{KernelMount, LoopDevice};
pub use populate::{colliding_names, kernel_populate, kernel_populate_mount, name_hash};
pub use temp::TempDir;
