//! The top of a tree after a pass: grown, lowered, or an empty leaf.

use super::pass::Pass;
use super::run::{Entry, Run};
use crate::reader::{NodeReader, TreeRoot, keeps};
use btrfs_disk::node::{ChildPtr, MAX_LEVEL};
use btrfs_disk::{Error, Expect, Key, LeafItem, Logical, Node, NodeIdentity, Result, build};
use std::sync::Arc;

/// The tree whose root leaf became `run`.
pub(super) fn plant_leaf(pass: &mut Pass<'_>, run: Run<LeafItem<'_>>) -> Result<TreeRoot> {
    if run.entries.is_empty() {
        return empty_leaf(pass, run.homes.first().copied());
    }
    grow(pass, run, 0)
}

/// The tree whose root, of `level`, became `run`.
pub(super) fn plant_inner(pass: &mut Pass<'_>, run: Run<ChildPtr>, level: u8) -> Result<TreeRoot> {
    match run.entries[..] {
        [] => {
            pass.release(run.homes, level)?;
            empty_leaf(pass, None)
        }
        [only] => lower(pass, only, run, level),
        _ => grow(pass, run, level),
    }
}

pub(super) fn empty_leaf(pass: &mut Pass<'_>, home: Option<Logical>) -> Result<TreeRoot> {
    let logical = match home {
        Some(logical) => logical,
        None => pass.fresh(0, Key::MIN)?,
    };
    let id = NodeIdentity { logical, generation: pass.generation, owner: pass.tree };
    let node = build::leaf(pass.geometry(), &id, &[]);
    pass.dirty.insert(Arc::new(node));
    Ok(TreeRoot { id: pass.tree, logical, generation: pass.generation, level: 0 })
}

/// A new root node with the contents of `node`.
pub(super) fn copy(pass: &mut Pass<'_>, node: &Node) -> Result<TreeRoot> {
    match (node.is_empty(), node.is_leaf()) {
        (true, _) => empty_leaf(pass, None),
        (_, true) => grow(pass, Run::new(LeafItem::collect(node), Vec::new()), 0),
        (_, false) => grow(pass, Run::new(ChildPtr::collect(node), Vec::new()), node.level()),
    }
}

/// Makes nodes of `run`, and nodes of their pointers, until one is left.
fn grow<'l, E: Entry<'l>>(pass: &mut Pass<'_>, run: Run<E>, mut level: u8) -> Result<TreeRoot> {
    let at_end = run.grown_to == Some(run.entries.len());
    let mut pointers = pass.emit(run, level)?;
    while pointers.len() > 1 {
        level += 1;
        if level >= MAX_LEVEL {
            return Err(Error::NoSpace);
        }
        let mut run = Run::new(pointers, Vec::new());
        run.grown_to = at_end.then_some(run.entries.len());
        pointers = pass.emit(run, level)?;
    }
    let ChildPtr { logical, generation, .. } = pointers[0];
    Ok(TreeRoot { id: pass.tree, logical, generation, level })
}

/// A root with one child gives way to it, and so on down. The new root is of the
/// current generation like every root that changed.
fn lower(pass: &mut Pass<'_>, only: ChildPtr, run: Run<ChildPtr>, level: u8) -> Result<TreeRoot> {
    let expect = Expect::of_child(&only, level - 1, pass.tree);
    let child = pass.reader().node(&expect).and_then(|node| {
        keeps(&node, &expect)?;
        Ok(node)
    });
    // A child that cannot be read stays a child: nothing forces the tree to be lower.
    let Ok(child) = child else { return grow(pass, run, level) };
    pass.release(run.homes, level)?;
    if !child.is_leaf() && child.len() == 1 {
        pass.detach(&child)?;
        let homes = pass.home(&child).into_iter().collect();
        return lower(pass, child.child(0), Run::new(vec![child.child(0)], homes), level - 1);
    }
    if pass.is_dirty(&child) {
        let (logical, generation) = (child.logical(), child.generation());
        return Ok(TreeRoot { id: pass.tree, logical, generation, level: level - 1 });
    }
    pass.detach(&child)?;
    copy(pass, &child)
}
