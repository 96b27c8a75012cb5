//! What one pass over a tree carries with it, and the only place that talks to the sink.

use super::NodeSink;
use super::run::{Entry, Run};
use crate::dirty::{DirtyNodes, Overlay};
use crate::reader::NodeReader;
use btrfs_disk::node::ChildPtr;
use btrfs_disk::{Generation, Geometry, Logical, Node, NodeIdentity, Result, TreeId};
use std::cell::Cell;
use std::sync::Arc;

pub(super) struct Pass<'p> {
    pub store: &'p dyn NodeReader,
    pub dirty: &'p mut DirtyNodes,
    pub sink: &'p mut dyn NodeSink,
    pub generation: Generation,
    pub tree: TreeId,
}

/// A node on the way from the root to where the pass works. Whether it changes is
/// known only when something below it does; then it is detached, its parents first.
pub(super) struct Frame<'f> {
    node: &'f Arc<Node>,
    parent: Option<&'f Frame<'f>>,
    touched: Cell<bool>,
}

impl<'f> Frame<'f> {
    pub(super) fn new(node: &'f Arc<Node>, parent: Option<&'f Frame<'f>>) -> Frame<'f> {
        Frame { node, parent, touched: Cell::new(false) }
    }
}

impl Pass<'_> {
    pub(super) fn reader(&self) -> Overlay<'_, dyn NodeReader + '_> {
        self.dirty.over(self.store)
    }

    pub(super) fn geometry(&self) -> &Geometry {
        self.store.geometry()
    }

    /// Whether the node may be rewritten at its address. A node of another tree may
    /// not, however young: a snapshot shares it.
    pub(super) fn is_dirty(&self, node: &Node) -> bool {
        node.generation() == self.generation
            && node.owner() == self.tree
            && self.dirty.contains(node.logical())
    }

    /// The node's address if a rewrite may take it over.
    pub(super) fn home(&self, node: &Node) -> Option<Logical> {
        self.is_dirty(node).then(|| node.logical())
    }

    /// The node of `frame` is about to change, and with it all above it.
    pub(super) fn touch(&mut self, frame: &Frame<'_>) -> Result<()> {
        if frame.touched.replace(true) {
            return Ok(());
        }
        if let Some(parent) = frame.parent {
            self.touch(parent)?;
        }
        self.detach(frame.node)
    }

    /// This tree lets go of a node whose contents are taken over elsewhere.
    pub(super) fn detach(&mut self, node: &Arc<Node>) -> Result<()> {
        if self.is_dirty(node) { Ok(()) } else { self.sink.detach(self.tree, node) }
    }

    /// Dirty nodes whose addresses nothing took over.
    pub(super) fn release(
        &mut self,
        homes: impl IntoIterator<Item = Logical>,
        level: u8,
    ) -> Result<()> {
        for logical in homes {
            self.dirty.remove(logical);
            self.sink.free_dirty(self.tree, logical, level)?;
        }
        Ok(())
    }

    /// Cuts a run into nodes, each at one of the run's own addresses while they last.
    pub(super) fn emit<'l, E: Entry<'l>>(
        &mut self,
        run: Run<E>,
        level: u8,
    ) -> Result<Vec<ChildPtr>> {
        let mut homes = run.homes.iter().copied();
        let mut pointers = Vec::new();
        let mut from = 0;
        for end in run.cut(E::room(self.geometry())) {
            let part = &run.entries[from..end];
            from = end;
            pointers.push(self.build(part, level, homes.next())?);
        }
        assert_eq!(from, run.entries.len(), "a cut covers the run");
        self.release(homes, level)?;
        Ok(pointers)
    }

    fn build<'l, E: Entry<'l>>(
        &mut self,
        entries: &[E],
        level: u8,
        home: Option<Logical>,
    ) -> Result<ChildPtr> {
        let key = entries[0].key();
        let logical = match home {
            Some(logical) => logical,
            None => self.fresh(level, key)?,
        };
        let id = NodeIdentity { logical, generation: self.generation, owner: self.tree };
        let node = E::build(self.geometry(), &id, level, entries);
        debug_assert!(self.children_agree(&node));
        self.dirty.insert(Arc::new(node));
        Ok(ChildPtr { key, logical, generation: self.generation })
    }

    /// An address that no node of this transaction has.
    pub(super) fn fresh(&mut self, level: u8, first_key: btrfs_disk::Key) -> Result<Logical> {
        let logical = self.sink.alloc(self.tree, level, first_key)?;
        assert!(!self.dirty.contains(logical), "address {logical} was handed out twice");
        Ok(logical)
    }

    /// Whether the pointers of a new node say what their new children are.
    fn children_agree(&self, node: &Node) -> bool {
        node.is_leaf()
            || node.children().all(|pointer| {
                self.dirty.get(pointer.logical).is_none_or(|child| {
                    child.level() + 1 == node.level()
                        && child.generation() == pointer.generation
                        && child.key(0) == pointer.key
                })
            })
    }
}
