//! A whole tree held against the rules that [`crate::apply`] promises to keep.

use crate::reader::{NodeReader, TreeRoot};
use crate::walk::{NodePosition, Step, Visitor, walk};
use btrfs_disk::node::{ITEM_SIZE, KEY_PTR_SIZE};
use btrfs_disk::{Error, Node, Result};
use std::sync::Arc;

/// What a sound tree consists of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeShape {
    /// Nodes by level, leaves first.
    pub nodes: Vec<u64>,
    /// Items of its leaves.
    pub items: u64,
    /// Bytes of item headers and data in all leaves.
    pub leaf_bytes: u64,
    /// Bytes of key pointers in all interior nodes.
    pub pointer_bytes: u64,
}

struct Count {
    shape: TreeShape,
    error: Option<Error>,
}

impl Visitor for Count {
    fn node(&mut self, _: &NodePosition<'_>, node: &Arc<Node>) -> Step {
        let level = usize::from(node.level());
        if self.shape.nodes.len() <= level {
            self.shape.nodes.resize(level + 1, 0);
        }
        self.shape.nodes[level] += 1;
        if node.is_leaf() {
            self.shape.items += node.len() as u64;
            let data: usize = (0..node.len()).map(|slot| node.data_range(slot).len()).sum();
            self.shape.leaf_bytes += (data + node.len() * ITEM_SIZE) as u64;
        } else {
            self.shape.pointer_bytes += (node.len() * KEY_PTR_SIZE) as u64;
        }
        Step::Into
    }

    fn broken(&mut self, _: &NodePosition<'_>, error: Error) -> Step {
        self.error = Some(error);
        Step::Stop
    }
}

/// Reads the whole tree; the first broken node is the error.
///
/// Order, levels, generations, owners, first keys and bounds are judged on the way by
/// every descent, so reaching every node is the proof.
pub fn verify<R: NodeReader + ?Sized>(r: &R, root: &TreeRoot) -> Result<TreeShape> {
    let mut count = Count { shape: TreeShape::default(), error: None };
    walk(r, root, &mut count);
    match count.error {
        Some(error) => Err(error),
        None => Ok(count.shape),
    }
}
