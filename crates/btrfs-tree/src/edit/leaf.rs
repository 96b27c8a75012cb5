//! Edits merged into the items of one leaf.

use super::EditRef;
use super::pass::{Frame, Pass};
use super::run::{Entry, Run};
use btrfs_disk::{Key, LeafItem, Node, Result};
use std::sync::Arc;

/// The leaf's items after the edits; `None` if they change nothing.
pub(super) fn edit<'l>(
    pass: &mut Pass<'_>,
    node: &'l Arc<Node>,
    parent: Option<&Frame<'_>>,
    edits: &'l [(Key, EditRef<'l>)],
) -> Result<Option<Run<LeafItem<'l>>>> {
    let Some(first) = edits.iter().position(|(key, edit)| takes_effect(node, key, edit)) else {
        return Ok(None);
    };
    pass.touch(&Frame::new(node, parent))?;
    let mut merge = Merge::new(node);
    for (key, edit) in &edits[first..] {
        merge.edit(*key, edit);
    }
    merge.copy_until(node.len());
    let grown_to = merge.grown_to();
    let mut run = Run::new(merge.out, pass.home(node).into_iter().collect());
    run.shrunk = run.cost < LeafItem::used(node);
    run.grown_to = grown_to;
    Ok(Some(run))
}

fn takes_effect(node: &Node, key: &Key, edit: &EditRef<'_>) -> bool {
    match (node.search(key), edit) {
        (Ok(slot), EditRef::Put(data)) => node.data(slot) != &data[..],
        (Ok(_), EditRef::Delete) | (Err(_), EditRef::Put(_)) => true,
        (Err(_), EditRef::Delete) => false,
    }
}

struct Merge<'l> {
    node: &'l Node,
    /// The next old item.
    slot: usize,
    out: Vec<LeafItem<'l>>,
    /// How many entries are new, and the indices of the first and behind the last.
    added: usize,
    span: (usize, usize),
}

impl<'l> Merge<'l> {
    fn new(node: &'l Node) -> Merge<'l> {
        Merge { node, slot: 0, out: Vec::with_capacity(node.len() + 8), added: 0, span: (0, 0) }
    }

    fn edit(&mut self, key: Key, edit: &EditRef<'l>) {
        let mut end = self.slot;
        while end < self.node.len() && self.node.key(end) < key {
            end += 1;
        }
        self.copy_until(end);
        let replaces = end < self.node.len() && self.node.key(end) == key;
        self.slot += usize::from(replaces);
        if let EditRef::Put(data) = edit {
            self.out.push(LeafItem { key, data });
            if !replaces {
                self.note_added();
            }
        }
    }

    fn copy_until(&mut self, end: usize) {
        for slot in self.slot..end {
            self.out.push(LeafItem { key: self.node.key(slot), data: self.node.data(slot) });
        }
        self.slot = end;
    }

    fn note_added(&mut self) {
        let behind = self.out.len();
        if self.added == 0 {
            self.span.0 = behind - 1;
        }
        self.span.1 = behind;
        self.added += 1;
    }

    fn grown_to(&self) -> Option<usize> {
        let (from, to) = self.span;
        (self.added > 0 && to - from == self.added).then_some(to)
    }
}
