//! Nodes of a range move elsewhere, in a commit: a memoised rewrite of all trees.
//!
//! `moved(node)` is the node itself if neither it nor anything below it lies in the range; else
//! its copy, made once and remembered, whoever asks: trees that shared the old one share the new
//! one. So nothing of it is on the volume but the result, and an interruption needs no clean-up.
//!
//! References. A copy is held by exactly those who held the old node: each reference goes over as
//! it is, but that one by a parent's address names the parent's copy. Therefore each extent, moved or
//! not, is reached by the same trees as before. Quotas are a function of who reaches what and have
//! nothing to account: the moves come behind them, by construction. But while a rescan is under way what is counted is what
//! lies in front of it, and a move changes that: nothing moves until it has come to its end.
//!
//! A copy that others may hold is newer than the last snapshot of its trees. The RELOC flag says so
//! (`shared::may_be_shared`; the kernel asks the same): whoever changes such a node looks its references
//! up. The kernel, and `btrfs check`, take a node with that flag for one whose pointers are held by
//! its address (FULL_BACKREF), so they become that: one reference for each pointer is re-keyed.
//! Those of a node that its tree alone can hold stay keyed by the tree.
//!
//! How nodes are found: all interior nodes of all trees are read, each once however many trees
//! share it; leaves are not, but those that name content that moves ([`content`]). That is about a
//! hundredth of the trees' nodes. Leaves that move are read once, before the commit and in the order of their
//! addresses ([`count_moves`]); if nobody had one in memory neither it nor its copy stays there: what moves is no more wanted than before.
//!
//! A node that cannot be read and lies elsewhere is passed over: what is below it is not seen. So the
//! pointers that were found to each node that gets another address are counted against its
//! references, one for each pointer; if one is missing nothing moves.
//!
//! A tree that is half dropped is walked from where that stopped: what is in front of it is no more, and the nodes on the
//! way there keep their pointers to it, which stand for no references. The position is not believed (`drop_tree`): where
//! it lags there are more pointers than references, and nothing moves.
//!
//! What it does not know: why they move, and what becomes of the range.

mod content;

pub use content::MoveContent;

use super::Settle;
use crate::backrefs::TreeState;
use crate::items::{Items, TreeItems};
use crate::refs::{ExtentKind, ExtentRefs, RefDeltas, current_refs, held_by, stored_refs};
use crate::shared::{Holder, may_be_shared, pointers_from};
use crate::space::Kind;
use btrfs_disk::items::{ExtentItem, extent_flags};
use btrfs_disk::key::kind;
use btrfs_disk::node::{ChildPtr, FLAG_RELOC};
use btrfs_disk::{
    Corrupt, Error, Expect, Generation, Key, Logical, Node, NodeIdentity, Result, TreeId, build,
};
use btrfs_tree::{DirtyNodes, NodeReader, keeps};
use content::Content;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// What a commit shall move.
#[derive(Clone, Default, Debug)]
pub struct MoveNodes {
    /// Logical addresses of nodes.
    pub range: Range<u64>,
    /// Content of files; nothing else of the commit changes what refers to it, or its checksums.
    pub content: Vec<MoveContent>,
    /// More copies than this are not made: nothing is moved then.
    pub limit: usize,
    /// If content has more references than this nothing is moved: room for each was reserved.
    pub references: u64,
    /// Leaves of the range that were read for this and that nobody else had in memory.
    pub leaves: Arc<HashMap<Logical, Arc<Node>>>,
}

/// What a commit would do, if nothing else changed ([`count_moves`]).
#[derive(Clone, Default, Debug)]
pub struct CountedMoves {
    /// Nodes that it would copy.
    pub copies: u64,
    /// References to content that it would change.
    pub references: u64,
    /// For [`MoveNodes::leaves`].
    pub leaves: Arc<HashMap<Logical, Arc<Node>>>,
}

/// What became of it.
#[derive(Clone, Debug, Default)]
pub struct MovedNodes {
    /// Nodes of the range that have moved.
    pub moved: u64,
    /// Nodes that were copied or changed because they point there.
    pub above: u64,
    /// Content that has moved: what nobody refers to any more has not.
    pub content: Vec<MoveContent>,
    /// Why nothing was moved.
    pub refused: Option<String>,
    /// A rescan of quotas is under way: what was refused will move when that has come to its end.
    pub counting: bool,
}

/// How a search came to a node.
#[derive(Clone, Copy)]
struct Way {
    tree: TreeId,
    is_root: bool,
    /// The tree is half dropped.
    half: bool,
    /// The node is on the way to where that stopped.
    begins: Option<Key>,
}

