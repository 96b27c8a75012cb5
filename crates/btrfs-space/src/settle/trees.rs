//! The trees that a commit touches: their roots, and what the root tree says of them.
//!
//! Invariant: `item` is what the root tree shall say, less the members that follow from
//! `root` (filled in by [`Tree::item_data`]); `recorded` is the root that it says.

use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Error, FixedSize, Generation, Key, Result, TreeId};
use btrfs_tree::TreeRoot;

use crate::backrefs::TreeState;
use crate::items::Items;

/// A tree as the running commit has it.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub root: TreeRoot,
    /// The root that the superblock or the ROOT_ITEM in the root tree says.
    pub recorded: Option<TreeRoot>,
    /// `None` for the trees that the superblock points to.
    pub item: Option<(Key, RootItem)>,
    pub item_changed: bool,
    /// Its nodes are shared with a snapshot of this commit: no more edits.
    pub frozen: bool,
}

impl Tree {
    /// A tree that the superblock points to.
    pub(super) fn top(root: TreeRoot) -> Tree {
        Tree { root, recorded: Some(root), item: None, item_changed: false, frozen: false }
    }

    /// Reads what the root tree says of `id`.
    pub(super) fn load(root_tree: &mut dyn Items, id: TreeId) -> Result<Tree> {
        let absent = || {
            let first = Key::new(id.0, kind::ROOT_ITEM, 0);
            Error::Corrupt(Corrupt::new(format!("no tree {id}")).key(first))
        };
        Tree::find(root_tree, id)?.ok_or_else(absent)
    }

    /// The same; `None` if it says nothing.
    pub(super) fn find(root_tree: &mut dyn Items, id: TreeId) -> Result<Option<Tree>> {
        let first = Key::new(id.0, kind::ROOT_ITEM, 0);
        let found = root_tree.at_or_after(&first)?;
        let Some((key, data)) =
            found.filter(|(key, _)| key.objectid == id.0 && key.kind == kind::ROOT_ITEM)
        else {
            return Ok(None);
        };
        let item = RootItem::parse(&data).map_err(|c| c.key(key))?;
        let root =
            TreeRoot { id, logical: item.bytenr, generation: item.generation, level: item.level };
        Ok(Some(Tree {
            root,
            recorded: Some(root),
            item: Some((key, item)),
            item_changed: false,
            frozen: false,
        }))
    }

    /// A tree of this commit.
    pub(super) fn new(root: TreeRoot, key: Key, item: RootItem) -> Tree {
        Tree { root, recorded: None, item: Some((key, item)), item_changed: true, frozen: false }
    }

    pub(super) fn state(&self) -> TreeState {
        match &self.item {
            Some((_, item)) => TreeState::of(self.root, item),
            None => TreeState::top(self.root),
        }
    }

    pub(super) fn last_snapshot(&self) -> Generation {
        self.item.as_ref().map_or(Generation(0), |(_, item)| item.last_snapshot)
    }

    /// `count` nodes came to the tree (or, negative, went).
    pub(super) fn count_nodes(&mut self, count: i64, node_size: u64) {
        if count == 0 {
            return;
        }
        if let Some((_, item)) = &mut self.item {
            self.item_changed = true;
            item.bytes_used = item.bytes_used.saturating_add_signed(count * node_size as i64);
        }
    }

    pub(super) fn is_unrecorded(&self) -> bool {
        self.item.is_some() && (self.item_changed || self.recorded != Some(self.root))
    }

    /// Key and data of the ROOT_ITEM.
    pub(super) fn item_data(&mut self) -> Option<(Key, Vec<u8>)> {
        let root = self.root;
        let (key, item) = self.item.as_mut()?;
        item.bytenr = root.logical;
        item.level = root.level;
        item.generation = root.generation;
        item.generation_v2 = root.generation.0;
        let out = (*key, item.to_vec());
        self.recorded = Some(root);
        self.item_changed = false;
        Some(out)
    }
}
