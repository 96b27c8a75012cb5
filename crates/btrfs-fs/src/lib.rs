//! The file system: a delta over immutable btrfs trees, behind `vfs::FileSystem`.
//!
//! Operations (`ops/`) write the delta; a commit (`commit/`) merges it into the trees.
//! See docs/ARCHITECTURE.md for the ways through the house.
#![forbid(unsafe_code)]

mod acl;
mod close;
mod commit;
mod data;
mod delta;
mod device_extents;
mod engine;
mod error;
mod extents;
mod fs;
mod hush;
mod ino;
mod inode;
mod locks;
mod log;
mod names;
mod numbers;
mod open;
mod ops;
mod options;
mod orphan;
mod refusals;
mod reserve;
mod roots;
mod stats;
mod subvol;
mod sync;
mod untold;
mod view;
mod whereabouts;
mod xattrs;

pub use extents::Stored;
pub use fs::BtrfsFs;
#[cfg(feature = "ablation")]
#[doc(hidden)]
pub use options::Ablate;
pub use options::{Atime, Options, Sabotage, Subvol};
