//! Which subvolumes reach an extent: from its references up to the roots.
//!
//! A reference that is keyed by a tree says that a node of this tree, not shared by address, has
//! the pointer; other trees may hold that node or one above it. So the pointer is looked for in
//! the tree, and who reaches the node that has it reaches the extent. A shared reference names
//! that node itself. Nodes that a tree made since its last snapshot are its own ([`may_be_shared`]),
//! and so is all that was never in a snapshot: there the way ends early.
//!
//! Invariants: what is answered is true of one state of the volume, that which `nodes`, `extents`,
//! `pending` and `trees` are of. The answer for a node is remembered: a walker asks each node once,
//! so a state must not change under it. The way up ends: each node asked has a higher level.
//!
//! What it does not know: why somebody asks; which inode and offset it is (`logical-resolve` goes
//! on from the same references).

use crate::items::Items;
use crate::refs::{ExtentKind, RefDeltas, RefOwner, apply_reference, find_item};
use crate::shared::may_be_shared;
use btrfs_disk::items::{FileExtent, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::node::MAX_LEVEL;
use btrfs_disk::{Corrupt, Expect, Generation, Key, Logical, Node, Result, TreeId};
use btrfs_tree::{Cursor, Item, NodeReader, TreeRoot};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Subvolumes, ascending.
pub type Reachers = Arc<[TreeId]>;

/// The holders of an extent, and how many references each has.
pub type Owners = BTreeMap<RefOwner, u64>;

/// A tree of the state that is asked about.
#[derive(Clone, Copy, Debug)]
pub struct TreeState {
    /// Where it begins.
    pub root: TreeRoot,
    /// Nodes that are newer are its own.
    pub last_snapshot: Generation,
    /// What is in front of this key is gone: the tree is being dropped, and came so far. Its nodes may be those of
    /// others by now.
    pub begins: Key,
}

impl TreeState {
    /// Where a tree has this root, and the root tree says that of it.
    pub fn of(root: TreeRoot, item: &RootItem) -> TreeState {
        let begins = if item.is_deleted() { item.drop_progress } else { Key::MIN };
        TreeState { root, last_snapshot: item.last_snapshot, begins }
    }

    /// One of which the root tree says nothing.
    pub fn top(root: TreeRoot) -> TreeState {
        TreeState { root, last_snapshot: Generation(0), begins: Key::MIN }
    }
}

/// What a walker asks for trees; `None`: there is no such tree.
pub type FindTree<'a> = dyn Fn(TreeId) -> Result<Option<TreeState>> + 'a;

/// A walker in one state of a volume.
pub struct Backrefs<'a> {
    nodes: &'a dyn NodeReader,
    extents: Box<dyn Items + 'a>,
    pending: Option<&'a RefDeltas>,
    find_tree: Box<FindTree<'a>>,
    trees: HashMap<TreeId, Option<TreeState>>,
    alone: HashMap<TreeId, Reachers>,
    known: HashMap<Logical, Reachers>,
    /// Where the last reference of a tree's files was: the next is often in the same leaf.
    cursors: HashMap<TreeId, Cursor<'a, dyn NodeReader + 'a>>,
    nobody: Reachers,
}

