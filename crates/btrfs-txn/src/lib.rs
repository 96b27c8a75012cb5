//! The transaction: a delta over immutable trees, and the commit that merges one into them.
//!
//! [`Core`] is what exists once for a volume: its devices, nodes and space, the layers (the
//! current delta over the sealed one over the published roots), and whether anything may be
//! written. A [`View`] reads all layers; an [`Op`] changes the current delta; [`commit::merge`]
//! turns a sealed delta into new trees that are written but for the superblock.
//!
//! It knows items, trees and extents. It does not know inodes, names or file content, when to
//! commit, what may be reserved, or the tree log: those stand on it (`btrfs-fs`).
#![cfg_attr(not(test), deny(unreachable_pub))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod budget;
pub mod commit;
mod core;
pub mod counter;
pub mod delta;
mod discards;
mod health;
mod injection;
mod memory;
mod object;
mod pacing;
mod requests;
pub mod roots;
mod sync;
mod throttle;
mod time;
pub mod turns;
pub mod view;

pub use crate::core::{Addresses, Core, Features, Op, Parts, RUN_PLACES, Unverified};
pub use counter::{Counter, TxnStats};
pub use discards::PendingDiscards;
pub use health::{Health, PoisonUnlessDone};
pub use injection::{Defect, Injection, Place};
pub use memory::{Contents, Memory, MemoryLimits};
pub use object::ObjectId;
pub use pacing::{Pacing, Usage, Work};
pub use requests::{CommitRequests, Request};
pub use roots::{Root, Roots, Trees, TreesSum};
pub use throttle::{BATCH, Throttle, Urgency};
pub use time::{Clock, Contention};
pub use turns::{Turns, Wanted};
pub use view::{Snapshot, View};
