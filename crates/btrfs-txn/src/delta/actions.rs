//! What a commit does with whole trees: entries of a delta beside the items.
//!
//! A commit does them in a fixed order, whatever order they came in: a free-space tree,
//! which all others need, and new trees (the UUID tree among them) before the items,
//! so that those find their trees; snapshots behind all items, so that one has exactly what its
//! epoch and those before it did; then what root items shall say; then drops; then moves.
//!
//! What it does not know: names, who asks, and what items mean.

use btrfs_disk::items::{RootItem, Timespec};
use btrfs_disk::{Key, Logical, TreeId};
use btrfs_space::space_cache::CacheFile;
use btrfs_space::{DropState, MoveNodes, MovedNodes};
use locks::{Mutex, Rank};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One tree's turn in a commit.
#[derive(Clone)]
// Exhaustive: a commit carries out each; one passed over is a change lost.
pub enum TreeAction {
    /// A new, empty tree. `item` is filled in with address, level and generations.
    Create {
        /// No tree has it.
        id: TreeId,
        /// Its ROOT_ITEM.
        item: Box<RootItem>,
    },
    /// A tree that shares all nodes of `source`.
    Snapshot {
        /// What is copied.
        source: TreeId,
        /// No tree has it.
        to: TreeId,
        /// What the copy is told.
        form: Box<SnapshotForm>,
    },
    /// Bits of the root item's flags.
    Flags {
        /// Whose root item.
        id: TreeId,
        /// Bits that come.
        set: u64,
        /// Bits that go.
        clear: u64,
    },
    /// What a subvolume was received as.
    Received {
        /// Whose root item.
        id: TreeId,
        /// What it is told.
        form: Box<ReceivedForm>,
    },
    /// No name leads to the tree any more: its root item says so, for the drops of later commits.
    Kill {
        /// Nobody changes its items any more.
        id: TreeId,
    },
    /// Some references of killed trees go, oldest tree first, until `budget` nodes were read.
    Drop {
        /// All of them killed in commits before.
        trees: Vec<Dropping>,
        /// Nodes, roughly.
        budget: usize,
    },
    /// Nodes and content move elsewhere, behind everything else.
    Move(Arc<Move>),
    /// A free-space tree, of a volume that has none or whose own is not valid; these version 1 space
    /// caches go, in any case, of each of which `btrfs_space::can_be_dropped` was asked.
    FreeSpaceTree(Arc<[CacheFile]>),
    /// A UUID tree of these entries, by ascending key, of a volume that has none.
    MakeUuidTree(Arc<[(Key, Box<[u8]>)]>),
    /// The UUID tree goes, and nothing of it changes in the epoch.
    ForgetUuidTree,
    /// The UUID tree does not say all that the epoch changes of subvolumes: nobody is to go by it.
    UuidTreeLags,
    /// The quota tree goes, and nothing of it is read nor changes in the epoch.
    ForgetQuotas,
    /// The superblock says that a mount does not begin at the top level of itself.
    OtherDefault,
}

/// A move that a commit shall make.
pub struct Move {
    /// What of it, and how many copies at most.
    pub what: MoveNodes,
    /// Checksums of the content, where it will be.
    pub sums: Vec<(Logical, Box<[u8]>)>,
    state: Mutex<MoveState>,
}

enum MoveState {
    Wanted,
    Withdrawn,
    Done(MovedNodes),
}

impl Move {
    /// Nobody has done anything of it.
    pub fn new(what: MoveNodes, sums: Vec<(Logical, Box<[u8]>)>) -> Arc<Move> {
        Arc::new(Move { what, sums, state: Mutex::new(Rank::Leaf, MoveState::Wanted) })
    }

    pub(crate) fn is_wanted(&self) -> bool {
        matches!(*self.state.lock(), MoveState::Wanted)
    }

    pub(crate) fn done(&self, moved: MovedNodes) {
        *self.state.lock() = MoveState::Done(moved);
    }

    /// If nothing was done of it yet, nothing will be.
    pub fn withdraw(&self) {
        let mut state = self.state.lock();
        if matches!(*state, MoveState::Wanted) {
            *state = MoveState::Withdrawn;
        }
    }

    /// What became of it; if nothing, nothing will: a commit that found no room is made again,
    /// when content may not be what it was.
    pub fn end(&self) -> Option<MovedNodes> {
        match std::mem::replace(&mut *self.state.lock(), MoveState::Withdrawn) {
            MoveState::Done(moved) => Some(moved),
            MoveState::Wanted | MoveState::Withdrawn => None,
        }
    }
}

/// What a snapshot's root item has that the source's has not.
#[derive(Clone, Debug)]
pub struct SnapshotForm {
    /// Its own.
    pub uuid: [u8; 16],
    /// Nothing in it may be changed.
    pub read_only: bool,
    /// When it was made.
    pub otime: Timespec,
    /// The snapshot's own entry, where that lies in the source: it is not in the copy.
    pub entry: Option<OwnEntry>,
}

/// What the root item of a received subvolume says.
#[derive(Clone, Debug)]
pub struct ReceivedForm {
    /// Of what was sent.
    pub uuid: [u8; 16],
    /// The last commit of what was sent.
    pub stransid: u64,
    /// When it was sent.
    pub stime: Timespec,
    /// By which commit it was received; `None`: by the one that says so.
    pub rtransid: Option<u64>,
    /// When it was received.
    pub rtime: Timespec,
}

impl ReceivedForm {
    /// It was not received.
    pub fn nothing() -> ReceivedForm {
        let never = Timespec { sec: 0, nsec: 0 };
        ReceivedForm { uuid: [0; 16], stransid: 0, stime: never, rtransid: Some(0), rtime: never }
    }
}

