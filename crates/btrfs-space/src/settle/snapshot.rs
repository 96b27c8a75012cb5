//! Trees that a commit creates: empty ones, and snapshots.

use super::Settle;
use super::trees::Tree;
use crate::shared::{Holder, change_pointers};
use btrfs_disk::items::RootItem;
use btrfs_disk::{Corrupt, Generation, Key, Result, TreeId};
use btrfs_tree::{DirtyNodes, NodeReader, NodeSink, TreeRoot};

impl<R: NodeReader> Settle<'_, R> {
    /// A new tree of one empty leaf; `key` is that of its ROOT_ITEM.
    pub fn create_tree(&mut self, id: TreeId, key: Key, item: RootItem) -> Result<TreeRoot> {
        let geometry = *self.store.geometry();
        self.quota_of_new(id, None)?;
        self.plant(id, key, item, |_, dirty, sink, generation| {
            btrfs_tree::new_tree(&geometry, dirty, sink, generation, id)
        })
    }

    /// A snapshot of `source` with the id `to`; `key` is that of its ROOT_ITEM. All edits
    /// of `source` in this commit come first: from now on the two share their nodes. The copy may
    /// be edited: none of the nodes that it shares is its own, so none is changed in place.
    pub fn snapshot(
        &mut self,
        source: TreeId,
        to: TreeId,
        key: Key,
        mut item: RootItem,
    ) -> Result<TreeRoot> {
        assert!(!self.draining, "snapshots come before the drain");
        let old = self.root(source)?;
        // The source's root is never shared itself; a fresh one says what is shared from.
        let from = self.change(source, |store, dirty, sink, generation| {
            btrfs_tree::refresh_root(store, dirty, sink, generation, &old)
        })?;
        self.quota_of_new(to, Some(source))?;
        let generation = self.generation;
        item.last_snapshot = generation;
        item.bytes_used = self.root_item(source)?.bytes_used;
        self.root_item(source)?.last_snapshot = generation;
        self.tree(source)?.frozen = true;
        let node_size = self.format.node_size;
        // The copied root is counted by the sink.
        item.bytes_used = item.bytes_used.saturating_sub(node_size);
        let root = self.plant(to, key, item, |store, dirty, sink, generation| {
            btrfs_tree::copy_root(store, dirty, sink, generation, &from, to)
        })?;
        let node = self.dirty.get(root.logical).cloned();
        let node = node.ok_or_else(|| Corrupt::new("a new root is not there").at(root.logical))?;
        change_pointers(&mut self.deltas, &node, Holder::Keyed(to), 1)?;
        Ok(root)
    }

    /// Makes the nodes of a tree that the root tree does not know yet.
    fn plant(
        &mut self,
        id: TreeId,
        key: Key,
        item: RootItem,
        make: impl FnOnce(&R, &mut DirtyNodes, &mut dyn NodeSink, Generation) -> Result<TreeRoot>,
    ) -> Result<TreeRoot> {
        assert!(!self.trees.contains_key(&id), "tree {id} exists");
        let (root, nodes) = self.make(Generation(0), make)?;
        let mut tree = Tree::new(root, key, item);
        tree.count_nodes(nodes, self.format.node_size);
        self.trees.insert(id, tree);
        // It may stand in the place of one that goes in the same commit.
        self.removed.retain(|gone| *gone != id);
        Ok(root)
    }
}
