//! From a root to an item: the reader trait, the promises of pointers, point lookups.
//!
//! Invariant: a node handed out by [`root_node`] or [`child_node`] keeps every promise
//! that its pointer and its neighbours make. The gate judged the bytes; here a node is
//! judged in its place, again on every descent, because one cached node may be reached
//! through several parents.

use btrfs_disk::{
    Corrupt, Error, Expect, Generation, Geometry, Key, Logical, Node, Result, TreeId,
};
use std::sync::Arc;

/// Where a tree begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeRoot {
    /// Which tree.
    pub id: TreeId,
    /// Where its root node lies.
    pub logical: Logical,
    /// The root node's.
    pub generation: Generation,
    /// The root node's; 0: it is a leaf.
    pub level: u8,
}

impl TreeRoot {
    /// What the root node has to keep.
    pub fn expect(&self) -> Expect {
        Expect {
            logical: self.logical,
            level: self.level,
            generation: Some(self.generation),
            owner: Some(self.id),
            first_key: None,
        }
    }
}

/// Whence nodes come: the cache over a volume, or nodes under construction over it.
pub trait NodeReader {
    /// The node that `expect` describes, judged.
    fn node(&self, expect: &Expect) -> Result<Arc<Node>>;
    /// Those of some nodes, by ascending address, that are in nobody's memory, for who needs them once: they
    /// stay with him alone.
    fn nodes_once(&self, _: &[Expect]) -> Result<Vec<Arc<Node>>> {
        Ok(Vec::new())
    }
    /// The sizes that rule the volume.
    fn geometry(&self) -> &Geometry;
}

impl<R: NodeReader + ?Sized> NodeReader for &R {
    fn node(&self, expect: &Expect) -> Result<Arc<Node>> {
        (**self).node(expect)
    }
    fn nodes_once(&self, expects: &[Expect]) -> Result<Vec<Arc<Node>>> {
        (**self).nodes_once(expects)
    }
    fn geometry(&self) -> &Geometry {
        (**self).geometry()
    }
}

impl<R: NodeReader + ?Sized> NodeReader for Arc<R> {
    fn node(&self, expect: &Expect) -> Result<Arc<Node>> {
        (**self).node(expect)
    }
    fn nodes_once(&self, expects: &[Expect]) -> Result<Vec<Arc<Node>>> {
        (**self).nodes_once(expects)
    }
    fn geometry(&self) -> &Geometry {
        (**self).geometry()
    }
}

/// A volume without a single node: what a new file system is built over.
#[derive(Clone, Copy, Debug)]
pub struct Blank(pub Geometry);

impl NodeReader for Blank {
    fn node(&self, expect: &Expect) -> Result<Arc<Node>> {
        Err(Corrupt::new("nothing is written there yet").at(expect.logical).into())
    }
    fn geometry(&self) -> &Geometry {
        &self.0
    }
}

/// One item, kept alive by its leaf.
#[derive(Clone, Debug)]
pub struct Item {
    node: Arc<Node>,
    slot: usize,
}

impl Item {
    pub(crate) fn new(node: Arc<Node>, slot: usize) -> Item {
        Item { node, slot }
    }

    /// Its key.
    pub fn key(&self) -> Key {
        self.node.key(self.slot)
    }

    /// Its bytes.
    pub fn data(&self) -> &[u8] {
        self.node.data(self.slot)
    }

