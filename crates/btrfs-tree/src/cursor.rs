//! A position in one tree, moving in both directions.
//!
//! The cursor owns its path, so nodes it stands on stay alive; the tree it reads is
//! immutable, so the position stays true for as long as the cursor lives.
//!
//! Invariant: a path is complete (root to leaf) and its leaf slot exists whenever
//! [`Cursor::item`] answers. After a failed move it stands on no item or on the old
//! one, and may be moved again.

use crate::reader::{Item, NodeReader, TreeRoot, child_node, child_upper, root_node};
use btrfs_disk::{Key, Node, Result};
use std::sync::Arc;

#[derive(Clone, Debug)]
struct Step {
    node: Arc<Node>,
    slot: usize,
    /// The key below which `node` ends.
    upper: Option<Key>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Before,
    Item,
    Behind,
}

/// A place in a tree, at an item or behind the last one.
pub struct Cursor<'r, R: ?Sized> {
    reader: &'r R,
    root: TreeRoot,
    path: Vec<Step>,
    at: At,
    /// Leaves that begin here or behind are not entered on the way forward.
    stop: Option<Key>,
}

/// Which slot of a node a descent takes.
enum Aim<'k> {
    First,
    Last,
    Key(&'k Key),
}

impl Aim<'_> {
    fn child(&self, node: &Node) -> usize {
        match self {
            Aim::First => 0,
            Aim::Last => node.len() - 1,
            Aim::Key(key) => node.child_slot(key),
        }
    }

    /// May be one behind the last.
    fn item(&self, leaf: &Node) -> usize {
        match self {
            Aim::First => 0,
            Aim::Last => leaf.len().saturating_sub(1),
            Aim::Key(key) => leaf.search(key).unwrap_or_else(|slot| slot),
        }
    }
}

impl<'r, R: NodeReader + ?Sized> Cursor<'r, R> {
    /// Stands in front of the first item; reads nothing yet.
    pub fn new(reader: &'r R, root: &TreeRoot) -> Cursor<'r, R> {
        Cursor { reader, root: *root, path: Vec::new(), at: At::Before, stop: None }
    }

    /// For one who wants what is in front of `stop`: a leaf that cannot hold any of it is not read
    /// on the way forward, and so may be lost. Items from there on may seem not to be there.
    pub fn below(self, stop: Option<Key>) -> Cursor<'r, R> {
        Cursor { stop, ..self }
    }

    /// As `below`, for what is wanted from now on.
    pub fn stay_below(&mut self, stop: Option<Key>) {
        self.stop = stop;
    }

    /// The tree that it is in.
    pub fn root(&self) -> &TreeRoot {
        &self.root
    }

    /// To the first item with a key of at least `key`; behind the end if there is none.
    pub fn seek(&mut self, key: &Key) -> Result<()> {
        self.approach(key)?;
        let leaf = self.path.last().expect("a path has a leaf");
        if leaf.slot < leaf.node.len() { Ok(()) } else { self.next_leaf() }
    }

    /// To the last item with a key of at most `key`; in front of the first if none.
    pub fn seek_back(&mut self, key: &Key) -> Result<()> {
        self.approach(key)?;
        let leaf = self.path.last().expect("a path has a leaf");
        if leaf.slot < leaf.node.len() && leaf.node.key(leaf.slot) == *key {
            return Ok(());
        }
        self.step_back()
    }

    /// To the item with exactly this key, which is answered; in front of or behind where it would be,
    /// if there is none.
    pub fn find(&mut self, key: &Key) -> Result<Option<Item>> {
        self.approach(key)?;
        Ok(self.current().filter(|item| item.key() == *key))
    }

    /// To the first item of the tree.
    pub fn first(&mut self) -> Result<()> {
        self.seek(&Key::MIN)
    }

    /// To the last item of the tree.
    pub fn last(&mut self) -> Result<()> {
        self.seek_back(&Key::MAX)
    }

    /// The item stood on.
    pub fn item(&self) -> Option<(Key, &[u8])> {
        let leaf = self.leaf()?;
        Some((leaf.node.key(leaf.slot), leaf.node.data(leaf.slot)))
    }

    /// Of the item that it is at; `None` behind the last.
    pub fn key(&self) -> Option<Key> {
        self.leaf().map(|leaf| leaf.node.key(leaf.slot))
    }

    /// The item stood on, to be kept.
    pub fn current(&self) -> Option<Item> {
        self.leaf().map(|leaf| Item::new(Arc::clone(&leaf.node), leaf.slot))
    }

    /// One item forward. From in front of the first item: onto it.
    #[allow(clippy::should_implement_trait)] // A cursor lends items; `scan` iterates.
    pub fn next(&mut self) -> Result<()> {
        match self.at {
            At::Behind => return Ok(()),
            At::Before => return self.first(),
            At::Item => {}
        }
        let leaf = self.path.last_mut().expect("on an item");
        if leaf.slot + 1 < leaf.node.len() {
            leaf.slot += 1;
            return Ok(());
        }
        self.next_leaf()
    }

