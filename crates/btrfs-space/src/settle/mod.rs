//! The space side of one commit: trees get their edits, references settle.
//!
//! The way through: [`Settle::apply_tree`] for the file trees, reference changes of data
//! into [`Settle::deltas`], snapshots; then [`Settle::drain_data`] says which data died
//! (their checksums can go now); then [`Settle::finish`] drains references into extent
//! tree, block groups and free-space tree, records new chunks and root items, again and
//! again until nothing changes any more. Writing an extent item allocates nodes, which
//! are extents: that is why it takes rounds. It ends because a node of this commit is
//! rewritten in place.
//!
//! Invariants: trees whose nodes may be shared change before the first drain only, so
//! looking up references needs nothing but the committed extent tree and the deltas.
//! A commit that finds no room gives back what it took ([`undo`]) and may be tried again. On any
//! other error it must be given up, and with it (the in-memory space has moved on) all writing to
//! the volume.
//!
//! What it does not know: what the edits mean, writing nodes, flushing.

mod drop_tree;
mod fixpoint;
mod forget;
mod free_space_tree;
mod outcome;
mod quota;
mod relocate;
mod sink;
mod snapshot;
mod trees;
mod undo;
mod uuid_tree;

pub use drop_tree::DropState;
pub use free_space_tree::can_be_dropped;
pub use outcome::Settled;
pub use relocate::{CountedMoves, MoveContent, MoveNodes, MovedNodes, count_moves};

use crate::backrefs::TreeState;
use crate::items::{Items, TreeItems};
use crate::refs::{Drained, ExtentKind, Format, RefDeltas, RefOwner};
use crate::space::{MetadataReservation, Space};
use crate::{Extent, refs};
use btrfs_disk::ids::{compat_ro, incompat};
use btrfs_disk::items::{DevItem, RootItem};
use btrfs_disk::{Corrupt, Generation, Key, Result, Superblock, TreeId};
use btrfs_tree::{DirtyNodes, Edit, EditRef, NodeReader, NodeSink, Overlay, TreeRoot};
use quota::{MOST_BELOW, QuotaCommit};
use sink::Sink;
use std::collections::{BTreeMap, BTreeSet};
use trees::Tree;
use undo::Ledger;

/// What became of data in this commit.
#[derive(Clone, Debug, Default)]
pub struct DataFate {
    /// The last reference went: checksums go too.
    pub freed: Vec<Extent>,
    /// Written in this epoch and unreferenced again: must get no checksums.
    pub stillborn: Vec<Extent>,
}

/// One commit on its way: the trees as it makes them, and references that have to settle.
pub struct Settle<'a, R> {
    space: &'a Space,
    pub(crate) store: &'a R,
    pub(crate) generation: Generation,
    /// Of the last commit.
    pub(crate) superblock: Superblock,
    pub(crate) format: Format,
    /// The extent tree of the last commit.
    pub(crate) extent_root: TreeRoot,
    trees: BTreeMap<TreeId, Tree>,
    /// Trees that were taken out of the root tree.
    pub(crate) removed: Vec<TreeId>,
    block_group_tree: TreeId,
    dirty: DirtyNodes,
    pub(crate) deltas: RefDeltas,
    /// Quotas are kept.
    pub(crate) quota: Option<QuotaCommit>,
    /// Pointers that quotas still follow below what is shared.
    pub(crate) left_below: usize,
    reservation: Option<MetadataReservation>,
    /// Nodes that were taken from metadata so far, those that went again among them.
    taken: u64,
    /// Of these, what the quota tree took.
    taken_by_quotas: u64,
    /// Extents that quotas were counted anew for.
    quota_extents: u64,
    /// Drained already, not yet in the trees.
    drained: Option<Drained>,
    /// Moves of nodes that this commit makes, and what became of them.
    moves: Vec<(MoveNodes, MovedNodes)>,
    /// No more edits of trees that share nodes.
    draining: bool,
    /// Groups whose item does not say what they use.
    touched_groups: BTreeSet<u64>,
    /// To be unpinned when the commit is durable.
    pinned: Vec<Extent>,
    /// What the space was told, to be taken back if there is no room for all of it.
    ledger: Ledger,
    /// The device item and the system chunks, where chunks were added.
    dev_item: Option<DevItem>,
    new_system_chunks: Vec<u8>,
}