    /// The leaf that holds the item.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Its number in the leaf.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

/// Whether `node` is what its pointer promised.
pub fn keeps(node: &Node, expect: &Expect) -> Result<(), Corrupt> {
    let broken = |what: String| Err(Corrupt::new(what).at(expect.logical));
    if node.logical() != expect.logical || node.level() != expect.level {
        return broken(format!(
            "node at {} of level {}, its pointer says level {}",
            node.logical(),
            node.level(),
            expect.level
        ));
    }
    if let Some(generation) = expect.generation.filter(|g| *g != node.generation()) {
        return broken(format!(
            "node of generation {}, its pointer says {generation}",
            node.generation()
        ));
    }
    if let Some(tree) = expect.owner.filter(|tree| !may_own(*tree, node.owner())) {
        return broken(format!("node of tree {} in tree {tree}", node.owner()));
    }
    match expect.first_key {
        Some(key) if node.is_empty() || node.key(0) != key => {
            Err(Corrupt::new("node does not begin with its pointer's key")
                .at(expect.logical)
                .key(key))
        }
        _ => Ok(()),
    }
}

/// Subvolumes share nodes with each other and with relocation trees, others share none.
fn may_own(tree: TreeId, owner: TreeId) -> bool {
    tree == owner || ((tree.is_subvolume() || tree == TreeId::RELOC) && owner.is_subvolume())
}

/// What the pointer at `slot` of `parent` promises.
pub(crate) fn child_expect(parent: &Node, slot: usize, tree: TreeId) -> Expect {
    Expect::of_child(&parent.child(slot), parent.level() - 1, tree)
}

/// The key below which the child at `slot` must end, if anything bounds it.
pub(crate) fn child_upper(parent: &Node, slot: usize, upper: Option<Key>) -> Option<Key> {
    if slot + 1 < parent.len() { Some(parent.key(slot + 1)) } else { upper }
}

/// Whether the keys of `node` end below `upper`.
pub(crate) fn ends_below(node: &Node, upper: Option<Key>) -> Result<(), Corrupt> {
    let Some(upper) = upper.filter(|_| !node.is_empty()) else { return Ok(()) };
    let last = node.key(node.len() - 1);
    if last < upper {
        return Ok(());
    }
    Err(Corrupt::new(format!("key lies in the next node's range, which begins with {upper}"))
        .at(node.logical())
        .key(last))
}

pub(crate) fn root_node<R: NodeReader + ?Sized>(r: &R, root: &TreeRoot) -> Result<Arc<Node>> {
    let expect = root.expect();
    let node = r.node(&expect)?;
    keeps(&node, &expect)?;
    if node.level() > 0 && node.is_empty() {
        return Err(Error::Corrupt(Corrupt::new("root without children").at(root.logical)));
    }
    Ok(node)
}

/// The child at `slot`; `upper` bounds `parent` itself.
pub(crate) fn child_node<R: NodeReader + ?Sized>(
    r: &R,
    tree: TreeId,
    parent: &Node,
    slot: usize,
    upper: Option<Key>,
) -> Result<Arc<Node>> {
    let expect = child_expect(parent, slot, tree);
    let node = r.node(&expect)?;
    keeps(&node, &expect)?;
    ends_below(&node, child_upper(parent, slot, upper))?;
    Ok(node)
}

/// Where the leaf ends in which `key` belongs, or the node on the way to it that cannot be read:
/// what is in front of this may be lost, and what comes is told by the nodes above. `None` if
/// nothing comes.
pub fn behind_lost<R: NodeReader + ?Sized>(
    r: &R,
    root: &TreeRoot,
    key: &Key,
) -> Result<Option<Key>> {
    let mut node = root_node(r, root)?;
    let mut upper = None;
    while !node.is_leaf() {
        let slot = node.child_slot(key);
        let child = child_node(r, root.id, &node, slot, upper);
        upper = child_upper(&node, slot, upper);
        let Ok(child) = child else { break };
        node = child;
    }
    Ok(upper)
}

/// The item with exactly this key.
pub fn get<R: NodeReader + ?Sized>(r: &R, root: &TreeRoot, key: &Key) -> Result<Option<Item>> {
    let mut node = root_node(r, root)?;
    let mut upper = None;
    while !node.is_leaf() {
        let slot = node.child_slot(key);
        let child = child_node(r, root.id, &node, slot, upper)?;
        upper = child_upper(&node, slot, upper);
        node = child;
    }
    Ok(node.search(key).ok().map(|slot| Item { node, slot }))
}
