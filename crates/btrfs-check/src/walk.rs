//! Walking one tree in key order, whatever its state.
//!
//! Invariants: levels strictly descend and (by the gate) every child's first key is the
//! one that its pointer names, so no walk is longer than the tree has pointers; a damaged subtree is
//! reported and left out (`Walked::complete` is false then), the walk goes on.
//!
//! Subvolumes share nodes, and each is walked whole: its visitor judges it by itself. Who has nothing to visit passes over
//! what was met before, and no tree of a log has nodes of another tree ([`Again`]).
//!
//! A subvolume whose deletion was interrupted has pointers to blocks that are freed
//! already; `drop` says up to where, and the walk leaves them out. Kernels wrote positions that lag
//! behind: what the extent tree says to be gone is left out, too. A position that cannot be is a finding, and
//! only the extent tree is asked then.

use crate::refs::{TreeStart, Usage};
use crate::source::Context;
use crate::{Finding, FindingKind};
use btrfs_disk::node::{BACKREF_REV_SHIFT, FLAG_RELOC, FLAG_WRITTEN};
use btrfs_disk::{Expect, Key, Node, TreeId};

/// What the visitor of leaves gets.
pub(crate) struct Leaf<'a> {
    pub tree: TreeId,
    pub node: &'a Node,
    /// No tree before this one has it.
    pub fresh: bool,
}

/// What is done at a node that was met before: a stranger may let as many trees as there are nodes begin at one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// What lies below is visited as well.
    Visit,
    /// What lies below is known.
    Pass,
    /// It has no business there, and is not read.
    Refuse,
}

type Visit<'v> = dyn FnMut(&mut Context<'_>, &Leaf<'_>) + 'v;

/// Walks the tree; records the use of every block and extent not seen before in
/// `usage`, hands every leaf to `visit`. False if a part could not be read.
pub(crate) fn walk(
    cx: &mut Context<'_>,
    usage: &mut Usage,
    start: &TreeStart,
    visit: &mut Visit<'_>,
) -> bool {
    walk_as(Again::Visit, cx, usage, start, visit)
}

/// The same, of a tree that does not have to be seen whole.
pub(crate) fn walk_as(
    again: Again,
    cx: &mut Context<'_>,
    usage: &mut Usage,
    start: &TreeStart,
    visit: &mut Visit<'_>,
) -> bool {
    let expect = start.expect();
    usage.tree_root(start);
    let mut walk = Walk { cx, usage, start, again, position: start.drop, visit, complete: true };
    if let Some(why) = walk.no_position(expect) {
        let kind = FindingKind::DropProgress { why };
        walk.cx.add(Finding::new(kind).tree(start.id).at(start.logical.0));
        walk.position = None;
    }
    walk.visit(&expect, None, walk.position.is_some());
    walk.complete
}

struct Walk<'w, 'a, 'v> {
    cx: &'w mut Context<'a>,
    usage: &'w mut Usage,
    start: &'w TreeStart,
    again: Again,
    /// Where its deletion stopped.
    position: Option<(Key, u8)>,
    visit: &'w mut Visit<'v>,
    complete: bool,
}

impl Walk<'_, '_, '_> {
    /// `end`: the key behind the last one that belongs under this node. `edge`: the node
    /// is on the path where an interrupted deletion stopped.
    fn visit(&mut self, expect: &Expect, end: Option<Key>, edge: bool) {
        let first_time = !self.usage.seen(expect.logical.0);
        if !first_time && self.again == Again::Refuse {
            self.complete = false;
            return self.wrong(expect.logical.0, "another tree has it".into());
        }
        let Some(node) = self.cx.read_node(self.start.id, expect, first_time) else {
            self.complete = false;
            return;
        };
        if let Err(why) = self.fits(&node, expect, end) {
            self.complete = false;
            if first_time {
                self.wrong(node.logical().0, why);
            }
            return;
        }
        if first_time {
            self.usage.node(&node);
            self.flags(&node);
        }
        if !first_time && self.again == Again::Pass {
            return;
        }
        self.usage.pass(self.start.id, &node);
        if node.is_leaf() {
            let leaf = Leaf { tree: self.start.id, node: &node, fresh: first_time };
            (self.visit)(self.cx, &leaf);
            return;
        }
        let first = if edge { self.first_left(&node) } else { 0 };
        for slot in first..node.len() {
            self.child(&node, slot, end, edge && slot == first, first_time);
        }
    }

    /// `end` and `edge` as for `visit`, `end` of `node`.
    fn child(&mut self, node: &Node, slot: usize, end: Option<Key>, edge: bool, first_time: bool) {
        let end = if slot + 1 < node.len() { Some(node.key(slot + 1)) } else { end };
        let child = node.child(slot);
        if self.start.drop.is_some() && self.usage.is_dropped(node, child.logical.0) {
            return;
        }
        if first_time {
            self.usage.child(node, child.logical.0);
        }
        let edge = edge && self.is_above_drop(node);
        let expect = Expect::of_child(&child, node.level() - 1, self.start.id);
        self.visit(&expect, end, edge);
    }

    /// Why the deletion cannot have stopped where it is said to have. It stops in front of a pointer of a node.
    fn no_position(&self, root: Expect) -> Option<String> {
        let (key, level) = self.position?;
        if level == 0 || level > root.level {
            return Some(format!("level {level} of a tree whose root has level {}", root.level));
        }
        let mut expect = root;
        loop {
            let node = self.cx.volume.read_node(&expect).ok()?;
            if node.level() == level {
                let there = node.search(&key).is_ok();
                return (!there).then(|| format!("{key}, where no node of level {level} has it"));
            }
            let child = node.child(node.child_slot(&key));
            if self.usage.is_dropped(&node, child.logical.0) {
                return None;
            }
            expect = Expect::of_child(&child, node.level() - 1, self.start.id);
        }
    }

    /// The first slot that an interrupted deletion left alone.
    fn first_left(&self, node: &Node) -> usize {
        match self.position {
            Some((key, level)) if node.level() == level => match node.search(&key) {
                Ok(slot) | Err(slot) => slot,
            },
            Some((key, level)) if node.level() > level => node.child_slot(&key),
            _ => 0,
        }
    }

    fn is_above_drop(&self, node: &Node) -> bool {
        self.position.is_some_and(|(_, level)| node.level() > level)
    }

    /// What the gate cannot know: whether a sound node stands where it should.
    fn fits(&self, node: &Node, expect: &Expect, end: Option<Key>) -> Result<(), String> {
        let (tree, owner) = (self.start.id, node.owner());
        if expect.first_key.is_none() {
            let own = owner == tree || tree == TreeId::RELOC;
            return if own { Ok(()) } else { Err(format!("it is the root of tree {owner}")) };
        }
        if node.is_empty() {
            return Err("an empty leaf inside a tree".into());
        }
        let last = node.key(node.len() - 1);
        if end.is_some_and(|end| last >= end) {
            return Err(format!("its last key {last} belongs to its right neighbour"));
        }
        Ok(())
    }

    fn flags(&mut self, node: &Node) {
        let known = FLAG_WRITTEN | FLAG_RELOC | 1 << BACKREF_REV_SHIFT;
        let flags = node.header().flags & !known;
        if flags != 0 {
            let finding = Finding::new(FindingKind::NodeFlags { flags });
            self.cx.add(finding.tree(self.start.id).at(node.logical().0));
        }
    }

    fn wrong(&mut self, logical: u64, why: String) {
        let kind = FindingKind::NodePlacement { why };
        self.cx.add(Finding::new(kind).tree(self.start.id).at(logical));
    }
}
