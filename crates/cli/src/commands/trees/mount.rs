//! Nodes that a mount's server gives, kept for a while.

use crate::door::{CommittedTree, Door, Token};
use crate::error::{Error, Result, io_text};
use btrfs_disk::{Expect, Geometry, Logical, Node, TreeId, check};
use btrfs_tree::NodeReader;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Nodes that are kept, at least; at most twice as many are.
const KEPT: usize = 2048;

pub struct MountTrees {
    pub door: Door,
    pub token: Token,
    geometry: Geometry,
    nodes: RefCell<Nodes>,
}

/// Those that were asked for lately.
#[derive(Default)]
struct Nodes {
    young: HashMap<u64, Arc<Node>>,
    old: HashMap<u64, Arc<Node>>,
}

impl Nodes {
    fn get(&mut self, at: Logical) -> Option<Arc<Node>> {
        if let Some(node) = self.young.get(&at.0) {
            return Some(node.clone());
        }
        let node = self.old.remove(&at.0)?;
        self.add(node.clone());
        Some(node)
    }

    fn add(&mut self, node: Arc<Node>) {
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(node.logical().0, node);
    }
}

impl MountTrees {
    pub fn new(door: Door, path: &Path) -> Result<MountTrees> {
        let tree =
            door.committed_tree(TreeId::ROOT.0).map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM) => Error::about(path.display(), io_text(&error))
                    .remedy("root, and who mounted the volume, may look into its trees"),
                _ => door.told_of_volume(&error),
            })?;
        let (geometry, token) = (tree.geometry, tree.token);
        Ok(MountTrees { door, token, geometry, nodes: RefCell::default() })
    }

    /// ENOENT: there is no such tree.
    pub fn tree(&self, id: TreeId) -> io::Result<CommittedTree> {
        self.door.committed_tree(id.0)
    }
}

impl NodeReader for MountTrees {
    fn node(&self, expect: &Expect) -> btrfs_disk::Result<Arc<Node>> {
        // Who has it at hand has verified it as well, but not in this place.
        if let Some(node) = self.nodes.borrow_mut().get(expect.logical)
            && expect.generation.is_none_or(|generation| generation == node.generation())
            && expect.level == node.level()
            && expect.first_key.is_none_or(|key| !node.is_empty() && node.key(0) == key)
        {
            return Ok(node);
        }
        let bytes = self.door.committed_node(self.token, expect, &self.geometry);
        let bytes = bytes.map_err(|source| btrfs_disk::Error::Io {
            context: format!("reading the node at {}", expect.logical),
            source,
        })?;
        let node = Arc::new(check::node(bytes, &self.geometry, expect)?);
        self.nodes.borrow_mut().add(node.clone());
        Ok(node)
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}
