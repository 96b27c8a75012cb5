//! The delta: what operations changed in one epoch, in memory.
//!
//! Operations write here and nowhere else; a commit merges a sealed delta into the
//! trees. It knows keys, bytes and extents; it does not know what an operation is, nor
//! where trees are stored.
//!
//! Invariants:
//! * while `sealed` is set no operation enters; a sealed delta without active operations
//!   never changes again;
//! * a key has at most one slot; a slot whose key is in no lower layer vanishes when it is
//!   deleted, so that what is born and gone within an epoch never reaches a tree.

mod actions;
mod around;
mod bare;
mod counts;
mod extents;
mod freeze;
mod gate;
#[cfg(test)]
mod gate_tests;
mod items;
mod join;
mod pending;
mod slot;
mod slots;
mod touched;
mod watch;

pub use actions::{
    ActionCost, Dropping, Move, OwnEntry, ReceivedForm, SnapshotForm, TreeAction, TreeActions,
};
pub use bare::before;
pub use extents::{ExtentDelta, Holders};
pub use gate::{Active, Gate};
pub use items::{Beside, Changed, ItemDelta, ObjectEdit};
pub use pending::Pending;
pub use slot::Base;
pub use watch::{Ask, Frozen, Level, is_ref};

use btrfs_disk::Generation;
use std::sync::atomic::AtomicBool;

/// What an epoch changed, until its commit has it in the trees.
pub struct Delta {
    /// Of the commit that will have it.
    pub generation: Generation,
    /// Operations are inside while they change it.
    pub gate: Gate,
    /// Items of the trees of files, and of the root and UUID trees.
    pub items: ItemDelta,
    /// Data extents and their checksums.
    pub extents: ExtentDelta,
    /// What becomes of whole trees.
    pub trees: TreeActions,
    /// A subvolume has another name: no log of this epoch may say less.
    pub(crate) renamed_subvolume: AtomicBool,
    /// An inline item of more than one sector goes: no log may have extents in its place.
    pub(crate) lost_long_item: AtomicBool,
}

impl Delta {
    /// Empty, its gate open.
    pub fn new(generation: Generation) -> Delta {
        Delta {
            generation,
            gate: Gate::new(),
            items: ItemDelta::new(generation),
            extents: ExtentDelta::new(generation),
            trees: TreeActions::default(),
            renamed_subvolume: AtomicBool::new(false),
            lost_long_item: AtomicBool::new(false),
        }
    }

    /// True if a commit of it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.extents.is_empty() && self.trees.is_empty()
    }

    /// Gives its memory back, calling `rest` now and then.
    pub fn free(self, mut rest: impl FnMut()) {
        self.extents.free(&mut rest);
        self.items.free(rest);
    }

    /// Bytes of memory that the delta holds, roughly.
    pub fn bytes(&self) -> u64 {
        self.items.bytes() + self.extents.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::Gate;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// Operations overlap without end, so their lane is never seen empty.
    #[test]
    fn who_waits_is_not_kept_by_those_who_come_in() {
        let (gate, over) = (Arc::new(Gate::new()), Arc::new(AtomicBool::new(false)));
        let (is_inside, inside) = channel();
        let busy = std::thread::spawn({
            let (gate, over) = (gate.clone(), over.clone());
            move || {
                let mut active = gate.enter().expect("open");
                is_inside.send(()).expect("somebody listens");
                while !over.load(Ordering::Relaxed) {
                    let next = gate.enter().expect("open");
                    gate.leave(std::mem::replace(&mut active, next));
                }
                gate.leave(active);
            }
        });
        inside.recv().expect("it goes in");
        let (has_waited, waited) = channel();
        std::thread::spawn(move || {
            gate.wait_for_those_inside();
            has_waited.send(()).expect("somebody listens");
        });
        let told = waited.recv_timeout(Duration::from_secs(20));
        over.store(true, Ordering::Relaxed);
        busy.join().expect("no panic");
        told.expect("it gives up");
    }
}
