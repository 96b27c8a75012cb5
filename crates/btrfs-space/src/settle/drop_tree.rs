//! Dropping a whole tree: a deleted subvolume's references go, in steps over commits.
//!
//! The format's way. The tree is not edited: its nodes are visited in key order, and a
//! node that nobody else holds drops its pointers' references, then itself. Between
//! commits the ROOT_ITEM says how far that came: everything below `drop_progress` in the
//! nodes of `drop_level` and left of them is gone, the nodes on the path are not. The
//! kernel goes on where this stopped, and the other way round.
//!
//! A node that others hold too only loses this tree's reference. But pointers that it
//! and the nodes below hold keyed by this tree would then be keyed by a tree that is no
//! more: before, they become shared references (FULL_BACKREF). Doing that twice does
//! nothing, so it may be interrupted anywhere.
//!
//! How far another writer came is not believed: kernels wrote positions that lag behind what
//! they had dropped, and a position too far would leave what is in front of it allocated for ever. So
//! the first step of a [`DropState`] begins at the front, and passes over each child that does not have
//! the reference that its parent should hold: that one went before, with all below. What it costs is a look into the
//! extent tree for each pointer of the nodes on the path.
//!
//! Trees of a relocation of the kernel's that was interrupted go the same way. Each is a tree of its
//! own at every commit, whatever of it the subvolume had got by then; its root holds itself, its nodes hold
//! their pointers by address, and no quota group knows it. Its drop position says how much the subvolume got
//! until its count of references is 0; from then on it says what that of any dead tree does.
//!
//! Where something of the tree cannot be read it stays as far as it was dropped: to leave out what nobody
//! can see would leave references behind that no tree has. What is in front of that is gone.
//!
//! What it does not know: who deletes the names and the orphan item.

use super::Settle;
use crate::items::TreeItems;
use crate::refs::{ExtentKind, RefOwner, held_by, stored_refs};
use crate::shared::{Holder, change_pointers};
use btrfs_disk::items::{RootItem, extent_flags};
use btrfs_disk::{ChildPtr, Corrupt, Expect, Generation, Key, Logical, Node, Result, TreeId};
use btrfs_tree::NodeReader;
use std::sync::Arc;

/// What a drop remembers between its steps to be quicker; a new one is as good.
#[derive(Clone, Debug, Default)]
pub struct DropState {
    /// The position that this state came to: nothing left of it is there any more.
    written: Option<(u8, Key)>,
    /// Somebody else dropped some of the tree: children may have gone.
    taken_over: bool,
    /// Up to here the shared subtree at hand has shared references.
    converted: Option<Key>,
    stuck: Option<String>,
}

impl DropState {
    /// Why it does not go on: what comes next cannot be read.
    pub fn stuck(&self) -> Option<&str> {
        self.stuck.as_deref()
    }

