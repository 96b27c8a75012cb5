//! What tests stand on: a reference model, an operation generator, tree comparison and
//! the outside judges (`btrfs check`, the kernel's mount, scrub).
//!
//! Nothing here is part of the shipped program.

pub mod compare;
pub mod damage;
pub mod durability;
#[cfg(feature = "loom")]
pub mod model_locks;
pub mod ops;
pub mod oracle;
pub mod posix_ops;
pub mod reffs;

pub use posix_ops::PosixFs;
pub use reffs::{Profile, RefFs};
