//! The file system: a delta over immutable btrfs trees, behind `vfs::FileSystem`.
//!
//! Operations (`ops/`) write the delta; a commit (`commit/`) merges it into the trees.
//! See docs/ARCHITECTURE.md for the ways through the house.
#![cfg_attr(not(test), deny(unreachable_pub))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod acl;
mod balance;
mod beside;
mod cleaner;
mod close;
mod commit;
mod committed;
pub mod control;
mod convert;
mod device_extents;
mod device_stats;
mod each_item;
mod engine;
mod erasures;
mod error;
mod extents;
mod file_path;
mod find_new;
mod fs;
mod fsync;
mod ino;
mod inode;
mod join;
mod label;
mod log;
mod lost_names;
mod maintenance;
mod names;
mod numbers;
mod open;
mod ops;
mod options;
mod orphan;
mod qgroup;
mod quotas;
mod rate_limit;
mod recover;
mod remount;
mod rescue;
mod reserve;
mod reserver;
mod runs;
mod scrub;
mod semaphore;
mod stats;
mod subvol;
mod subvolumes;
mod sync;
mod tickets;
mod unsettled;
mod usage;
mod uuid_tree;
mod verity;
mod writeback;
mod writeback_errors;
mod xattrs;

pub use balance::{BalanceReport, BalanceState, BalanceStatus, NewSize};
pub use btrfs_txn::{Clock, Contention};
#[cfg(feature = "fault-injection")]
pub use btrfs_txn::{Defect, Injection, Place, view::passed_over};
pub use committed::{Committed, Reference};
pub use device_stats::DeviceErrors;
pub use error::to_fs;
pub use extents::Stored;
#[cfg(feature = "fault-injection")]
pub use extents::most_mapped;
pub use find_new::NewExtent;
pub use fs::BtrfsFs;
pub use ino::same_subvolume;
#[cfg(feature = "fault-injection")]
pub use ino::use_up_windows;
#[cfg(feature = "fault-injection")]
pub use inode::inode_layout;
#[cfg(feature = "fault-injection")]
pub use log::compared_with_gaps;
pub use ops::defragment::Defragment;
pub use ops::verity::Wish as VerityWish;
pub use options::{
    Atime, Compress, Method, Options, Rescue, Subvol, SystemClock, SystemContention,
};
pub use qgroup::{LimitChange, NoQgroupId, Qgroup, QgroupId, QuotaStatus};
pub use rescue::unfinished_replacement;
pub use scrub::{ScrubState, ScrubStatus};
pub use subvol::{
    Caller, Delete, NewSubvolume, ReceivedFrom, Sending, SubvolId, SubvolumeInfo, Time, known_as,
};
pub use unsettled::{Beginning, Receiving};
pub use usage::{DeviceUsage, GroupUsage, Usage};
