//! A free-space tree for a volume that has none (version 1 space cache), or none that is valid:
//! the first commit of a mount that writes makes it. The cache goes in the same commit, and the
//! superblock says both at once, so a crash knows before and after alone. What is left of a cache beside a
//! valid tree goes alike. Nobody reads a cache any more: one that does not fit the extent tree stays, since half a commit
//! is the end of a mount.
//!
//! Invariant: the tree is made of the extent tree of the last commit, before anything else of this
//! one; what this one takes and frees comes on top, as in every commit.
//!
//! What it does not know: when it is wanted, and what is free in memory.

use super::Settle;
use crate::free_space::{GroupFree, GroupSpan};
use crate::items::{Changes, Items, TreeItems};
use crate::refs::{ExtentKind, RefOwner};
use crate::refs::{current_refs, find_item};
use crate::space_cache::CacheFile;
use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::ids::compat_ro::{FREE_SPACE_TREE, FREE_SPACE_TREE_VALID};
use btrfs_disk::items::{RootItem, extent_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Geometry, Key, Logical, Result, TreeId};
use btrfs_tree::{Edit, NodeReader, TreeRoot};
use std::collections::BTreeMap;

impl<R: NodeReader> Settle<'_, R> {
    /// To be called before all edits. Where the volume has a valid one by now, the `caches` go alone, of each of which
    /// [`can_be_dropped`] was asked, by the trees of the last commit.
    pub fn make_free_space_tree(&mut self, caches: &[CacheFile]) -> Result<()> {
        let had = self.superblock.fields.compat_ro_flags;
        if had & FREE_SPACE_TREE == 0 || had & FREE_SPACE_TREE_VALID == 0 {
            self.fill_tree()?;
        }
        self.drop_caches(caches)?;
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

    fn drop_caches(&mut self, caches: &[CacheFile]) -> Result<()> {
        let mut keys: Vec<Key> = Vec::new();
        for cache in caches {
            for (extent, offset) in &cache.extents {
                let owner = owner(cache, *offset);
                self.deltas.add(extent.logical, extent.len, ExtentKind::Data, owner, -1);
            }
            keys.extend(&cache.keys);
        }
        keys.sort_unstable();
        self.apply_tree(TreeId::ROOT, keys.into_iter().map(|key| (key, Edit::Delete)))?;
        Ok(())
    }
}

fn owner(cache: &CacheFile, offset: u64) -> RefOwner {
    RefOwner::Data { root: TreeId::ROOT, ino: cache.ino, offset }
}

/// Whether a commit that drops the cache will find all that it needs as it must be. `extents`: what the extent tree has;
/// `sums`: the checksum tree, where content of no cache has anything.
pub fn can_be_dropped(
    cache: &CacheFile,
    extents: &mut dyn Items,
    sums: &mut dyn Items,
    geometry: &Geometry,
) -> Result<()> {
    if cache.damaged {
        return Err(Corrupt::new("what a space cache refers to is not known").into());
    }
    let mut held = BTreeMap::<_, BTreeMap<RefOwner, u64>>::new();
    for (extent, offset) in &cache.extents {
        let owners = held.entry((extent.logical, extent.len)).or_default();
        *owners.entry(owner(cache, *offset)).or_default() += 1;
    }
    for ((at, len), owners) in held {
        check_references(extents, at, len, &owners)?;
        check_no_sums(sums, geometry, at, len)?;
    }
    Ok(())
}

/// The extent is content of this length, and each of `owners` has as many references as the cache says.
fn check_references(
    extents: &mut dyn Items,
    at: Logical,
    len: u64,
    owners: &BTreeMap<RefOwner, u64>,
) -> Result<()> {
    let differs = || Corrupt::new("a space cache and its extent do not fit together").at(at);
    let (key, item) = find_item(extents, at)?.ok_or_else(differs)?;
    let is_data = item.fields.flags & extent_flags::DATA != 0;
    let stored = current_refs(extents, &[], at)?.ok_or_else(differs)?.owners;
    let fits = owners.iter().all(|(owner, count)| stored.get(owner) == Some(count));
    if (key.kind, key.offset) != (kind::EXTENT_ITEM, len) || !is_data || !fits {
        return Err(differs().into());
    }
    Ok(())
}

/// The commit would look for them, and take away what it finds.
fn check_no_sums(sums: &mut dyn Items, geometry: &Geometry, at: Logical, len: u64) -> Result<()> {
    let end = at.0.saturating_add(len);
    let last = Key::new(EXTENT_CSUM_OBJECTID, kind::EXTENT_CSUM, end.saturating_sub(1));
    let Some((key, data)) = sums.at_or_before(&last)? else { return Ok(()) };
    let told = (data.len() / geometry.csum.size()) as u64 * u64::from(geometry.sector_size);
    let is_sum = (key.objectid, key.kind) == (last.objectid, last.kind);
    if is_sum && key.offset.saturating_add(told) > at.0 {
        return Err(Corrupt::new("content of a space cache has checksums").at(at).key(key).into());
    }
    Ok(())
}
