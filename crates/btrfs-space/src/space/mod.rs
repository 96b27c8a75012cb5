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
    classes: [Arc<Class>; 3],
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

/// Classes and their groups refer to each other: nobody else would let them go.
impl Drop for Space {
    fn drop(&mut self) {
        for class in &self.classes {
            *class.groups.write() = Arc::default();
        }
    }
}

impl Space {
    /// The volume that it is the space of.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    fn class(&self, kind: Kind) -> &Arc<Class> {
        &self.classes[kind as usize]
    }

    fn class_of_flags(&self, flags: u64) -> &Arc<Class> {
        self.class(if flags & SYSTEM != 0 {
            Kind::System
        } else if flags & METADATA != 0 {
            Kind::Metadata
        } else {
            Kind::Data
        })
    }

    /// True if data and metadata share their block groups.
    pub fn mixed(&self) -> bool {
        Arc::ptr_eq(self.class(Kind::Data), self.class(Kind::Metadata))
    }

    fn new_classes(sector: u64, node: u64, mixed: bool) -> [Arc<Class>; 3] {
        let metadata = Arc::new(match mixed {
            true => Class::new(DATA | METADATA, sector),
            false => Class::new(METADATA, node),
        });
        let data = if mixed { Arc::clone(&metadata) } else { Arc::new(Class::new(DATA, sector)) };
        [data, metadata, Arc::new(Class::new(SYSTEM, node))]
    }
}
