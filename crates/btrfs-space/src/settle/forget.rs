//! Trees that follow from others, or that a volume can be without, go as a whole: the UUID tree, a free-space
//! tree and the quota tree.
//!
//! Their nodes are not read for that: whatever the extent tree says that one holds, it holds no more. So a
//! tree that cannot be read, or leads elsewhere, gives its space back as a sound one does.
//!
//! What it does not know: which trees may go, and what comes in their place.

use super::Settle;
use crate::items::{Items, TreeItems};
use crate::refs::{ExtentKind, RefOwner};
use btrfs_disk::items::ExtentItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Key, Logical, Result, TreeId};
use btrfs_tree::NodeReader;

impl<R: NodeReader> Settle<'_, R> {
    /// Quotas end, and nothing of their tree is read. The commit was begun
    /// [without them](Settle::without_quotas); this comes before the drain.
    pub fn forget_quotas(&mut self) -> Result<()> {
        assert!(self.quota.is_none(), "quotas that are kept");
        self.forget_tree(TreeId::QUOTA)
    }

    /// Takes the tree away, which shares no node. Nothing of it may have been edited in the same commit; it comes
    /// before the drain.
    pub(super) fn forget_tree(&mut self, id: TreeId) -> Result<()> {
        assert!(!self.draining, "trees go before the drain");
        let tree = self.tree(id)?;
        let root = tree.root;
        assert!(tree.recorded == Some(root), "a tree that is not edited");
        let holder = RefOwner::Tree { root: id };
        let nodes = self.nodes_of(id, holder)?;
        if !nodes.iter().any(|(at, _)| *at == root.logical) {
            let what = format!("the extent tree does not say that tree {id} holds its root");
            return Err(Corrupt::new(what).at(root.logical).into());
        }
        for (at, level) in nodes {
            let kind = ExtentKind::Node { level };
            self.deltas.add(at, self.format.node_size, kind, holder, -1);
        }
        self.remove_tree(id)
    }

    /// Address and level of each tree block that it holds by the extent tree.
    fn nodes_of(&self, id: TreeId, holder: RefOwner) -> Result<Vec<(Logical, u8)>> {
        let mut held = Vec::new();
        // The level of the block that separate references may follow.
        let mut at_hand = None;
        let mut items = TreeItems::new(self.store, &self.extent_root);
        items.scan(Key::MIN, Key::MAX, &mut |key, data| {
            if matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM) {
                let item = ExtentItem::parse(key.kind, data).map_err(|c| c.key(key))?;
                at_hand = level_of(&key, &item).map(|level| (Logical(key.objectid), level));
                if item.inline.iter().any(|i| RefOwner::of_inline(i) == Some(holder)) {
                    held.extend(at_hand);
                }
            } else if key.kind == kind::TREE_BLOCK_REF && key.offset == id.0 {
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