/// A node that is to be written anew.
struct Copy {
    way: Way,
    node: Arc<Node>,
    /// It lies in the range.
    here: bool,
    /// It keeps its address: it is of this commit.
    stays: bool,
    /// Nobody else has it in memory.
    passing: bool,
    shared: bool,
    /// Pointers in front of this slot are references no more.
    first: usize,
    /// Pointers that change, by slot.
    children: Vec<usize>,
    refs: ExtentRefs,
}

impl Copy {
    /// How its pointers are held until now, where it is the copy's address that will hold them.
    fn holder(&self) -> Option<Holder> {
        match self.refs.full_backref() {
            true => Some(Holder::Shared(self.node.logical())),
            false => self.shared.then_some(Holder::Keyed(self.node.owner())),
        }
    }
}

/// Finds what is to be copied, children before their parents.
struct Search<'r, R> {
    reader: &'r R,
    range: &'r Range<u64>,
    /// Those with names of content that moves.
    leaves: &'r HashSet<Logical>,
    /// Leaves of the range that were read before; `None`: they are only counted.
    read: Option<&'r HashMap<Logical, Arc<Node>>>,
    counted: Vec<Expect>,
    /// Nodes of this commit, which stay where they are.
    dirty: Option<&'r DirtyNodes>,
    last_snapshot: Generation,
    seen: HashMap<Logical, bool>,
    /// Of each node that gets another address, how many pointers there are to it.
    pointers: HashMap<Logical, u64>,
    /// A node could not be read: there may be more pointers below it.
    lost: bool,
    copies: Vec<Copy>,
}

