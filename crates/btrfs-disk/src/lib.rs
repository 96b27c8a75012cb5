//! Bytes <-> types: the btrfs on-disk format, and the gate that hostile bytes must pass.
//!
//! No I/O, no caches, no policy. Format facts: the btrfs on-disk format page of the
//! btrfs documentation (btrfs.readthedocs.io, "On-disk Format" and "Btrfs design") and
//! images made by the kernel and mkfs.btrfs.
//!
//! Invariant: only a [`Node`] has accessors, and a `Node` exists only after
//! [`check`]'s gate accepted its bytes or [`build`] made them.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(unreachable_pub))]
#![deny(missing_docs)]
// Where bytes become numbers a cut one is a wrong answer; tests make bytes of their own.
#![cfg_attr(not(test), deny(clippy::as_conversions))]

#[macro_use]
mod le;

pub mod buffers;
pub mod build;
pub mod check;
pub mod checksum;
pub mod compress;
pub mod error;
mod geometry;
pub mod ids;
pub mod items;
pub mod key;
pub mod node;
pub mod superblock;

pub use build::{LeafItem, NodeIdentity};
pub use check::Expect;
pub use checksum::ChecksumType;
pub use error::{Corrupt, DamageKind, Error, Result};
pub use geometry::Geometry;
pub use ids::{Generation, Logical, Physical, TreeId};
pub use key::Key;
pub use le::FixedSize;
pub use node::{ChildPtr, Header, Node};
pub use superblock::Superblock;
