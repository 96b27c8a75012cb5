//! Space and references: who holds an extent, what is free, what a commit must record.
//!
//! Passive parts ([`RefDeltas`], [`shared`], [`free_space`], [`Space`]) and the driver
//! that settles them in one commit ([`Settle`]).
//!
//! What it does not know: inodes, epochs, when a commit is due.
#![cfg_attr(not(test), deny(unreachable_pub))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod backrefs;
pub mod free_space;
mod items;
pub mod refs;
mod settle;
pub mod shared;
mod space;
pub mod space_cache;

pub use items::TreeItems;
pub use items::{Change, Changes, Items};
pub use refs::{ExtentKind, RefDeltas, RefOwner};
pub use settle::{
    CountedMoves, DataFate, DropState, MoveContent, MoveNodes, MovedNodes, Settle, Settled,
    can_be_dropped, count_moves,
};
#[cfg(feature = "fault-injection")]
pub use space::Moment;
pub use space::{
    Claim, ClassTotals, DataReservation, GoneChunk, GroupInfo, Kept, Kind, MetadataReservation,
    NewChunk, Priority, Prover, SharedReservation, Space, SpaceRoots, Totals, Unproven,
};

use btrfs_disk::Logical;

/// A range of the logical space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    /// Where it begins.
    pub logical: Logical,
    /// Bytes of the logical space; what its copies take on a device is not added up.
    pub len: u64,
}

impl Extent {
    /// The first address behind it.
    pub fn end(&self) -> u64 {
        self.logical.0 + self.len
    }
}