    /// `None`: it cannot be read, and nothing has changed for it yet.
    fn unless_stuck<T>(&mut self, read: Result<T>) -> Result<Option<T>> {
        match read {
            Err(error) if error.is_damage() => {
                self.stuck = Some(error.to_string());
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Where to go on; `None`: at the front.
    fn go_on(&mut self, item: &RootItem) -> Option<Resume> {
        let (level, key) = (item.drop_level, item.drop_progress);
        let begun = key.objectid != 0;
        let ours = begun && self.written == Some((level, key));
        self.taken_over |= begun && !ours;
        ours.then_some(Resume { level, key })
    }
}

enum Flow {
    Done,
    /// To go on with this key in the node of this level.
    Paused(u8, Key),
}

#[derive(Clone, Copy)]
struct Resume {
    level: u8,
    key: Key,
}

/// One step.
struct Dropper<'s, 'a, R> {
    settle: &'s mut Settle<'a, R>,
    state: &'s mut DropState,
    id: TreeId,
    /// The tree was a snapshot of another at this generation: older nodes are not its own.
    origin: Generation,
    /// Nodes that may still be read.
    budget: usize,
    /// Leaves that dropped their pointers.
    leaves: usize,
    /// Something changed: pausing now does not mean to begin the same again.
    progress: bool,
}

impl<R: NodeReader> Settle<'_, R> {
    /// Drops references of a tree that no name leads to any more, reading about `budget`
    /// nodes. True once all are gone, and the ROOT_ITEM with them. No edit of the tree
    /// and no snapshot may be in the same commit; it comes before the drain.
    pub fn drop_tree(&mut self, id: TreeId, state: &mut DropState, budget: usize) -> Result<bool> {
        self.drop_tree_within(id, state, &mut budget.max(1))
    }

    /// As `drop_tree`, for several trees in one commit, which have what is `left` of a budget.
    pub fn drop_tree_within(
        &mut self,
        id: TreeId,
        state: &mut DropState,
        left: &mut usize,
    ) -> Result<bool> {
        assert!(!self.draining, "drops come before the drain");
        let tree = self.tree(id)?;
        assert!(tree.recorded == Some(tree.root) && !tree.frozen, "a tree that is not edited");
        let root = tree.root;
        let Some((key, item)) = tree.item else {
            return Err(Corrupt::new(format!("tree {id} has no root item")).into());
        };
        let resume = state.go_on(&item);
        let origin = Generation(key.offset);
        let node = self.store.node(&root.expect());
        let Some(node) = state.unless_stuck(node)? else { return Ok(false) };
        let (budget, leaves, progress) = (*left, 0, false);
        let mut dropper =
            Dropper { settle: self, state: &mut *state, id, origin, budget, leaves, progress };
        let flow = dropper.root(&node, resume)?;
        *left = dropper.left_of(budget);
        let progress = dropper.progress;
        match flow {
            Flow::Done => {
                self.remove_tree(id)?;
                Ok(true)
            }
            Flow::Paused(..) if !progress => Ok(false),
            Flow::Paused(level, key) => {
                let item = self.root_item(id)?;
                (item.drop_level, item.drop_progress) = (level, key);
                state.written = Some((level, key));
                Ok(false)
            }
        }
    }
}

impl<R: NodeReader> Settle<'_, R> {
    /// Drops trees that a relocation of the kernel's left, one after the other, as `drop_tree_within` does.
    pub fn drop_relocations(&mut self, state: &mut DropState, budget: &mut usize) -> Result<()> {
        while *budget > 0 && self.has_relocation()? {
            let item = self.root_item(TreeId::RELOC)?;
            if !item.is_deleted() {
                item.refs = 0;
                (item.drop_progress, item.drop_level) = (Key::MIN, 0);
            }
            if !self.drop_tree_within(TreeId::RELOC, state, budget)? {
                break;
            }
            *state = DropState::default();
        }
        Ok(())
    }

    fn has_relocation(&mut self) -> Result<bool> {
        if self.tree_state(TreeId::RELOC).is_some() {
            return Ok(true);
        }
        let root = self.root(TreeId::ROOT)?;
        let reader = self.reader();
        Ok(self.find_tree(&mut TreeItems::new(&reader, &root), TreeId::RELOC)?.is_some())
    }
}

impl<R: NodeReader> Dropper<'_, '_, R> {
    /// What is left of a budget of `most`. Of leaves there are no more than what is gone of it, which who reserves room for
    /// them counts on: one that is read behind it lies below a node that had the last of it.
    fn left_of(&self, most: usize) -> usize {
        let left = self.budget.min(most);
        debug_assert!(self.leaves <= most - left, "each leaf took of the budget");
        left
    }

    fn refs(&mut self, logical: Logical) -> Result<(u64, bool)> {
        let mut items = TreeItems::new(self.settle.store, &self.settle.extent_root);
        let found = stored_refs(&mut items, &[&self.settle.deltas], logical)?;
        let found = found.filter(|(refs, _)| *refs > 0);
        let (refs, flags) =
            found.ok_or_else(|| Corrupt::new("tree block without an extent item").at(logical))?;
        Ok((refs, flags & extent_flags::FULL_BACKREF != 0))
    }

