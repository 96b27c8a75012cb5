//! Block groups and what is free in them: the one place that hands out addresses.
//!
//! In memory all of it; the trees are read once, by [`Space::load`], and written by
//! commits ([`crate::Settle`]). Lock order: `device` (chunks), then `groups`, a class's
//! group list, one group.
//!
//! What it does not know: references, who asked, when a commit is durable.

mod alloc;
mod chunk_alloc;
mod class;
mod empty_out;
#[cfg(feature = "fault-injection")]
mod fail;
mod free_index;
mod group;
mod list;
mod load;
mod proof;
mod prove;
mod reclaim;
mod reservation;
mod reserve;
mod resize;
mod sync;
mod totals;
mod trim;
mod undo;

pub use chunk_alloc::{GoneChunk, NewChunk};
#[cfg(feature = "fault-injection")]
pub use fail::Moment;
pub use load::SpaceRoots;
pub use prove::{Claim, Prover, Unproven};
pub use reservation::{DataReservation, MetadataReservation, SharedReservation};
pub use reserve::{Kept, Priority};
pub use totals::{ClassTotals, GroupInfo, Totals};

use btrfs_disk::ids::block_group::{DATA, METADATA, SYSTEM};
use btrfs_volume::Volume;
use chunk_alloc::Device;
use class::Class;
use group::Group;
use list::List;
use locks::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// What an extent is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
// Exhaustive: the format has these; each has groups, a reserve and figures of its own.
pub enum Kind {
    /// File content; of a mixed volume nodes are in the same groups.
    Data,
    /// Nodes of all trees but the chunk tree.
    Metadata,
    /// Nodes of the chunk tree.
    System,
}

/// What of a volume's space is allocated, free and promised; one for all who write to it.
pub struct Space {
    volume: Arc<Volume>,
    /// Data, metadata, system; of a mixed volume the first two are one.
    lists: [Arc<List>; 3],
    /// By logical start.
    groups: RwLock<BTreeMap<u64, Arc<Group>>>,
    device: Mutex<Device>,
    unallocated: AtomicU64,
    /// How often a chunk came or went; behind the chunk lock.
    chunk_changes: AtomicU64,
    /// The commit that knows all chunks; `u64::MAX`: none does yet.
    all_recorded: AtomicU64,
    device_bytes: AtomicU64,
    prover: OnceLock<Box<Prover>>,
    #[cfg(feature = "fault-injection")]
    faults: fail::Faults,
}

impl Space {
    /// The volume that it is the space of.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    fn list(&self, kind: Kind) -> &List {
        &self.lists[kind as usize]
    }

    fn class(&self, kind: Kind) -> &Arc<Class> {
        self.list(kind).class()
    }

    fn list_of_flags(&self, flags: u64) -> &List {
        self.list(kind_of_flags(flags))
    }

    /// True if data and metadata share their block groups.
    pub fn mixed(&self) -> bool {
        std::ptr::eq(self.list(Kind::Data), self.list(Kind::Metadata))
    }

    fn new_lists(sector: u64, node: u64, mixed: bool) -> [Arc<List>; 3] {
        let list = |type_flags, unit| Arc::new(List::new(Class::new(type_flags, unit)));
        let metadata = match mixed {
            true => list(DATA | METADATA, sector),
            false => list(METADATA, node),
        };
        let data = if mixed { Arc::clone(&metadata) } else { list(DATA, sector) };
        [data, metadata, list(SYSTEM, node)]
    }
}

/// What block group flags say that it is for (mixed: metadata, whose list is that of data).
fn kind_of_flags(flags: u64) -> Kind {
    if flags & SYSTEM != 0 {
        Kind::System
    } else if flags & METADATA != 0 {
        Kind::Metadata
    } else {
        Kind::Data
    }
}