/// An entry of a directory of the source, and the directory as it was without.
#[derive(Clone, Debug)]
pub struct OwnEntry {
    /// The directory.
    pub dir: u64,
    /// In it.
    pub name: Vec<u8>,
    /// Of its DIR_INDEX.
    pub index: u64,
    /// Times before and behind; other changes of the directory may follow in the epoch.
    pub before: (Timespec, Timespec),
    /// See `before`.
    pub behind: Timespec,
}

/// A tree that is being dropped, and what the steps before have found, to be quicker.
#[derive(Clone)]
pub struct Dropping {
    /// Killed; that of relocations stands for all trees that they left.
    pub id: TreeId,
    /// As of the last step that was committed.
    pub state: Arc<Mutex<DropState>>,
}

impl Dropping {
    /// Nothing is known of it.
    pub fn new(id: TreeId) -> Dropping {
        Dropping { id, state: Arc::new(Mutex::new(Rank::Leaf, DropState::default())) }
    }

    /// Why it does not go on, if something of the tree cannot be read.
    pub fn stuck(&self) -> Option<String> {
        self.state.lock().stuck().map(str::to_owned)
    }
}

/// What the commit of an action changes, beside the items that come with it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ActionCost {
    /// Keys that lie apart.
    pub places: u64,
    /// Trees that these lie in.
    pub trees: u64,
    /// Bytes that items take anew.
    pub bytes: u64,
    /// Places in the checksum tree.
    pub sums: u64,
}

impl ActionCost {
    /// Of both.
    pub fn and(self, other: ActionCost) -> ActionCost {
        sum(self, other)
    }
}

/// The actions of one epoch. What they cost is read by every operation that reserves: without the lock.
pub struct TreeActions {
    actions: Mutex<Vec<(TreeAction, ActionCost)>>,
    places: AtomicU64,
    trees: AtomicU64,
    bytes: AtomicU64,
    sums: AtomicU64,
}

impl Default for TreeActions {
    fn default() -> TreeActions {
        TreeActions::new(Vec::new())
    }
}

impl TreeActions {
    fn new(actions: Vec<(TreeAction, ActionCost)>) -> TreeActions {
        let cost = actions.iter().fold(ActionCost::default(), |all, (_, cost)| all.and(*cost));
        let ActionCost { places, trees, bytes, sums } = cost;
        TreeActions {
            actions: Mutex::new(Rank::Leaf, actions),
            places: places.into(),
            trees: trees.into(),
            bytes: bytes.into(),
            sums: sums.into(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.actions.lock().is_empty()
    }

    /// One more, and what it costs.
    pub fn add(&self, action: TreeAction, cost: ActionCost) {
        let ActionCost { places, trees, bytes, sums } = cost;
        let parts = [places, trees, bytes, sums];
        let mut actions = self.actions.lock();
        for (sum, part) in self.parts().into_iter().zip(parts) {
            sum.fetch_add(part, Ordering::Relaxed);
        }
        actions.push((action, cost));
    }

    /// Whether one of them is such.
    pub fn any(&self, mut such: impl FnMut(&TreeAction) -> bool) -> bool {
        self.actions.lock().iter().any(|(action, _)| such(action))
    }

    /// All of them, in the order in which they came.
    pub fn list(&self) -> Vec<TreeAction> {
        self.actions.lock().iter().map(|(action, _)| action.clone()).collect()
    }

    /// What all of them change. One that somebody adds meanwhile may be in it in part: its
    /// reservation counts still.
    pub fn cost(&self) -> ActionCost {
        let [places, trees, bytes, sums] = self.parts().map(|sum| sum.load(Ordering::Relaxed));
        ActionCost { places, trees, bytes, sums }
    }

    fn parts(&self) -> [&AtomicU64; 4] {
        [&self.places, &self.trees, &self.bytes, &self.sums]
    }

    /// As `Delta::joined`, but for what whoever asked for it asks for again: a commit that found no room should not find
    /// even less the next time.
    pub(super) fn joined(below: &TreeActions, above: &TreeActions) -> TreeActions {
        let mut actions = below.actions.lock().clone();
        actions.extend(above.actions.lock().iter().cloned());
        actions.retain(|(action, _)| match action {
            TreeAction::Drop { .. } | TreeAction::MakeUuidTree(_) => false,
            TreeAction::Move(order) => order.is_wanted(),
            _ => true,
        });
        TreeActions::new(actions)
    }
}

fn sum(a: ActionCost, b: ActionCost) -> ActionCost {
    ActionCost {
        places: a.places + b.places,
        trees: a.trees + b.trees,
        bytes: a.bytes + b.bytes,
        sums: a.sums + b.sums,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It ended with the commit that found no room; who wants it still asks anew.
    #[test]
    fn what_nobody_waits_for_is_not_taken_over() {
        let move_nothing = || {
            let what = MoveNodes {
                range: 0..0,
                content: Vec::new(),
                limit: 0,
                references: 0,
                leaves: Default::default(),
            };
            Move::new(what, Vec::new())
        };
        let cost = ActionCost { places: 1, ..ActionCost::default() };
        let (ended, wanted) = (move_nothing(), move_nothing());
        let [below, above] = [(); 2].map(|()| TreeActions::default());
        below.add(TreeAction::Move(ended.clone()), cost);
        below.add(TreeAction::OtherDefault, cost);
        above.add(TreeAction::Move(wanted), cost);
        assert!(ended.end().is_none());
        let joined = TreeActions::joined(&below, &above);
        assert_eq!((joined.list().len(), joined.cost().places), (2, 2));
        let such = |action: &TreeAction| matches!(action, TreeAction::Move(it) if it.is_wanted());
        assert!(joined.list().iter().any(such));
    }
}
