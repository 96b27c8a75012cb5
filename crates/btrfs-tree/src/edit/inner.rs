//! Edits handed down to the children of one interior node, and the children's new
//! contents laid out again: joined where they became small, cut where they grew.

use super::pass::{Frame, Pass};
use super::run::{Entry, Run};
use super::{EditRef, leaf};
use crate::reader::{child_node, child_upper};
use btrfs_disk::node::ChildPtr;
use btrfs_disk::{Key, LeafItem, Node, Result};
use std::cell::OnceCell;
use std::sync::Arc;

/// Children by slot, read when first needed. Entries borrow from them.
type Children = [OnceCell<Arc<Node>>];

/// The node's pointers after the edits; `None` if they change nothing.
pub(super) fn edit(
    pass: &mut Pass<'_>,
    node: &Arc<Node>,
    parent: Option<&Frame<'_>>,
    edits: &[(Key, EditRef<'_>)],
    upper: Option<Key>,
) -> Result<Option<Run<ChildPtr>>> {
    let frame = Frame::new(node, parent);
    let children: Vec<OnceCell<Arc<Node>>> = vec![OnceCell::new(); node.len()];
    let parent = Parent { node, frame: &frame, upper, children: &children };
    let layout = if node.level() == 1 {
        Layout::<LeafItem<'_>>::new(pass, parent).run(edits)?
    } else {
        Layout::<ChildPtr>::new(pass, parent).run(edits)?
    };
    Ok(layout.and_then(|(pointers, grown_to)| finish(pass, node, pointers, grown_to)))
}

fn finish(
    pass: &Pass<'_>,
    node: &Node,
    pointers: Vec<ChildPtr>,
    grown_to: Option<usize>,
) -> Option<Run<ChildPtr>> {
    let home = pass.home(node);
    // A dirty child rewritten at its own address leaves its dirty parent as it is.
    if home.is_some() && pointers.iter().copied().eq(node.children()) {
        return None;
    }
    let mut run = Run::new(pointers, home.into_iter().collect());
    run.shrunk = run.entries.len() < node.len();
    run.grown_to = grown_to;
    Some(run)
}

/// The interior node whose children are laid out.
struct Parent<'l> {
    node: &'l Arc<Node>,
    frame: &'l Frame<'l>,
    upper: Option<Key>,
    children: &'l Children,
}

/// A pointer of the new node, with its old slot if it was kept.
struct Placed {
    pointer: ChildPtr,
    kept: Option<usize>,
}

/// Where the node gained pointers.
enum Growth {
    None,
    /// In one place, which ends at this index.
    One(usize),
    Many,
}

/// What a child's entries are, so that it is edited as what it is.
trait Child<'l>: Entry<'l> {
    /// Edits a node of such entries; `None` if nothing changes.
    fn edit(
        pass: &mut Pass<'_>,
        node: &'l Arc<Node>,
        parent: &Frame<'_>,
        edits: &'l [(Key, EditRef<'l>)],
        upper: Option<Key>,
    ) -> Result<Option<Run<Self>>>;
}

impl<'l> Child<'l> for LeafItem<'l> {
    fn edit(
        pass: &mut Pass<'_>,
        node: &'l Arc<Node>,
        parent: &Frame<'_>,
        edits: &'l [(Key, EditRef<'l>)],
        _: Option<Key>,
    ) -> Result<Option<Run<Self>>> {
        leaf::edit(pass, node, Some(parent), edits)
    }
}

impl<'l> Child<'l> for ChildPtr {
    fn edit(
        pass: &mut Pass<'_>,
        node: &'l Arc<Node>,
        parent: &Frame<'_>,
        edits: &'l [(Key, EditRef<'l>)],
        upper: Option<Key>,
    ) -> Result<Option<Run<Self>>> {
        edit(pass, node, Some(parent), edits, upper)
    }
}

struct Layout<'l, 'x, 'p, E> {
    pass: &'x mut Pass<'p>,
    parent: Parent<'l>,
    room: usize,
    /// Laid out for good, ascending.
    out: Vec<Placed>,
    /// What follows `out`: changed contents that may still join their right neighbour.
    tail: Option<Run<E>>,
    changed: bool,
    growth: Growth,
}

