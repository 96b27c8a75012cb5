//! The UUID tree, which says of UUIDs whose subvolumes they are: whole trees of it come and go.
//!
//! What is in it follows from the root items of subvolumes, so it may go at any time. Its nodes are not
//! read for that: whatever the extent tree says that it holds, it holds no more. So a tree that cannot
//! be read, or leads elsewhere, gives its space back as a sound one does.
//!
//! Invariant: the superblock calls the tree up to date (`uuid_tree_generation`) in the commit that
//! makes it, and not any more in the one that takes it away.
//!
//! What it does not know: what belongs into it, and when it is wanted.

use super::Settle;
use crate::items::{Items, TreeItems};
use crate::refs::{ExtentKind, RefOwner};
use btrfs_disk::items::{ExtentItem, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Key, Logical, Result, TreeId};
use btrfs_tree::{Edit, NodeReader};

const HOLDER: RefOwner = RefOwner::Tree { root: TreeId::UUID };

impl<R: NodeReader> Settle<'_, R> {
    /// Makes one of `entries`, which are by ascending key. The volume has none.
    pub fn make_uuid_tree(&mut self, entries: &[(Key, Box<[u8]>)]) -> Result<()> {
        let key = Key::new(TreeId::UUID.0, kind::ROOT_ITEM, 0);
        self.create_tree(TreeId::UUID, key, RootItem { refs: 1, ..RootItem::default() })?;
        let puts = entries.iter().map(|(key, ids)| (*key, Edit::Put(ids.clone())));
        self.apply_tree(TreeId::UUID, puts)?;
        // The stamp takes what was up to date along.
        let fields = &mut self.superblock.fields;
        fields.uuid_tree_generation = fields.generation.0;
        Ok(())
    }

    /// Takes it away. Nothing of it may be edited in the same commit; it comes before the drain.
    pub fn forget_uuid_tree(&mut self) -> Result<()> {
        assert!(!self.draining, "trees go before the drain");
        let tree = self.tree(TreeId::UUID)?;
        let root = tree.root;
        assert!(tree.recorded == Some(root), "a tree that is not edited");
        let nodes = self.nodes_of_uuid_tree()?;
        if !nodes.iter().any(|(at, _)| *at == root.logical) {
            let what = "the extent tree does not say that the UUID tree holds its root";
            return Err(Corrupt::new(what).at(root.logical).into());
        }
        for (at, level) in nodes {
            let kind = ExtentKind::Node { level };
            self.deltas.add(at, self.format.node_size, kind, HOLDER, -1);
        }
        self.superblock.fields.uuid_tree_generation = 0;
        self.remove_tree(TreeId::UUID)
    }

    /// Address and level of each tree block that it holds by the extent tree.
    fn nodes_of_uuid_tree(&self) -> Result<Vec<(Logical, u8)>> {
        let mut held = Vec::new();
        // The level of the block that separate references may follow.
        let mut at_hand = None;
        let mut items = TreeItems::new(self.store, &self.extent_root);
        items.scan(Key::MIN, Key::MAX, &mut |key, data| {
            if matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM) {
                let item = ExtentItem::parse(key.kind, data).map_err(|c| c.key(key))?;
                at_hand = level_of(&key, &item).map(|level| (Logical(key.objectid), level));
                if item.inline.iter().any(|i| RefOwner::of_inline(i) == Some(HOLDER)) {
                    held.extend(at_hand);
                }
            } else if key.kind == kind::TREE_BLOCK_REF && key.offset == TreeId::UUID.0 {
                held.extend(at_hand.filter(|(at, _)| at.0 == key.objectid));
            }
            Ok(())
        })?;
        Ok(held)
    }
}

/// `None`: it is content.
fn level_of(key: &Key, item: &ExtentItem) -> Option<u8> {
    match (key.kind, item.block_info) {
        (kind::METADATA_ITEM, _) => u8::try_from(key.offset).ok(),
        (_, info) => info.map(|(_, level)| level),
    }
}
