//! Rounds until extent tree, block groups, free-space tree, chunks and root items agree.
//!
//! Invariant of each round: what was drained is in the extent tree, the free-space tree
//! and the groups' counters alike before the next drain. What comes must have been free
//! and what goes taken, in the tree as in the counters, or the commit fails unwritten.

use super::Settle;
use crate::Extent;
use crate::free_space;
use crate::items::{Changes, Items, TreeItems};
use crate::refs::Drained;
use crate::space::{GoneChunk, NewChunk};
use btrfs_disk::ids::{DEV_ITEMS_OBJECTID, FIRST_CHUNK_TREE_OBJECTID, block_group};
use btrfs_disk::items::{DevExtent, DevItem};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Error, FixedSize, Key, Logical, Result, TreeId};
use btrfs_tree::{Edit, NodeReader};
use std::collections::BTreeMap;

/// Rounds that settling may take; a handful is usual.
/// Chosen, not measured.
const MAX_ROUNDS: usize = 100;

/// What came and went in one block group.
#[derive(Default)]
struct Turnover {
    created: Vec<Extent>,
    freed: Vec<Extent>,
}

impl<R: NodeReader> Settle<'_, R> {
    /// Runs rounds until one has nothing to do.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.draining = true;
        // The superblock's generation is that of the root tree's root.
        let root = self.root(TreeId::ROOT)?;
        self.change(TreeId::ROOT, |store, dirty, sink, generation| {
            btrfs_tree::refresh_root(store, dirty, sink, generation, &root)
        })?;
        for _ in 0..MAX_ROUNDS {
            // A chunk may be needed while one is recorded.
            while self.record_chunks()? {}
            let space = self.settle_space()?;
            let roots = self.record_roots()?;
            if !space && !roots && self.deltas.is_empty() {
                return Ok(());
            }
        }
        Err(Error::corrupt(format!("commit does not settle in {MAX_ROUNDS} rounds")))
    }

    pub(super) fn apply_changes(&mut self, tree: TreeId, mut changes: Changes) -> Result<()> {
        changes.sort_unstable_by_key(|(key, _)| *key);
        let edit = |data: Option<Box<[u8]>>| data.map_or(Edit::Delete, Edit::Put);
        self.apply_tree(tree, changes.into_iter().map(|(key, data)| (key, edit(data))))?;
        Ok(())
    }

    /// Drained references into the trees; false if there was nothing.
    fn settle_space(&mut self) -> Result<bool> {
        let drained = match self.drained.take() {
            Some(drained) => drained,
            None => self.drain()?,
        };
        if drained.is_empty() && self.touched_groups.is_empty() {
            return Ok(false);
        }
        let turnover = self.account(&drained)?;
        let mut changes = drained.changes;
        let mut groups = Changes::new();
        for start in std::mem::take(&mut self.touched_groups) {
            // A group that has gone since is in the next round's list of gone chunks.
            if let Some((key, data)) = self.space.group_item(start) {
                groups.push((key, Some(data.into_boxed_slice())));
            }
        }
        let free_space = self.free_space_changes(&turnover)?;
        if self.block_group_tree == TreeId::EXTENT {
            changes.append(&mut groups);
        } else {
            self.apply_changes(self.block_group_tree, groups)?;
        }
        self.apply_changes(TreeId::EXTENT, changes)?;
        self.apply_changes(TreeId::FREE_SPACE, free_space)?;
        Ok(true)
    }

    /// Tells the block groups, and sorts by them.
    fn account(&mut self, drained: &Drained) -> Result<BTreeMap<u64, Turnover>> {
        let mut out: BTreeMap<u64, Turnover> = BTreeMap::new();
        for extent in &drained.created {
            let group = self.space.created(extent)?;
            self.ledger.created.push(*extent);
            out.entry(group).or_default().created.push(*extent);
        }
        for extent in &drained.freed {
            let group = self.space.freed(extent)?;
            self.ledger.freed.push(*extent);
            out.entry(group).or_default().freed.push(*extent);
            self.pinned.push(*extent);
        }
        for extent in &drained.stillborn_nodes {
            self.space.release(*extent)?;
            self.ledger.gave_back(*extent);
        }
        self.retire(&drained.stillborn_data)?;
        self.touched_groups.extend(out.keys());
        Ok(out)
    }

    fn free_space_changes(&mut self, turnover: &BTreeMap<u64, Turnover>) -> Result<Changes> {
        let root = self.root(TreeId::FREE_SPACE)?;
        let reader = self.dirty.over(self.store);
        let mut items = TreeItems::new(&reader, &root);
        let mut out = Changes::new();
        for (start, turnover) in turnover {
            let span = self.space.group_span(*start)?;
            out.extend(free_space::update(&mut items, &span, &turnover.created, &turnover.freed)?);
        }
        Ok(out)
    }

    /// New chunks into chunk tree, device tree and free-space tree (their block group
    /// items follow with the next round), gone ones out of them; false if there were none.
    fn record_chunks(&mut self) -> Result<bool> {
        let (chunks, gone, dev_item) = self.space.take_chunks();
        let known = self.dev_item.unwrap_or(self.superblock.fields.dev_item).total_bytes;
        if chunks.is_empty() && gone.is_empty() && dev_item.total_bytes == known {
            return Ok(false);
        }
        self.ledger.chunks.extend_from_slice(&chunks);
        self.ledger.gone.extend_from_slice(&gone);
        self.dev_item = Some(dev_item);
        // First what goes: a new chunk may lie where it was.
        self.forget_chunks(&gone)?;
        self.record_in_chunk_tree(&chunks, &dev_item)?;
        let uuid = self.store.geometry().chunk_tree_uuid;
        let extents: Changes = chunks.iter().flat_map(|new| dev_extents(new, uuid)).collect();
        self.nothing_there(TreeId::DEV, extents.iter().map(|(key, _)| *key))?;
        self.apply_changes(TreeId::DEV, extents)?;
        for new in &chunks {
            let span = self.span(new.logical, new.chunk.fields.length);
            let root = self.root(TreeId::FREE_SPACE)?;
            let reader = self.dirty.over(self.store);
            let changes = free_space::add_group(&mut TreeItems::new(&reader, &root), &span)?;
            self.apply_changes(TreeId::FREE_SPACE, changes)?;
            self.touched_groups.insert(new.logical.0);
        }
        self.space.recorded(&chunks, self.generation);
        Ok(true)
    }

    /// What stands at a new chunk's key says that somebody has the space: nothing is put over it.
    fn nothing_there(&mut self, tree: TreeId, keys: impl Iterator<Item = Key>) -> Result<()> {
        let root = self.root(tree)?;
        let reader = self.dirty.over(self.store);
        let mut items = TreeItems::new(&reader, &root);
        for key in keys {
            if items.get(&key)?.is_some() {
                let what = format!("a new chunk meets an item in tree {tree}");
                return Err(Corrupt::new(what).key(key).into());
            }
        }
        Ok(())
    }

    fn span(&self, start: Logical, len: u64) -> free_space::GroupSpan {
        let sector = u64::from(self.store.geometry().sector_size);
        free_space::GroupSpan { start: start.0, len, sector }
    }

    /// Takes chunks that were given up out of all trees that know them.
    fn forget_chunks(&mut self, gone: &[GoneChunk]) -> Result<()> {
        let delete = |keys: Vec<Key>| keys.into_iter().map(|key| (key, None)).collect::<Changes>();
        let chunk =
            |g: &GoneChunk| Key::new(FIRST_CHUNK_TREE_OBJECTID, kind::CHUNK_ITEM, g.logical.0);
        let group = |g: &GoneChunk| Key::new(g.logical.0, kind::BLOCK_GROUP_ITEM, g.len);
        let stripes = |g: &GoneChunk| g.stripes.clone();
        let dev = |(devid, at)| Key::new(devid, kind::DEV_EXTENT, at);
        self.apply_changes(TreeId::CHUNK, delete(gone.iter().map(chunk).collect()))?;
        let extents = gone.iter().flat_map(stripes).map(dev).collect();
        self.apply_changes(TreeId::DEV, delete(extents))?;
        self.apply_changes(self.block_group_tree, delete(gone.iter().map(group).collect()))?;
        for g in gone {
            self.touched_groups.remove(&g.logical.0);
            let span = self.span(g.logical, g.len);
            let root = self.root(TreeId::FREE_SPACE)?;
            let reader = self.dirty.over(self.store);
            let changes = free_space::remove_group(&mut TreeItems::new(&reader, &root), &span)?;
            self.apply_changes(TreeId::FREE_SPACE, changes)?;
        }
        Ok(())
    }

    fn record_in_chunk_tree(&mut self, chunks: &[NewChunk], dev_item: &DevItem) -> Result<()> {
        let chunk_key =
            |new: &NewChunk| Key::new(FIRST_CHUNK_TREE_OBJECTID, kind::CHUNK_ITEM, new.logical.0);
        let group_key = |new: &NewChunk| {
            Key::new(new.logical.0, kind::BLOCK_GROUP_ITEM, new.chunk.fields.length)
        };
        self.nothing_there(TreeId::CHUNK, chunks.iter().map(chunk_key))?;
        self.nothing_there(self.block_group_tree, chunks.iter().map(group_key))?;
        let dev_key = Key::new(DEV_ITEMS_OBJECTID, kind::DEV_ITEM, dev_item.devid);
        let mut changes: Changes = vec![(dev_key, Some(dev_item.to_vec().into()))];
        for new in chunks {
            let key = chunk_key(new);
            let data = new.chunk.to_vec();
            if new.chunk.fields.kind & block_group::SYSTEM != 0 {
                self.new_system_chunks.extend_from_slice(&key.to_bytes());
                self.new_system_chunks.extend_from_slice(&data);
            }
            changes.push((key, Some(data.into())));
        }
        self.apply_changes(TreeId::CHUNK, changes)
    }

    /// ROOT_ITEMs of all trees whose roots moved; false if none had.
    fn record_roots(&mut self) -> Result<bool> {
        let mut changes = Changes::new();
        for tree in self.trees.values_mut().filter(|tree| tree.is_unrecorded()) {
            changes.extend(tree.item_data().map(|(key, data)| (key, Some(data.into()))));
        }
        let any = !changes.is_empty();
        self.apply_changes(TreeId::ROOT, changes)?;
        Ok(any)
    }
}

fn dev_extents(new: &NewChunk, chunk_tree_uuid: [u8; 16]) -> Changes {
    let item = DevExtent {
        chunk_tree: TreeId::CHUNK.0,
        chunk_objectid: FIRST_CHUNK_TREE_OBJECTID,
        chunk_offset: new.logical.0,
        length: new.chunk.fields.length,
        chunk_tree_uuid,
    };
    let key = |devid, offset| Key::new(devid, kind::DEV_EXTENT, offset);
    let stripes = new.chunk.stripes.iter();
    stripes.map(|s| (key(s.devid, s.offset), Some(item.to_vec().into()))).collect()
}
