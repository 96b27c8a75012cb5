//! A free-space tree for a volume that has none (version 1 space cache), or none that is valid:
//! the first commit of a mount that writes makes it. The cache goes in the same commit, and the
//! superblock says both at once, so a crash knows before and after alone. What is left of a cache beside a
//! valid tree goes alike.
//!
//! Invariant: the tree is made of the extent tree of the last commit, before anything else of this
//! one; what this one takes and frees comes on top, as in every commit.
//!
//! What it does not know: when it is wanted, and what is free in memory.

use super::Settle;
use crate::free_space::{GroupFree, GroupSpan};
use crate::items::{Changes, Items, TreeItems};
use crate::refs::{ExtentKind, RefOwner};
use crate::space_cache;
use btrfs_disk::ids::compat_ro::{FREE_SPACE_TREE, FREE_SPACE_TREE_VALID};
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, Result, TreeId};
use btrfs_tree::{Edit, NodeReader, TreeRoot};

impl<R: NodeReader> Settle<'_, R> {
    /// To be called before all edits. Where the volume has a valid one by now, the version 1 space cache goes
    /// alone.
    pub fn make_free_space_tree(&mut self) -> Result<()> {
        let had = self.superblock.fields.compat_ro_flags;
        if had & FREE_SPACE_TREE == 0 || had & FREE_SPACE_TREE_VALID == 0 {
            self.fill_tree()?;
        }
        self.drop_space_cache()?;
        let fields = &mut self.superblock.fields;
        fields.compat_ro_flags |= FREE_SPACE_TREE | FREE_SPACE_TREE_VALID;
        fields.cache_generation = 0;
        Ok(())
    }

    fn fill_tree(&mut self) -> Result<()> {
        self.begin_tree()?;
        let extent = self.root(TreeId::EXTENT)?;
        for (start, len) in self.committed_groups()? {
            let items = self.free_space_of(&extent, start, len)?;
            self.apply_changes(TreeId::FREE_SPACE, items)?;
        }
        Ok(())
    }

    /// There is one, and it is empty. Of one that was not valid nothing is read.
    fn begin_tree(&mut self) -> Result<()> {
        if self.current_tree(TreeId::FREE_SPACE)?.is_some() {
            self.forget_tree(TreeId::FREE_SPACE)?;
        }
        let key = Key::new(TreeId::FREE_SPACE.0, kind::ROOT_ITEM, 0);
        let item = RootItem { refs: 1, ..RootItem::default() };
        self.create_tree(TreeId::FREE_SPACE, key, item).map(drop)
    }

    /// Start and length of all block groups of the last commit.
    fn committed_groups(&mut self) -> Result<Vec<(u64, u64)>> {
        let root = self.root(self.block_group_tree)?;
        // Each chunk has one (`Space::load`): no need to look through all extents for them.
        let mut items = TreeItems::new(self.store, &root);
        let mut found = Vec::new();
        for (start, len) in self.space.spans() {
            let key = Key::new(start, kind::BLOCK_GROUP_ITEM, len);
            if items.get(&key)?.is_some() {
                found.push((start, len));
            }
        }
        Ok(found)
    }

    fn free_space_of(&self, extent: &TreeRoot, start: u64, len: u64) -> Result<Changes> {
        let geometry = self.store.geometry();
        let span = GroupSpan { start, len, sector: u64::from(geometry.sector_size) };
        let mut extents = TreeItems::new(self.store, extent);
        let free = span.between_extents(&mut extents, u64::from(geometry.node_size))?;
        let bitmaps = span.wants_bitmaps(false, free.len() as u64);
        let items = span.items_of(&GroupFree { bitmaps, free });
        Ok(items.into_iter().map(|(key, data)| (key, Some(data.into()))).collect())
    }

    fn drop_space_cache(&mut self) -> Result<()> {
        let root = self.root(TreeId::ROOT)?;
        let caches = space_cache::find(&mut TreeItems::new(&self.reader(), &root))?;
        let mut keys: Vec<Key> = Vec::new();
        for cache in caches {
            for (extent, offset) in cache.extents {
                let owner = RefOwner::Data { root: TreeId::ROOT, ino: cache.ino, offset };
                self.deltas.add(extent.logical, extent.len, ExtentKind::Data, owner, -1);
            }
            keys.extend(cache.keys);
        }
        keys.sort_unstable();
        self.apply_tree(TreeId::ROOT, keys.into_iter().map(|key| (key, Edit::Delete)))?;
        Ok(())
    }
}
