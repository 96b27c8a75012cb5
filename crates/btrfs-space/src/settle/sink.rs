//! What bulk edit asks of the space layer, answered for one tree.
//!
//! Invariant: every node that is allocated here is born in the deltas with one keyed
//! reference, and every one that vanishes drops it; so the drain sees all of them.

use super::undo::Ledger;
use crate::items::TreeItems;
use crate::refs::{ExtentKind, RefDeltas, RefOwner, stored_refs};
use crate::shared;
use crate::space::{Kind, MetadataReservation, Space};
use btrfs_disk::{Generation, Key, Logical, Node, Result, TreeId};
use btrfs_tree::{NodeReader, NodeSink, TreeRoot};
use std::sync::Arc;

pub(super) struct Sink<'a, R> {
    pub space: &'a Space,
    pub reservation: &'a mut Option<MetadataReservation>,
    /// Nodes from metadata.
    pub taken: &'a mut u64,
    pub ledger: &'a mut Ledger,
    pub deltas: &'a mut RefDeltas,
    /// The committed extent tree; nothing of `deltas` is in it.
    pub store: &'a R,
    pub extent_root: TreeRoot,
    pub last_snapshot: Generation,
    pub node_size: u64,
    /// Nodes that the tree gained less those it lost.
    pub nodes: i64,
}

impl<R: NodeReader> NodeSink for Sink<'_, R> {
    fn detach(&mut self, tree: TreeId, old: &Arc<Node>) -> Result<()> {
        let mut items = TreeItems::new(self.store, &self.extent_root);
        let mut lookup =
            |pending: &RefDeltas, logical| stored_refs(&mut items, &[pending], logical);
        shared::detach(self.deltas, &mut lookup, tree, old, self.last_snapshot)?;
        self.nodes -= 1;
        Ok(())
    }

    fn alloc(&mut self, tree: TreeId, level: u8, _: Key) -> Result<Logical> {
        let extent = match (tree, &mut self.reservation) {
            (TreeId::CHUNK, _) => self.space.alloc(Kind::System, self.node_size, self.node_size)?,
            (_, Some(reservation)) => reservation.alloc_node(self.space, self.node_size)?,
            (_, None) => self.space.alloc(Kind::Metadata, self.node_size, self.node_size)?,
        };
        self.ledger.took(extent);
        *self.taken += u64::from(tree != TreeId::CHUNK);
        let kind = ExtentKind::Node { level };
        self.deltas.born(extent.logical, self.node_size, kind, tree);
        let owner = RefOwner::Tree { root: tree };
        self.deltas.add(extent.logical, self.node_size, kind, owner, 1);
        self.nodes += 1;
        Ok(extent.logical)
    }

    fn free_dirty(&mut self, tree: TreeId, logical: Logical, level: u8) -> Result<()> {
        let kind = ExtentKind::Node { level };
        let owner = RefOwner::Tree { root: tree };
        self.deltas.add(logical, self.node_size, kind, owner, -1);
        self.nodes -= 1;
        Ok(())
    }
}
