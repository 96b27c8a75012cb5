//! Nodes of the running transaction that no disk has seen yet.
//!
//! Invariant: every node here has been made by [`crate::apply`] and its like in one
//! generation, and is reachable from a root that they returned, until its tree drops it.
//!
//! What it does not know: where free addresses come from, when a commit is due.

use crate::reader::{NodeReader, keeps};
use btrfs_disk::{Expect, Geometry, Logical, Node, Result};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Nodes that are not on the medium yet.
#[derive(Clone, Default, Debug)]
pub struct DirtyNodes {
    nodes: BTreeMap<Logical, Arc<Node>>,
    /// Those of them that nobody is known to want in memory once they are written.
    passing: HashSet<Logical>,
}

impl DirtyNodes {
    /// None.
    pub fn new() -> DirtyNodes {
        DirtyNodes::default()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node at this address.
    pub fn get(&self, logical: Logical) -> Option<&Arc<Node>> {
        self.nodes.get(&logical)
    }

    /// Whether one is at this address.
    pub fn contains(&self, logical: Logical) -> bool {
        self.nodes.contains_key(&logical)
    }

    /// In address order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Node>> + '_ {
        self.nodes.values()
    }

    /// Puts a node in; one with the same address is replaced.
    pub fn insert(&mut self, node: Arc<Node>) -> Option<Arc<Node>> {
        if !self.passing.is_empty() {
            self.passing.remove(&node.logical());
        }
        self.nodes.insert(node.logical(), node)
    }

    /// The same of one that the cache is not to have, unless something changes it before it is written.
    pub fn insert_passing(&mut self, node: Arc<Node>) {
        self.passing.insert(node.logical());
        self.nodes.insert(node.logical(), node);
    }

    /// Takes it out: it is not to be written.
    pub fn remove(&mut self, logical: Logical) -> Option<Arc<Node>> {
        self.nodes.remove(&logical)
    }

    /// All nodes in address order, leaving none.
    pub fn take(&mut self) -> Vec<Arc<Node>> {
        self.passing.clear();
        std::mem::take(&mut self.nodes).into_values().collect()
    }

    /// The same: those to be kept in memory, and those that pass.
    pub(crate) fn take_apart(&mut self) -> (Vec<Arc<Node>>, Vec<Arc<Node>>) {
        let passing = std::mem::take(&mut self.passing);
        let nodes = std::mem::take(&mut self.nodes).into_values();
        nodes.partition(|node| !passing.contains(&node.logical()))
    }

    /// A reader that sees these nodes in front of `base`.
    pub fn over<'a, R: NodeReader + ?Sized>(&'a self, base: &'a R) -> Overlay<'a, R> {
        Overlay { dirty: self, base }
    }
}

/// Trees under construction, read like any others.
pub struct Overlay<'a, R: ?Sized> {
    dirty: &'a DirtyNodes,
    base: &'a R,
}

impl<R: ?Sized> Clone for Overlay<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: ?Sized> Copy for Overlay<'_, R> {}

impl<R: NodeReader + ?Sized> NodeReader for Overlay<'_, R> {
    fn node(&self, expect: &Expect) -> Result<Arc<Node>> {
        match self.dirty.get(expect.logical) {
            Some(node) => {
                keeps(node, expect)?;
                Ok(Arc::clone(node))
            }
            None => self.base.node(expect),
        }
    }

    fn geometry(&self) -> &Geometry {
        self.base.geometry()
    }
}