impl<'r, R: NodeReader> Search<'r, R> {
    fn new(
        reader: &'r R,
        range: &'r Range<u64>,
        leaves: &'r HashSet<Logical>,
        read: Option<&'r HashMap<Logical, Arc<Node>>>,
        dirty: Option<&'r DirtyNodes>,
    ) -> Search<'r, R> {
        let (seen, pointers, copies, counted) = Default::default();
        let (last_snapshot, lost) = (Generation(0), false);
        Search {
            reader,
            range,
            leaves,
            read,
            counted,
            dirty,
            last_snapshot,
            seen,
            pointers,
            lost,
            copies,
        }
    }

    fn tree(&mut self, tree: &TreeState) -> Result<()> {
        self.last_snapshot = tree.last_snapshot;
        let begins = Some(tree.begins).filter(|begins| *begins != Key::MIN);
        let way = Way { tree: tree.root.id, is_root: true, half: begins.is_some(), begins };
        self.pointer(way, &tree.root.expect()).map(drop)
    }

    /// Whether a pointer will be another; it is counted then.
    fn pointer(&mut self, way: Way, expect: &Expect) -> Result<bool> {
        let changes = self.subtree(way, expect)?;
        if changes {
            *self.pointers.entry(expect.logical).or_default() += 1;
        }
        Ok(changes)
    }

    fn is_dirty(&self, at: Logical) -> bool {
        self.dirty.is_some_and(|dirty| dirty.contains(at))
    }

    /// Whether the pointer to this node will be another.
    fn subtree(&mut self, way: Way, expect: &Expect) -> Result<bool> {
        let at = expect.logical;
        // By far the most are leaves elsewhere.
        let (inside, names) = (self.range.contains(&at.0), self.leaves.contains(&at));
        if expect.level == 0 && !inside && !names {
            return Ok(false);
        }
        if let Some(known) = self.seen.get(&at) {
            return Ok(*known);
        }
        let stays = self.is_dirty(at);
        let here = inside && !stays;
        if expect.level == 0 && !here && !names {
            return Ok(false);
        }
        if expect.level == 0 && !names && self.read.is_none() {
            self.counted.push(*expect);
            self.seen.insert(at, true);
            return Ok(true);
        }
        let read = self.unless_lost(expect, here || names)?;
        let Some((node, passing)) = read else { return Ok(false) };
        let (first, children) = self.children(way, &node)?;
        let copied = here || names || !children.is_empty();
        if copied {
            let shared = !way.is_root && self.goes_by_address(way.tree, &node);
            let refs = ExtentRefs::default();
            let copy = Copy { way, node, here, stays, passing, shared, first, children, refs };
            self.copies.push(copy);
        }
        self.seen.insert(at, copied && !stays);
        Ok(copied && !stays)
    }

    /// The first pointer of `node` that is a reference, and those that will be others.
    fn children(&mut self, way: Way, node: &Node) -> Result<(usize, Vec<usize>)> {
        if node.is_leaf() {
            return Ok((0, Vec::new()));
        }
        let first = way.begins.map_or(0, |key| node.child_slot(&key));
        let mut children = Vec::new();
        for slot in first..node.len() {
            // The key is that of a pointer: from there on it is the first one's of each node.
            let begins = way.begins.filter(|_| slot == first);
            let below = Expect::of_child(&node.child(slot), node.level() - 1, way.tree);
            if self.pointer(Way { is_root: false, begins, ..way }, &below)? {
                children.push(slot);
            }
        }
        Ok((first, children))
    }

    /// Whether references of a copy of `node` go by its address. Kernels of today reckon with none of the tree
    /// of relocated data.
    fn goes_by_address(&self, tree: TreeId, node: &Node) -> bool {
        tree.is_subvolume() && may_be_shared(tree, node, self.last_snapshot)
    }

    /// Whether what an extent tree has of the range was found, and each pointer that changes. What is
    /// wrong with a step is known so before its commit.
    fn has_found_all(&self, items: &mut dyn Items) -> Result<()> {
        for (at, found) in &self.pointers {
            let refs = stored_refs(items, &[], *at)?.map_or(0, |(refs, _)| refs);
            leads_all(*at, *found, refs)?;
        }
        let (from, to) = (Key::new(self.range.start, 0, 0), Key::new(self.range.end, 0, 0));
        if self.range.is_empty() {
            return Ok(());
        }
        items.scan(from, to, &mut |key, data| {
            let at = Logical(key.objectid);
            if key < to && is_node(&key, data)? && !self.pointers.contains_key(&at) {
                return Err(leads_all(at, 0, 1).expect_err("none is too few"));
            }
            Ok(())
        })
    }

    /// `None`: it cannot be read. It stays, and so does what more than it leads to.
    fn unless_lost(&mut self, expect: &Expect, moves: bool) -> Result<Option<(Arc<Node>, bool)>> {
        match self.node(expect) {
            Err(error) if error.is_damage() && !moves => {
                self.lost = true;
                self.seen.insert(expect.logical, false);
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// True: nobody else has it in memory.
    fn node(&self, expect: &Expect) -> Result<(Arc<Node>, bool)> {
        // Another node at the same address would be of another generation.
        let same = |read: &&Arc<Node>| expect.generation.is_some() && keeps(read, expect).is_ok();
        let read = self.read.and_then(|read| read.get(&expect.logical)).filter(same);
        Ok(match read {
            Some(read) => (Arc::clone(read), true),
            None => (self.reader.node(expect)?, false),
        })
    }
}

/// A node can get another address where each pointer to it was found.
fn leads_all(at: Logical, found: u64, refs: u64) -> Result<()> {
    if found == refs {
        return Ok(());
    }
    let what = format!("tree block has {refs} references, and {found} pointers to it were found");
    Err(Corrupt::new(what).at(at).into())
}

/// Where the references of a node change hands each of its pointers has to stand for one: a position that lags leaves
/// some behind it that stand for none any more.
fn has_its_pointers(
    items: &mut dyn Items,
    deltas: &RefDeltas,
    copy: &Copy,
    now: Generation,
) -> Result<()> {
    let Some(holder) = copy.holder().filter(|_| !copy.node.is_leaf()) else { return Ok(()) };
    let mut all = Vec::new();
    pointers_from(&copy.node, copy.first, holder, |pointer| all.push(pointer))?;
    let children = copy.node.children().skip(copy.first);
    for (pointer, child) in all.iter().zip(children) {
        let at = (child.logical, child.generation, now);
        if !held_by(items, &[deltas], at, &pointer.owner)? {
            let what = format!("tree {} is half gone, and more of it than it says", copy.way.tree);
            return Err(Corrupt::new(what).at(copy.node.logical()).into());
        }
    }
    Ok(())
}

fn is_node(key: &Key, data: &[u8]) -> Result<bool> {
    if key.kind != kind::EXTENT_ITEM {
        return Ok(key.kind == kind::METADATA_ITEM);
    }
    let item = ExtentItem::parse(key.kind, data).map_err(|corrupt| corrupt.key(*key))?;
    Ok(item.fields.flags & extent_flags::TREE_BLOCK != 0)
}

/// What a commit would do for `what`. `trees` are all that there are.
pub fn count_moves<R: NodeReader>(
    reader: &R,
    trees: &BTreeMap<TreeId, TreeState>,
    what: &MoveNodes,
) -> Result<CountedMoves> {
    let extents = trees.get(&TreeId::EXTENT).ok_or_else(|| Error::corrupt("no extent tree"))?;
    let mut items = TreeItems::new(reader, &extents.root);
    let content = Content::find(reader, &mut items, &[], trees, &what.content)?;
    let mut search = Search::new(reader, &what.range, &content.leaves, None, None);
    for tree in trees.values() {
        search.tree(tree)?;
    }
    if search.lost {
        search.has_found_all(&mut items)?;
        content.is_all_in(search.copies.iter().map(|copy| &*copy.node))?;
    }
    let mut counted = search.counted;
    counted.sort_unstable_by_key(|expect| expect.logical);
    let copies = (search.copies.len() + counted.len()) as u64;
    let leaves = reader.nodes_once(&counted)?.into_iter().map(|leaf| (leaf.logical(), leaf));
    let (references, leaves) = (content.references(), Arc::new(leaves.collect()));
    Ok(CountedMoves { copies, references, leaves })
}

impl<R: NodeReader> Settle<'_, R> {
    /// To be done when all trees that share nodes have their edits; see [`Settle::moved_nodes`].
    pub fn move_nodes(&mut self, what: MoveNodes) {
        assert!(!self.draining, "moves come before the drain");
        self.moves.push((what, MovedNodes::default()));
    }

    /// What became of the moves, in their order.
    pub fn moved_nodes(&self) -> impl Iterator<Item = &MovedNodes> {
        self.moves.iter().map(|(_, moved)| moved)
    }

    /// Behind the quotas, in front of the drain. None while quotas are `counting`.
    pub(super) fn make_moves(&mut self, counting: bool) -> Result<()> {
        let mut moves = std::mem::take(&mut self.moves);
        for (what, outcome) in &mut moves {
            if counting {
                outcome.refused = Some("a rescan of quotas is under way".into());
                outcome.counting = true;
                continue;
            }
            // Whatever is wrong is found here, where nothing has changed yet.
            match self.find_moves(what) {
                Ok((content, copies)) => *outcome = self.copy_all(content, copies)?,
                Err(error) => outcome.refused = Some(error.to_string()),
            }
        }
        self.moves = moves;
        Ok(())
    }

    /// All trees that there are, as of now.
    fn all_trees(&mut self) -> Result<Vec<TreeId>> {
        let root = self.root(TreeId::ROOT)?;
        let mut all: Vec<TreeId> = self.trees.keys().copied().collect();
        let reader = self.dirty.over(self.store);
        TreeItems::new(&reader, &root).scan(Key::MIN, Key::MAX, &mut |key, _| {
            if key.kind == kind::ROOT_ITEM {
                all.push(TreeId(key.objectid));
            }
            Ok(())
        })?;
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn all_states(&mut self) -> Result<BTreeMap<TreeId, TreeState>> {
        let trees = self.all_trees()?;
        let mut states = BTreeMap::new();
        for id in trees {
            // There are several of this number, one for each tree that it moved.
            if id == TreeId::RELOC {
                let why = "what an interrupted relocation left is there still";
                return Err(Error::Unsupported(why.into()));
            }
            states.insert(id, self.tree(id)?.state());
        }
        Ok(states)
    }

    fn find_moves(&mut self, what: &MoveNodes) -> Result<(Content, Vec<Copy>)> {
        let trees = self.all_states()?;
        let reader = self.dirty.over(self.store);
        let mut items = TreeItems::new(self.store, &self.extent_root);
        let content = Content::find(&reader, &mut items, &[&self.deltas], &trees, &what.content)?;
        let (read, dirty) = (Some(&*what.leaves), Some(&self.dirty));
        let mut search = Search::new(&reader, &what.range, &content.leaves, read, dirty);
        for tree in trees.values() {
            search.tree(tree)?;
        }
        let (mut copies, pointers) = (search.copies, search.pointers);
        content.is_all_in(copies.iter().map(|copy| &*copy.node))?;
        if copies.len() > what.limit {
            let (found, limit) = (copies.len(), what.limit);
            return Err(Error::Unsupported(format!("{found} nodes are more than {limit}")));
        }
        if content.references() > what.references {
            let (found, limit) = (content.references(), what.references);
            return Err(Error::Unsupported(format!("{found} references are more than {limit}")));
        }
        for copy in copies.iter_mut().filter(|copy| !copy.stays) {
            let at = copy.node.logical();
            let refs = current_refs(&mut items, &[&self.deltas], at)?.filter(|refs| refs.refs > 0);
            copy.refs =
                refs.ok_or_else(|| Corrupt::new("tree block without an extent item").at(at))?;
            leads_all(at, pointers.get(&at).copied().unwrap_or(0), copy.refs.refs)?;
            if copy.way.half {
                has_its_pointers(&mut items, &self.deltas, copy, self.generation)?;
            }
        }
        Ok((content, copies))
    }

    fn copy_all(&mut self, content: Content, copies: Vec<Copy>) -> Result<MovedNodes> {
        let mut outcome = MovedNodes { content: content.moved(), ..MovedNodes::default() };
        content.hand_over(&mut self.deltas);
        let mut now: HashMap<Logical, Logical> = HashMap::new();
        for copy in copies {
            let old = copy.node.logical();
            if copy.stays {
                let children = self.children(&copy, &now, old);
                let id = self.identity(old);
                let node = build::moved(&copy.node, &id, 0, children.as_deref());
                self.dirty.insert(Arc::new(content.rename(node)));
                outcome.above += 1;
                continue;
            }
            let to = self.place(copy.way.tree)?;
            now.insert(old, to);
            let children = self.children(&copy, &now, to);
            let flags = if copy.shared { FLAG_RELOC } else { 0 };
            let node = build::moved(&copy.node, &self.identity(to), flags, children.as_deref());
            let node = content.rename(node);
            self.hand_over(&copy, &node)?;
            if copy.way.is_root {
                let generation = self.generation;
                let tree = self.tree(copy.way.tree)?;
                (tree.root.logical, tree.root.generation) = (to, generation);
            }
            match copy.passing {
                true => self.dirty.insert_passing(Arc::new(node)),
                false => drop(self.dirty.insert(Arc::new(node))),
            }
            *if copy.here { &mut outcome.moved } else { &mut outcome.above } += 1;
        }
        Ok(outcome)
    }

    fn identity(&self, logical: Logical) -> NodeIdentity {
        // The owner is that of the node.
        NodeIdentity { logical, generation: self.generation, owner: TreeId(0) }
    }

    /// The pointers of a copy that comes to `to`; `None`: as they are. One that is no reference any more may lead anywhere,
    /// but not to its own node: it leads to where that was.
    fn children(
        &self,
        copy: &Copy,
        now: &HashMap<Logical, Logical>,
        to: Logical,
    ) -> Option<Vec<ChildPtr>> {
        let own = copy.node.children().take(copy.first).any(|gone| gone.logical == to);
        if copy.children.is_empty() && !own {
            return None;
        }
        let mut all: Vec<ChildPtr> = copy.node.children().collect();
        for gone in all[..copy.first].iter_mut().filter(|gone| gone.logical == to) {
            gone.logical = copy.node.logical();
        }
        for slot in &copy.children {
            let child = &mut all[*slot];
            (child.logical, child.generation) = (now[&child.logical], self.generation);
        }
        Some(all)
    }

    /// An address for a node of `tree`.
    fn place(&mut self, tree: TreeId) -> Result<Logical> {
        let size = self.format.node_size;
        let extent = match (tree, &mut self.reservation) {
            (TreeId::CHUNK, _) => self.space.alloc(Kind::System, size, size)?,
            (_, Some(reservation)) => reservation.alloc_node(self.space, size)?,
            (_, None) => self.space.alloc(Kind::Metadata, size, size)?,
        };
        self.ledger.took(extent);
        self.taken += u64::from(tree != TreeId::CHUNK);
        Ok(extent.logical)
    }

    /// The references to the old node, and those by its address, become the copy's.
    fn hand_over(&mut self, copy: &Copy, new: &Node) -> Result<()> {
        let (from, to) = (copy.node.logical(), new.logical());
        let (len, level) = (self.format.node_size, new.level());
        let kind = ExtentKind::Node { level };
        self.deltas.born(to, len, kind, new.owner());
        for (owner, count) in &copy.refs.owners {
            let count = count.cast_signed();
            self.deltas.add(to, len, kind, *owner, count);
            self.deltas.add(from, len, kind, *owner, -count);
        }
        // What moved, child or content, has these references already: it took all over.
        let Some(before) = copy.holder() else { return Ok(()) };
        self.deltas.set_full_backref(to, len, level);
        for (holder, count) in [(before, -1), (Holder::Shared(to), 1)] {
            pointers_from(new, copy.first, holder, |p| {
                self.deltas.add(p.extent, p.len, p.kind, p.owner, count);
            })?;
        }
        Ok(())
    }
}