    fn drop_ref(&mut self, logical: Logical, level: u8, owner: RefOwner) {
        let (kind, len) = (ExtentKind::Node { level }, self.settle.format.node_size);
        self.settle.deltas.add(logical, len, kind, owner, -1);
        self.progress = true;
    }

    /// How the pointers of a node of this tree are held.
    fn holder(&self, node: &Node, full: bool) -> Result<Holder> {
        if full {
            return Ok(Holder::Shared(node.logical()));
        }
        if node.owner() == self.id {
            return Ok(Holder::Keyed(self.id));
        }
        let what = format!("node of tree {} is held by tree {} alone", node.owner(), self.id);
        Err(Corrupt::new(what).at(node.logical()).into())
    }

    fn root(&mut self, node: &Arc<Node>, resume: Option<Resume>) -> Result<Flow> {
        let found = self.refs(node.logical());
        let Some((refs, full)) = self.state.unless_stuck(found)? else {
            return Ok(Flow::Paused(node.level(), Key::MIN));
        };
        let owner = match self.id {
            TreeId::RELOC => RefOwner::SharedTree { parent: node.logical() },
            root => RefOwner::Tree { root },
        };
        if refs > 1 {
            // A root is shared in the midst of a balance only: nothing to pause for.
            self.budget = usize::MAX;
            if !self.convert(node)? {
                return Ok(Flow::Paused(node.level(), node.key(0)));
            }
            self.settle.touch_below(self.id, node)?;
            self.drop_ref(node.logical(), node.level(), owner);
            return Ok(Flow::Done);
        }
        let holder = self.holder(node, full);
        let Some(holder) = self.state.unless_stuck(holder)? else {
            return Ok(Flow::Paused(node.level(), Key::MIN));
        };
        self.node(node, holder, owner, resume)
    }

    /// A node that this tree alone holds, by `owner`: its pointers, which are held by `holder`, then itself.
    fn node(
        &mut self,
        node: &Arc<Node>,
        holder: Holder,
        owner: RefOwner,
        resume: Option<Resume>,
    ) -> Result<Flow> {
        self.budget = self.budget.saturating_sub(1);
        if node.is_leaf() {
            self.leaves += 1;
            change_pointers(&mut self.settle.deltas, node, holder, -1)?;
        } else if let Flow::Paused(level, key) = self.children(node, holder, resume)? {
            return Ok(Flow::Paused(level, key));
        }
        self.drop_ref(node.logical(), node.level(), owner);
        Ok(Flow::Done)
    }

    fn children(
        &mut self,
        node: &Arc<Node>,
        holder: Holder,
        mut resume: Option<Resume>,
    ) -> Result<Flow> {
        let first = match &resume {
            None => 0,
            Some(resume) if resume.level < node.level() => node.child_slot(&resume.key),
            Some(resume) => node.search(&resume.key).unwrap_or_else(|slot| slot),
        };
        // From the node where the last step stopped, its children are whole.
        resume = resume.filter(|resume| resume.level < node.level());
        for slot in first..node.len() {
            let gone = self.is_gone(&node.child(slot), holder);
            match self.state.unless_stuck(gone)? {
                None => return Ok(Flow::Paused(node.level(), node.key(slot))),
                Some(true) => continue,
                Some(false) => {}
            }
            if let Flow::Paused(level, key) = self.child(node, slot, holder, resume.take())? {
                return Ok(Flow::Paused(level, key));
            }
            if self.budget == 0 && slot + 1 < node.len() {
                return Ok(Flow::Paused(node.level(), node.key(slot + 1)));
            }
        }
        Ok(Flow::Done)
    }

    /// Another writer dropped this child, and said so by its references alone. What of this tree moved may be at its
    /// address by now.
    fn is_gone(&self, child: &ChildPtr, holder: Holder) -> Result<bool> {
        if !self.state.taken_over {
            return Ok(false);
        }
        let mut items = TreeItems::new(self.settle.store, &self.settle.extent_root);
        let at = (child.logical, child.generation, self.settle.generation);
        Ok(!held_by(&mut items, &[&self.settle.deltas], at, &owner_of(holder))?)
    }

