//! Bulk edit: a sorted batch of changes merged into a tree in one pass.
//!
//! Every touched node is rewritten once, however many edits hit it; a node of the
//! running transaction is rewritten at its own address, so editing again and again in
//! one transaction settles. Edits that change nothing touch nothing.
//!
//! Invariants of the result: the rules that [`crate::verify`] checks; only a root may be
//! an empty leaf; a pointer's key is its child's first key; a tree that changed has a
//! root of the current generation.
//!
//! On an error the batch is half done: dirty nodes and sink belong to no consistent
//! tree any more, and the transaction must be given up.

mod inner;
mod leaf;
mod pass;
mod root;
mod run;

use crate::dirty::DirtyNodes;
use crate::reader::{NodeReader, TreeRoot, root_node};
use btrfs_disk::{Corrupt, Error, Generation, Geometry, Key, Logical, Node, Result, TreeId};
use pass::Pass;
use std::sync::Arc;

/// What shall become of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
// Exhaustive: a merge carries out each; one passed over is a change lost.
pub enum Edit {
    /// Insert or replace.
    Put(Box<[u8]>),
    /// Remove; that the key is absent is no error.
    Delete,
}

/// An [`Edit`] whose bytes lie elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: as `Edit`.
pub enum EditRef<'e> {
    /// Insert or replace.
    Put(&'e [u8]),
    /// Remove; that the key is absent is no error.
    Delete,
}

impl<'e> From<&'e Edit> for EditRef<'e> {
    fn from(edit: &'e Edit) -> EditRef<'e> {
        match edit {
            Edit::Put(data) => EditRef::Put(data),
            Edit::Delete => EditRef::Delete,
        }
    }
}

/// What bulk edit asks of the space layer. A parent is detached before its children.
pub trait NodeSink {
    /// A committed node is about to be replaced in `tree`, or to vanish from it: the
    /// rules of shared blocks apply, and this tree's reference goes.
    fn detach(&mut self, tree: TreeId, old: &Arc<Node>) -> Result<()>;
    /// The address of a new node, with one keyed reference of `tree`.
    fn alloc(&mut self, tree: TreeId, level: u8, first_key: Key) -> Result<Logical>;
    /// A node of this transaction vanished again.
    fn free_dirty(&mut self, tree: TreeId, logical: Logical, level: u8) -> Result<()>;
}

/// Whether a batch can be applied: an item larger than a leaf is an error.
///
/// Keys that do not strictly ascend are a mistake of the program, and a panic.
pub fn validate(geometry: &Geometry, edits: &[(Key, EditRef<'_>)]) -> Result<()> {
    let descent = edits.windows(2).find(|w| w[0].0 >= w[1].0);
    assert!(descent.is_none(), "edits must strictly ascend: {:?}", descent.map(|w| w[1].0));
    let limit = geometry.max_item_size();
    for (key, edit) in edits {
        if let EditRef::Put(data) = edit
            && data.len() > limit
        {
            let size = data.len();
            return Err(Error::Unsupported(format!(
                "item {key} of {size} bytes; a leaf holds at most {limit}"
            )));
        }
    }
    Ok(())
}

/// Applies edits with strictly ascending keys to the tree of `root`.
///
/// The batch is checked as a whole (see [`validate`]) before anything changes.
/// `generation` is the running transaction's; nodes of it that are in `dirty` and that
/// this tree owns are rewritten in place, so nothing else may refer to them.
pub fn apply<R: NodeReader>(
    store: &R,
    dirty: &mut DirtyNodes,
    sink: &mut dyn NodeSink,
    generation: Generation,
    root: &TreeRoot,
    edits: impl IntoIterator<Item = (Key, Edit)>,
) -> Result<TreeRoot> {
    with_borrowed(edits, |edits| apply_borrowed(store, dirty, sink, generation, root, edits))
}

/// Lets `work` look at edits as those of bytes that lie elsewhere.
pub fn with_borrowed<T>(
    edits: impl IntoIterator<Item = (Key, Edit)>,
    work: impl FnOnce(&[(Key, EditRef<'_>)]) -> T,
) -> T {
    let edits: Vec<(Key, Edit)> = edits.into_iter().collect();
    let borrowed: Vec<_> = edits.iter().map(|(key, edit)| (*key, EditRef::from(edit))).collect();
    work(&borrowed)
}

/// As [`apply`], of edits whose bytes the caller keeps.
pub fn apply_borrowed<R: NodeReader>(
    store: &R,
    dirty: &mut DirtyNodes,
    sink: &mut dyn NodeSink,
    generation: Generation,
    root: &TreeRoot,
    edits: &[(Key, EditRef<'_>)],
) -> Result<TreeRoot> {
    validate(store.geometry(), edits)?;
    if edits.is_empty() {
        return Ok(*root);
    }
    if root.generation > generation {
        let what = format!("root of generation {} in transaction {generation}", root.generation);
        return Err(Corrupt::new(what).at(root.logical).into());
    }
    let mut pass = Pass { store, dirty, sink, generation, tree: root.id };
    let node = root_node(&pass.reader(), root)?;
    if node.is_leaf() {
        match leaf::edit(&mut pass, &node, None, edits)? {
            None => Ok(*root),
            Some(run) => root::plant_leaf(&mut pass, run),
        }
    } else {
        match inner::edit(&mut pass, &node, None, edits, None)? {
            None => Ok(*root),
            Some(run) => root::plant_inner(&mut pass, run, node.level()),
        }
    }
}

/// A new tree: one empty leaf.
pub fn new_tree(
    geometry: &Geometry,
    dirty: &mut DirtyNodes,
    sink: &mut dyn NodeSink,
    generation: Generation,
    id: TreeId,
) -> Result<TreeRoot> {
    let store = crate::reader::Blank(*geometry);
    let mut pass = Pass { store: &store, dirty, sink, generation, tree: id };
    root::empty_leaf(&mut pass, None)
}

/// The tree with a root node of the current generation, its contents unchanged.
pub fn refresh_root<R: NodeReader>(
    store: &R,
    dirty: &mut DirtyNodes,
    sink: &mut dyn NodeSink,
    generation: Generation,
    root: &TreeRoot,
) -> Result<TreeRoot> {
    let mut pass = Pass { store, dirty, sink, generation, tree: root.id };
    let node = root_node(&pass.reader(), root)?;
    if pass.is_dirty(&node) {
        return Ok(*root);
    }
    pass.sink.detach(root.id, &node)?;
    root::copy(&mut pass, &node)
}

/// A root node for the tree `to` with the contents of `from`'s, which stays as it is.
///
/// The references that the new node holds to its children (or a leaf to its extents)
/// are the caller's to add. The nodes below are shared from now on: the caller must
/// see to it that none of them is in `dirty` any more.
pub fn copy_root<R: NodeReader>(
    store: &R,
    dirty: &mut DirtyNodes,
    sink: &mut dyn NodeSink,
    generation: Generation,
    from: &TreeRoot,
    to: TreeId,
) -> Result<TreeRoot> {
    let mut pass = Pass { store, dirty, sink, generation, tree: to };
    let node = root_node(&pass.reader(), from)?;
    root::copy(&mut pass, &node)
}
