//! Every node of a tree, parents before children, past damage where there is some.
//!
//! Invariant: bounded by the volume. A child must begin with its pointer's key and end
//! below the next pointer's, and the level falls with every step; so a walk meets no
//! node twice and no depth beyond the format's.

use crate::reader::{
    NodeReader, TreeRoot, child_expect, child_upper, ends_below, keeps, root_node,
};
use btrfs_disk::{Error, Expect, Key, Node, Result};
use std::sync::Arc;

/// How a walk goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: what a walk's visitor answers; the walk alone asks.
pub enum Step {
    /// The children, too.
    Into,
    /// Past the children of this node.
    Over,
    /// Nothing more.
    Stop,
}

/// Where in the tree a node belongs.
#[derive(Clone, Copy, Debug)]
pub struct NodePosition<'a> {
    /// The tree that is walked.
    pub root: &'a TreeRoot,
    /// What its parent says of the node.
    pub expect: &'a Expect,
    /// `None`: it is the root.
    pub parent: Option<&'a Node>,
    /// The slot in `parent`.
    pub slot: usize,
    /// The key below which the node must end.
    pub upper: Option<Key>,
}

/// What a walk calls.
pub trait Visitor {
    /// Whether a child is passed over unread, with all below it.
    fn passes(&mut self, _: &NodePosition<'_>) -> bool {
        false
    }
    /// A node that was read and judged; the answer says where to go on.
    fn node(&mut self, place: &NodePosition<'_>, node: &Arc<Node>) -> Step;
    /// A node could not be read or does not keep its pointer's promises. Its subtree is
    /// passed over; `Stop` ends the walk.
    fn broken(&mut self, place: &NodePosition<'_>, error: Error) -> Step;
}

/// Visits the tree of `root`; false if the visitor stopped it.
pub fn walk<R: NodeReader + ?Sized>(r: &R, root: &TreeRoot, visitor: &mut dyn Visitor) -> bool {
    let expect = root.expect();
    let place = NodePosition { root, expect: &expect, parent: None, slot: 0, upper: None };
    visit(r, &place, root_node(r, root), visitor)
}

fn visit<R: NodeReader + ?Sized>(
    r: &R,
    place: &NodePosition<'_>,
    node: Result<Arc<Node>>,
    visitor: &mut dyn Visitor,
) -> bool {
    let node = match node {
        Ok(node) => node,
        Err(error) => return visitor.broken(place, error) != Step::Stop,
    };
    match visitor.node(place, &node) {
        Step::Stop => return false,
        Step::Over => return true,
        Step::Into => {}
    }
    node.is_leaf() || (0..node.len()).all(|slot| visit_child(r, place, &node, slot, visitor))
}

fn visit_child<R: NodeReader + ?Sized>(
    r: &R,
    place: &NodePosition<'_>,
    parent: &Arc<Node>,
    slot: usize,
    visitor: &mut dyn Visitor,
) -> bool {
    let expect = child_expect(parent, slot, place.root.id);
    let upper = child_upper(parent, slot, place.upper);
    let below =
        NodePosition { root: place.root, expect: &expect, parent: Some(&**parent), slot, upper };
    if visitor.passes(&below) {
        return true;
    }
    let child = r.node(&expect).and_then(|node| {
        keeps(&node, &expect)?;
        ends_below(&node, upper)?;
        Ok(node)
    });
    visit(r, &below, child, visitor)
}
