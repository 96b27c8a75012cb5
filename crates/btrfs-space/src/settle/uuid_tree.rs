//! The UUID tree, which says of UUIDs whose subvolumes they are: whole trees of it come and go.
//!
//! What is in it follows from the root items of subvolumes, so it may go at any time (`forget.rs`).
//!
//! Invariant: the superblock calls the tree up to date (`uuid_tree_generation`) in the commit that
//! makes it, and not any more in the one that takes it away or cannot note something in it.
//!
//! What it does not know: what belongs into it, and when it is wanted.

use super::Settle;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, Result, TreeId};
use btrfs_tree::{Edit, NodeReader};

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
        self.forget_tree(TreeId::UUID)?;
        self.uuid_tree_lags();
        Ok(())
    }

    /// It does not say all that there is: the kernel's next mount that writes goes through it.
    pub fn uuid_tree_lags(&mut self) {
        self.superblock.fields.uuid_tree_generation = 0;
    }
}