    fn child(
        &mut self,
        parent: &Arc<Node>,
        slot: usize,
        holder: Holder,
        resume: Option<Resume>,
    ) -> Result<Flow> {
        let (at, level) = (parent.child(slot), parent.level() - 1);
        let owner = owner_of(holder);
        let paused = || Ok(Flow::Paused(parent.level(), at.key));
        let found = self.refs(at.logical);
        let Some((refs, full)) = self.state.unless_stuck(found)? else { return paused() };
        let known_shared = full && level == 0;
        let converts = refs > 1 && !known_shared && at.generation > self.origin;
        if refs == 1 || converts {
            let node = self.read(&at, level);
            let Some(node) = self.state.unless_stuck(node)? else { return paused() };
            if refs == 1 {
                let holder = self.holder(&node, full);
                let Some(holder) = self.state.unless_stuck(holder)? else { return paused() };
                return self.node(&node, holder, owner, resume);
            }
            if !self.convert(&node)? {
                return paused();
            }
            self.state.converted = None;
        }
        self.count_below(&at, level)?;
        self.drop_ref(at.logical, level, owner);
        Ok(Flow::Done)
    }

    /// Others reach what is below still: who does is another thing now, and no reference says it.
    fn count_below(&mut self, at: &ChildPtr, level: u8) -> Result<()> {
        if !self.settle.counts(self.id) {
            return Ok(());
        }
        match self.read(at, level) {
            Ok(node) => {
                let read = self.settle.touch_below(self.id, &node)?;
                self.budget = self.budget.saturating_sub(read);
            }
            Err(error) if error.is_damage() => self.settle.lose_count(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn read(&self, at: &ChildPtr, level: u8) -> Result<Arc<Node>> {
        self.settle.store.node(&Expect::of_child(at, level, self.id))
    }

    /// Pointers of `node` and below that are keyed by this tree become shared; false if
    /// the budget ended it, or damage.
    fn convert(&mut self, node: &Arc<Node>) -> Result<bool> {
        if node.owner() != self.id {
            return Ok(true);
        }
        self.budget = self.budget.saturating_sub(1);
        let found = self.refs(node.logical());
        let Some((_, full)) = self.state.unless_stuck(found)? else { return Ok(false) };
        if !full {
            self.progress = true;
            let deltas = &mut self.settle.deltas;
            change_pointers(deltas, node, Holder::Shared(node.logical()), 1)?;
            change_pointers(deltas, node, Holder::Keyed(self.id), -1)?;
            deltas.set_full_backref(node.logical(), node.bytes().len() as u64, node.level());
        }
        if node.is_leaf() {
            return Ok(true);
        }
        for slot in 0..node.len() {
            if !self.convert_child(node, slot)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn convert_child(&mut self, parent: &Arc<Node>, slot: usize) -> Result<bool> {
        let at = parent.child(slot);
        let next = (slot + 1 < parent.len()).then(|| parent.key(slot + 1));
        let behind = next.zip(self.state.converted).is_some_and(|(next, done)| next <= done);
        if behind || at.generation <= self.origin {
            return Ok(true);
        }
        let level = parent.level() - 1;
        if level == 0 {
            let found = self.refs(at.logical);
            match self.state.unless_stuck(found)? {
                None => return Ok(false),
                Some((_, true)) => return Ok(true),
                Some(_) => {}
            }
        }
        if self.budget == 0 && self.progress {
            self.state.converted = Some(at.key);
            return Ok(false);
        }
        let node = self.read(&at, level);
        match self.state.unless_stuck(node)? {
            Some(node) => self.convert(&node),
            None => Ok(false),
        }
    }
}

/// Whose reference a child has for a pointer of a node that is held so.
fn owner_of(holder: Holder) -> RefOwner {
    match holder {
        Holder::Keyed(root) => RefOwner::Tree { root },
        Holder::Shared(parent) => RefOwner::SharedTree { parent },
    }
}