    /// One item back. From behind the last item: onto it.
    pub fn prev(&mut self) -> Result<()> {
        match self.at {
            At::Before => Ok(()),
            At::Behind => self.last(),
            At::Item => self.step_back(),
        }
    }

    fn leaf(&self) -> Option<&Step> {
        let leaf = self.path.last().filter(|_| self.at == At::Item)?;
        (leaf.slot < leaf.node.len()).then_some(leaf)
    }

    /// Stands on the slot where `key` is or would be, in the leaf where it belongs.
    fn approach(&mut self, key: &Key) -> Result<()> {
        match self.in_common(key) {
            Some(depth) if self.path[depth].node.is_leaf() => {}
            Some(depth) => {
                let from = &self.path[depth];
                self.turn_off(depth, Arc::clone(&from.node), from.upper, key)?;
            }
            None => self.turn_off(0, root_node(self.reader, &self.root)?, None, key)?,
        }
        let leaf = self.path.last_mut().expect("a path has a leaf");
        leaf.slot = Aim::Key(key).item(&leaf.node);
        self.at = At::Item;
        Ok(())
    }

    /// How far down the way to `key` is the present path: spares the nodes up to there, or all of them.
    fn in_common(&self, key: &Key) -> Option<usize> {
        let covers = |step: &Step| {
            !step.node.is_empty()
                && step.node.key(0) <= *key
                && step.upper.is_none_or(|upper| *key < upper)
        };
        // All that is in front of the root's first key belongs under that.
        let below = (1..self.path.len()).rev().find(|depth| covers(&self.path[*depth]));
        below.or((!self.path.is_empty()).then_some(0))
    }

    /// The path from `depth` on is the way from `node`, which stands there, to `key`.
    fn turn_off(
        &mut self,
        depth: usize,
        node: Arc<Node>,
        upper: Option<Key>,
        key: &Key,
    ) -> Result<()> {
        // Where that fails it stands nowhere.
        self.at = At::Before;
        let mut path = std::mem::take(&mut self.path);
        path.truncate(depth);
        path.reserve(usize::from(node.level()) + 1);
        self.descend(&mut path, node, upper, &Aim::Key(key))?;
        self.path = path;
        Ok(())
    }

    fn descend(
        &self,
        path: &mut Vec<Step>,
        mut node: Arc<Node>,
        mut upper: Option<Key>,
        aim: &Aim<'_>,
    ) -> Result<()> {
        while !node.is_leaf() {
            let slot = aim.child(&node);
            let child = child_node(self.reader, self.root.id, &node, slot, upper)?;
            let below = child_upper(&node, slot, upper);
            path.push(Step { node, slot, upper });
            (node, upper) = (child, below);
        }
        let slot = aim.item(&node);
        path.push(Step { node, slot, upper });
        Ok(())
    }

    /// From the path's parent at `depth` into its child at `slot`.
    fn enter(&mut self, depth: usize, slot: usize, aim: &Aim<'_>) -> Result<()> {
        let parent = &self.path[depth];
        let child = child_node(self.reader, self.root.id, &parent.node, slot, parent.upper)?;
        let upper = child_upper(&parent.node, slot, parent.upper);
        let mut tail = Vec::with_capacity(self.path.len());
        self.descend(&mut tail, child, upper, aim)?;
        self.path.truncate(depth + 1);
        self.path[depth].slot = slot;
        self.path.append(&mut tail);
        self.at = At::Item;
        Ok(())
    }

    fn next_leaf(&mut self) -> Result<()> {
        let parents = self.path.len() - 1;
        let turn = (0..parents).rev().find(|d| self.path[*d].slot + 1 < self.path[*d].node.len());
        let wanted = turn.filter(|depth| {
            let parent = &self.path[*depth];
            self.stop.is_none_or(|stop| parent.node.key(parent.slot + 1) < stop)
        });
        match wanted {
            Some(depth) => self.enter(depth, self.path[depth].slot + 1, &Aim::First),
            None => {
                self.at = At::Behind;
                Ok(())
            }
        }
    }

    fn step_back(&mut self) -> Result<()> {
        let leaf = self.path.last_mut().expect("a path has a leaf");
        if leaf.slot > 0 {
            leaf.slot -= 1;
            self.at = At::Item;
            return Ok(());
        }
        let parents = self.path.len() - 1;
        match (0..parents).rev().find(|d| self.path[*d].slot > 0) {
            Some(depth) => self.enter(depth, self.path[depth].slot - 1, &Aim::Last),
            None => {
                self.at = At::Before;
                Ok(())
            }
        }
    }
}