impl<'a, R: NodeReader> Settle<'a, R> {
    /// Begins the commit of `generation` on top of what `superblock` says. New nodes are
    /// taken out of `reservation`, if there is one.
    pub fn new(
        space: &'a Space,
        store: &'a R,
        superblock: Superblock,
        generation: Generation,
        reservation: Option<MetadataReservation>,
    ) -> Result<Settle<'a, R>> {
        let mut settle = Self::without_quotas(space, store, superblock, generation, reservation)?;
        settle.begin_quotas()?;
        Ok(settle)
    }

    /// The same, but nothing of a quota tree is read nor kept up to date: for a commit that
    /// [forgets](Settle::forget_quotas) it.
    pub fn without_quotas(
        space: &'a Space,
        store: &'a R,
        superblock: Superblock,
        generation: Generation,
        reservation: Option<MetadataReservation>,
    ) -> Result<Settle<'a, R>> {
        let trees = top_trees(&superblock);
        let skinny = superblock.fields.incompat_flags & incompat::SKINNY_METADATA != 0;
        let mut settle = Settle {
            space,
            store,
            generation,
            format: Format { skinny, ..Format::new(store.geometry(), generation) },
            extent_root: trees[&TreeId::ROOT].root,
            trees,
            removed: Vec::new(),
            block_group_tree: block_group_tree(&superblock),
            superblock,
            dirty: DirtyNodes::new(),
            deltas: RefDeltas::new(),
            quota: None,
            left_below: MOST_BELOW,
            reservation,
            taken: 0,
            taken_by_quotas: 0,
            quota_extents: 0,
            drained: None,
            moves: Vec::new(),
            draining: false,
            touched_groups: BTreeSet::new(),
            pinned: Vec::new(),
            ledger: Ledger::default(),
            dev_item: None,
            new_system_chunks: Vec::new(),
        };
        settle.extent_root = settle.tree(TreeId::EXTENT)?.root;
        Ok(settle)
    }

    /// The one that this commit makes.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Reference changes; those of nodes are added by the driver itself.
    pub fn deltas(&mut self) -> &mut RefDeltas {
        &mut self.deltas
    }

    /// Bytes of nodes that this commit has taken from metadata so far.
    pub fn taken(&self) -> u64 {
        self.taken * self.format.node_size
    }

    /// The same without the quota tree, which keeps account of space.
    pub fn taken_by_files(&self) -> u64 {
        (self.taken - self.taken_by_quotas) * self.format.node_size
    }

    /// The superblock says from now on that the volume has this.
    pub fn set_incompat(&mut self, bit: u64) {
        self.superblock.fields.incompat_flags |= bit;
    }

    /// Reads trees as this commit has them so far.
    pub fn reader(&self) -> Overlay<'_, R> {
        self.dirty.over(self.store)
    }

    /// The current root of a tree.
    pub fn root(&mut self, id: TreeId) -> Result<TreeRoot> {
        Ok(self.tree(id)?.root)
    }

    /// What the root tree says of a tree, to be changed. Root address, level, generation
    /// and size are filled in by the driver. Not for the root tree and the chunk tree.
    pub fn root_item(&mut self, id: TreeId) -> Result<&mut RootItem> {
        let tree = self.tree(id)?;
        tree.item_changed = true;
        let no_item = || Corrupt::new(format!("tree {id} has no root item"));
        Ok(tree.item.as_mut().map(|(_, item)| item).ok_or_else(no_item)?)
    }

    fn tree(&mut self, id: TreeId) -> Result<&mut Tree> {
        if !self.trees.contains_key(&id) {
            let root = self.trees[&TreeId::ROOT].root;
            let reader = self.dirty.over(self.store);
            let tree = Tree::load(&mut TreeItems::new(&reader, &root), id)?;
            self.trees.insert(id, tree);
        }
        Ok(self.trees.get_mut(&id).expect("there or just put in"))
    }

    /// A tree as this commit has it so far; `None` if it does not know it.
    pub(crate) fn tree_state(&self, id: TreeId) -> Option<TreeState> {
        self.trees.get(&id).map(Tree::state)
    }

    /// What a root tree says of `id`.
    pub(crate) fn find_tree(&self, roots: &mut dyn Items, id: TreeId) -> Result<Option<TreeState>> {
        Ok(Tree::find(roots, id)?.map(|tree| tree.state()))
    }

    /// Applies edits (keys strictly ascending) to a tree.
    pub fn apply_tree(
        &mut self,
        id: TreeId,
        edits: impl IntoIterator<Item = (Key, Edit)>,
    ) -> Result<TreeRoot> {
        btrfs_tree::with_borrowed(edits, |edits| self.apply_borrowed(id, edits))
    }

    /// As `apply_tree`, of edits whose bytes the caller keeps.
    pub fn apply_borrowed(&mut self, id: TreeId, edits: &[(Key, EditRef<'_>)]) -> Result<TreeRoot> {
        assert!(!(self.draining && id.is_subvolume()), "tree {id} shares nodes: before the drain");
        assert!(!self.tree(id)?.frozen, "tree {id} was snapshotted in this commit");
        let root = self.root(id)?;
        self.change(id, |store, dirty, sink, generation| {
            btrfs_tree::apply_borrowed(store, dirty, sink, generation, &root, edits)
        })
    }

    /// Lets `change` work on the nodes of `id`; the root that it answers is the tree's.
    fn change(
        &mut self,
        id: TreeId,
        change: impl FnOnce(&R, &mut DirtyNodes, &mut dyn NodeSink, Generation) -> Result<TreeRoot>,
    ) -> Result<TreeRoot> {
        let last_snapshot = self.tree(id)?.last_snapshot();
        let (root, nodes) = self.make(last_snapshot, change)?;
        let node_size = self.format.node_size;
        let tree = self.tree(id)?;
        tree.root = root;
        tree.count_nodes(nodes, node_size);
        Ok(root)
    }

    /// What `make` makes of the nodes of a tree whose last snapshot is of that commit, and by how many
    /// nodes that grows it.
    fn make(
        &mut self,
        last_snapshot: Generation,
        make: impl FnOnce(&R, &mut DirtyNodes, &mut dyn NodeSink, Generation) -> Result<TreeRoot>,
    ) -> Result<(TreeRoot, i64)> {
        let mut sink = Sink {
            space: self.space,
            reservation: &mut self.reservation,
            taken: &mut self.taken,
            ledger: &mut self.ledger,
            deltas: &mut self.deltas,
            store: self.store,
            extent_root: self.extent_root,
            last_snapshot,
            node_size: self.format.node_size,
            nodes: 0,
        };
        let root = make(self.store, &mut self.dirty, &mut sink, self.generation)?;
        Ok((root, sink.nodes))
    }

    /// Drains all reference changes so far and says what data died. To be called once
    /// all file trees are done; what follows (checksum tree) may still change others.
    pub fn drain_data(&mut self) -> Result<DataFate> {
        assert!(!self.draining, "drained once");
        self.draining = true;
        let before = self.taken;
        let counting = self.settle_quotas()?;
        let by_full = self.taken - before;
        self.make_moves(counting)?;
        let drained = self.drain()?;
        let before = self.taken;
        self.settle_simple_quotas(&drained)?;
        self.taken_by_quotas = by_full + self.taken - before;
        let (freed, stillborn) = (drained.freed_data.clone(), drained.stillborn_data.clone());
        self.drained = Some(drained);
        Ok(DataFate { freed, stillborn })
    }

    fn drain(&mut self) -> Result<Drained> {
        let root = self.root(TreeId::EXTENT)?;
        if !self.format.skinny {
            let dirty = &self.dirty;
            self.deltas.set_first_keys(|at| dirty.get(at)?.keys().next());
        }
        let reader = self.dirty.over(self.store);
        refs::drain(&mut self.deltas, &mut TreeItems::new(&reader, &root), &self.format)
    }

    /// Takes a tree out of the root tree. Its nodes' references are the caller's to drop.
    pub fn remove_tree(&mut self, id: TreeId) -> Result<()> {
        let key = self.tree(id)?.item.as_ref().map(|(key, _)| *key);
        if let Some(key) = key {
            self.trees.remove(&id);
            self.removed.push(id);
            self.apply_tree(TreeId::ROOT, [(key, Edit::Delete)])?;
        }
        Ok(())
    }

    /// Takes all items out of a tree.
    pub(crate) fn empty_tree(&mut self, id: TreeId) -> Result<()> {
        let root = self.root(id)?;
        let mut keys = Vec::new();
        let reader = self.reader();
        TreeItems::new(&reader, &root).scan(Key::MIN, Key::MAX, &mut |key, _| {
            keys.push((key, Edit::Delete));
            Ok(())
        })?;
        self.apply_tree(id, keys).map(drop)
    }

    /// Takes a tree of one leaf, which no other tree shares, away.
    pub(crate) fn remove_emptied(&mut self, id: TreeId) -> Result<()> {
        let root = self.root(id)?;
        assert!(root.level == 0 && !id.is_subvolume(), "tree {id} is one leaf of its own");
        let (kind, owner) = (ExtentKind::Node { level: 0 }, RefOwner::Tree { root: id });
        self.deltas.add(root.logical, self.format.node_size, kind, owner, -1);
        self.dirty.remove(root.logical);
        self.remove_tree(id)
    }

    /// Trees that this commit has looked at or made.
    pub(crate) fn trees_of_commit(&self) -> Vec<TreeId> {
        self.trees.keys().copied().collect()
    }

    /// Space that no tree ever knew and that must not be reused before this commit is
    /// durable (nodes of a log tree that it replaces).
    pub fn retire(&mut self, extents: &[Extent]) -> Result<()> {
        for extent in extents {
            self.space.pin_unrecorded(extent)?;
            self.ledger.retired.push(*extent);
            self.pinned.push(*extent);
        }
        Ok(())
    }
}

/// Where the items of block groups are.
fn block_group_tree(superblock: &Superblock) -> TreeId {
    match superblock.fields.compat_ro_flags & compat_ro::BLOCK_GROUP_TREE {
        0 => TreeId::EXTENT,
        _ => TreeId::BLOCK_GROUP,
    }
}

/// Those that the superblock points to.
fn top_trees(superblock: &Superblock) -> BTreeMap<TreeId, Tree> {
    let fields = &superblock.fields;
    let top = |id, logical, generation, level| {
        (id, Tree::top(TreeRoot { id, logical, generation, level }))
    };
    BTreeMap::from([
        top(TreeId::ROOT, fields.root, fields.generation, fields.root_level),
        top(
            TreeId::CHUNK,
            fields.chunk_root,
            fields.chunk_root_generation,
            fields.chunk_root_level,
        ),
    ])
}