impl<'a> Backrefs<'a> {
    /// `extents` is an extent tree, `pending` has what that does not know yet.
    pub fn new(
        nodes: &'a dyn NodeReader,
        extents: Box<dyn Items + 'a>,
        pending: Option<&'a RefDeltas>,
        find_tree: Box<FindTree<'a>>,
    ) -> Backrefs<'a> {
        let (trees, alone, known, cursors) = Default::default();
        let nobody = Arc::from([]);
        Backrefs { nodes, extents, pending, find_tree, trees, alone, known, cursors, nobody }
    }

    /// The holders of an extent in this state; none if there is no such extent.
    pub fn owners(&mut self, extent: Logical) -> Result<Owners> {
        let owners = self.stored(extent)?;
        self.with_pending(owners, extent)
    }

    /// The holders that the extent tree knows.
    fn stored(&mut self, extent: Logical) -> Result<Owners> {
        let mut owners = Owners::new();
        let Some((_, item)) = find_item(&mut *self.extents, extent)? else { return Ok(owners) };
        for inline in &item.inline {
            if let Some(owner) = RefOwner::of_inline(inline) {
                *owners.entry(owner).or_default() += inline.count();
            }
        }
        let known: u64 = owners.values().sum();
        if known < item.fields.refs {
            let from = Key::new(extent.0, kind::TREE_BLOCK_REF, 0);
            let to = Key::new(extent.0, kind::BLOCK_GROUP_ITEM - 1, u64::MAX);
            self.extents.scan(from, to, &mut |key, data| {
                if let Some((owner, count)) = RefOwner::of_separate(&key, data)? {
                    *owners.entry(owner).or_default() += count;
                }
                Ok(())
            })?;
        }
        if owners.values().sum::<u64>() != item.fields.refs {
            let what = "extent's count is not the sum of its references";
            return Err(Corrupt::new(what).at(extent).into());
        }
        Ok(owners)
    }

    /// `owners` as they are once `pending` is in the tree too.
    pub fn with_pending(&self, mut owners: Owners, extent: Logical) -> Result<Owners> {
        if let Some(delta) = self.pending.and_then(|pending| pending.get(extent)) {
            for (owner, change) in delta.owners() {
                apply_reference(&mut owners, owner, *change, extent)?;
            }
        }
        Ok(owners)
    }

    /// Who reaches an extent that `owners` hold.
    pub fn reachers(
        &mut self,
        extent: Logical,
        kind: ExtentKind,
        owners: &Owners,
    ) -> Result<Reachers> {
        if let ExtentKind::Node { level } = kind
            && level >= MAX_LEVEL
        {
            return Err(Corrupt::new("tree block of an impossible level").at(extent).into());
        }
        let mut found = Vec::new();
        for owner in owners.keys() {
            match *owner {
                RefOwner::Tree { root } => found.push(self.by_tree(extent, kind, root)?),
                RefOwner::Data { root, ino, offset } => {
                    self.by_file(&mut found, extent, root, (ino, offset), owners)?;
                }
                // The root of a relocation's tree holds itself.
                RefOwner::SharedTree { parent } if parent == extent => {}
                RefOwner::SharedTree { parent } => {
                    let ExtentKind::Node { level } = kind else { continue };
                    found.push(self.of_node(parent, level + 1)?);
                }
                RefOwner::SharedData { parent } => found.push(self.of_node(parent, 0)?),
            }
        }
        Ok(self.united(found))
    }

    fn united(&self, mut found: Vec<Reachers>) -> Reachers {
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        match found.len() {
            0 => Arc::clone(&self.nobody),
            1 => found.swap_remove(0),
            _ => {
                let mut all: Vec<TreeId> =
                    found.iter().flat_map(|set| set.iter().copied()).collect();
                all.sort_unstable();
                all.dedup();
                all.into()
            }
        }
    }

    /// Who reaches a node.
    pub fn of_node(&mut self, node: Logical, level: u8) -> Result<Reachers> {
        if let Some(known) = self.known.get(&node) {
            return Ok(Arc::clone(known));
        }
        let owners = self.owners(node)?;
        let found = self.reachers(node, ExtentKind::Node { level }, &owners)?;
        self.known.insert(node, Arc::clone(&found));
        Ok(found)
    }

    /// The state of a subvolume; `None` for other trees as well.
    pub fn subvolume(&mut self, id: TreeId) -> Result<Option<TreeState>> {
        if !id.is_subvolume() {
            return Ok(None);
        }
        if let Some(known) = self.trees.get(&id) {
            return Ok(*known);
        }
        let found = (self.find_tree)(id)?;
        self.trees.insert(id, found);
        Ok(found)
    }

    /// The set of one tree.
    pub fn alone(&mut self, id: TreeId) -> Reachers {
        Arc::clone(self.alone.entry(id).or_insert_with(|| Arc::from([id])))
    }

    /// Who reaches a node of `tree` that has a pointer keyed by it.
    fn of_holder(&mut self, tree: &TreeState, holder: &Node) -> Result<Reachers> {
        let id = tree.root.id;
        if holder.logical() == tree.root.logical || !may_be_shared(id, holder, tree.last_snapshot) {
            return Ok(self.alone(id));
        }
        self.of_node(holder.logical(), holder.level())
    }

    /// Through a reference to a tree block that `id` holds.
    fn by_tree(&mut self, extent: Logical, of: ExtentKind, id: TreeId) -> Result<Reachers> {
        let ExtentKind::Node { level } = of else { return Ok(Arc::clone(&self.nobody)) };
        let Some(tree) = self.subvolume(id)? else { return Ok(Arc::clone(&self.nobody)) };
        if tree.last_snapshot.0 == 0 || tree.root.logical == extent {
            return Ok(self.alone(id));
        }
        let expect =
            Expect { logical: extent, level, generation: None, owner: None, first_key: None };
        let node = self.nodes.node(&expect)?;
        if !may_be_shared(id, &node, tree.last_snapshot) {
            return Ok(self.alone(id));
        }
        if node.is_empty() {
            return Err(Corrupt::new("node without keys that is no root").at(extent).into());
        }
        let parent = self.above(&tree, &node.key(0), level + 1)?;
        match parent.filter(|parent| parent.children().any(|child| child.logical == extent)) {
            Some(parent) => self.of_holder(&tree, &parent),
            None => {
                let what = format!("tree {id} holds a tree block that it does not reach");
                Err(Corrupt::new(what).at(extent).into())
            }
        }
    }

    /// The node of this level on the way to `key`.
    fn above(&self, tree: &TreeState, key: &Key, level: u8) -> Result<Option<Arc<Node>>> {
        let mut node = self.nodes.node(&tree.root.expect())?;
        while node.level() > level && !node.is_empty() {
            let child = node.child(node.child_slot(key));
            node = self.nodes.node(&Expect::of_child(&child, node.level() - 1, tree.root.id))?;
        }
        Ok((node.level() == level).then_some(node))
    }

    /// Through the references of a file, which may stand in several leaves. The file may have others on the way: of
    /// leaves that refer to the extent by their own address, or that another tree wrote and shares.
    fn by_file(
        &mut self,
        found: &mut Vec<Reachers>,
        extent: Logical,
        id: TreeId,
        (ino, offset): (u64, u64),
        owners: &Owners,
    ) -> Result<()> {
        let Some(tree) = self.subvolume(id)? else { return Ok(()) };
        if tree.last_snapshot.0 == 0 {
            found.push(self.alone(id));
            return Ok(());
        }
        let mut left = owners.get(&RefOwner::Data { root: id, ino, offset }).copied().unwrap_or(0);
        let mut last: Option<Arc<Node>> = None;
        // An item may begin behind the start of its extent: then this is less than nothing.
        let first = if offset.cast_signed() < 0 { 0 } else { offset };
        let cursor = self.cursors.remove(&id);
        let mut cursor = cursor.unwrap_or_else(|| Cursor::new(self.nodes, &tree.root));
        cursor.seek(&Key::new(ino, kind::EXTENT_DATA, first).max(tree.begins))?;
        while let Some(item) = cursor.current().filter(|_| left > 0) {
            let key = item.key();
            if key.objectid != ino || key.kind != kind::EXTENT_DATA {
                break;
            }
            let parent = item.node().logical();
            let counts = || {
                item.node().header().owner == id
                    && !owners.contains_key(&RefOwner::SharedData { parent })
            };
            if stands_for(&item, extent, offset)? && counts() {
                left -= 1;
                if last.as_ref().is_none_or(|last| last.logical() != parent) {
                    let leaf = Arc::clone(item.node());
                    found.push(self.of_holder(&tree, &leaf)?);
                    last = Some(leaf);
                }
            }
            if left > 0 {
                cursor.next()?;
            }
        }
        self.cursors.insert(id, cursor);
        if left > 0 {
            let what = format!("file {ino} of tree {id} lacks {left} references to an extent");
            return Err(Corrupt::new(what).at(extent).into());
        }
        Ok(())
    }
}

/// Whether a file's item is a reference to `extent` by this offset.
fn stands_for(item: &Item, extent: Logical, offset: u64) -> Result<bool> {
    let key = item.key();
    Ok(match FileExtent::parse(item.data()).map_err(|c| c.key(key))? {
        FileExtent::Extent { fields, .. } => {
            fields.disk_bytenr == extent && key.offset.wrapping_sub(fields.offset) == offset
        }
        FileExtent::Inline { .. } => false,
    })
}