impl<'l, 'x, 'p, E: Child<'l>> Layout<'l, 'x, 'p, E> {
    fn new(pass: &'x mut Pass<'p>, parent: Parent<'l>) -> Self {
        let room = E::room(pass.geometry());
        let out = Vec::with_capacity(parent.node.len() + 1);
        Layout { pass, parent, room, out, tail: None, changed: false, growth: Growth::None }
    }

    /// The new pointers, and the index behind those gained; `None` if nothing changes.
    fn run(
        mut self,
        edits: &'l [(Key, EditRef<'l>)],
    ) -> Result<Option<(Vec<ChildPtr>, Option<usize>)>> {
        let node = self.parent.node;
        let mut rest = edits;
        for slot in 0..node.len() {
            let mine;
            (mine, rest) = rest.split_at(belonging(rest, child_upper(node, slot, None)));
            self.child(slot, mine)?;
        }
        if let Some(tail) = self.tail.take() {
            self.flush(tail)?;
        }
        let grown_to = match self.growth {
            Growth::One(end) => Some(end),
            Growth::None | Growth::Many => None,
        };
        let pointers = self.out.into_iter().map(|placed| placed.pointer).collect();
        Ok(self.changed.then_some((pointers, grown_to)))
    }

    fn child(&mut self, slot: usize, edits: &'l [(Key, EditRef<'l>)]) -> Result<()> {
        if edits.is_empty() {
            return self.keep(slot);
        }
        let upper = child_upper(self.parent.node, slot, self.parent.upper);
        let child = self.read(slot)?;
        match E::edit(self.pass, child, self.parent.frame, edits, upper)? {
            Some(run) => self.place(run),
            None => self.keep(slot),
        }
    }

    fn read(&self, slot: usize) -> Result<&'l Arc<Node>> {
        let cell = &self.parent.children[slot];
        if let Some(node) = cell.get() {
            return Ok(node);
        }
        let reader = self.pass.reader();
        let child = child_node(&reader, self.pass.tree, self.parent.node, slot, self.parent.upper)?;
        Ok(cell.get_or_init(|| child))
    }

    /// The child at `slot` stays as it is, unless what precedes it wants to join.
    fn keep(&mut self, slot: usize) -> Result<()> {
        if let Some(mut tail) = self.tail.take() {
            if let Some(right) = self.neighbour(slot, &tail, Side::Right)? {
                tail.append(right);
                self.tail = Some(tail);
                return Ok(());
            }
            self.flush(tail)?;
        }
        self.out.push(Placed { pointer: self.parent.node.child(slot), kept: Some(slot) });
        Ok(())
    }

    /// A child's new contents.
    fn place(&mut self, run: Run<E>) -> Result<()> {
        self.changed = true;
        if run.entries.is_empty() {
            return self.pass.release(run.homes, self.parent.node.level() - 1);
        }
        if let Some(mut tail) = self.tail.take() {
            if self.joins(&tail, &run) {
                tail.append(run);
                self.tail = Some(tail);
                return Ok(());
            }
            self.flush(tail)?;
        }
        self.tail = Some(run);
        Ok(())
    }

    /// Makes nodes of a run, after it had its chance to join its left neighbour.
    fn flush(&mut self, mut run: Run<E>) -> Result<()> {
        while let Some(slot) = self.out.last().and_then(|placed| placed.kept) {
            let Some(mut left) = self.neighbour(slot, &run, Side::Left)? else { break };
            left.append(run);
            run = left;
            self.out.pop();
        }
        let before = run.nodes;
        let pointers = self.pass.emit(run, self.parent.node.level() - 1)?;
        let grew = pointers.len() > before;
        self.out.extend(pointers.into_iter().map(|pointer| Placed { pointer, kept: None }));
        if grew {
            self.growth = match self.growth {
                Growth::None => Growth::One(self.out.len()),
                Growth::One(_) | Growth::Many => Growth::Many,
            };
        }
        Ok(())
    }

    /// Whether what two children became is laid out as one: both were written anew in any case.
    fn joins(&self, left: &Run<E>, right: &Run<E>) -> bool {
        let room = self.room;
        if left.overflows(room) || right.overflows(room) {
            let nodes = right.cost.div_ceil(room);
            return left.may_save(right.cost, nodes, room) && left.saves_with(right, room);
        }
        let small = left.underfull(room) || right.underfull(room);
        small && left.fits_with(right.cost, room)
    }

    /// The contents of the untouched child at `slot`, beside `run`, if they are to be laid out
    /// with it; then this tree has let go of that child.
    fn neighbour(&mut self, slot: usize, run: &Run<E>, side: Side) -> Result<Option<Run<E>>> {
        let room = self.room;
        let overflows =
            run.overflows(room) && !run.helped && !(side == Side::Left && run.appends());
        if !overflows && !run.underfull(room) {
            return Ok(None);
        }
        // A neighbour that cannot be read is no reason to fail: it stays where it is.
        let Ok(node) = self.read(slot) else { return Ok(None) };
        let used = E::used(node);
        let fits = if overflows { run.may_save(used, 1, room) } else { run.fits_with(used, room) };
        if !fits {
            return Ok(None);
        }
        let mut other = Run::new(E::collect(node), self.pass.home(node).into_iter().collect());
        if overflows {
            let saves = match side {
                Side::Left => other.saves_with(run, room),
                Side::Right => run.saves_with(&other, room),
            };
            if !saves {
                return Ok(None);
            }
            other.helped = true;
        }
        self.pass.detach(node)?;
        Ok(Some(other))
    }
}

/// Where a neighbour lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// How many of the first edits have keys below `upper`.
fn belonging(edits: &[(Key, EditRef<'_>)], upper: Option<Key>) -> usize {
    match (edits.first(), upper) {
        (Some((first, _)), Some(upper)) if *first >= upper => 0,
        (_, Some(upper)) => edits.partition_point(|(key, _)| *key < upper),
        (_, None) => edits.len(),
    }
}
