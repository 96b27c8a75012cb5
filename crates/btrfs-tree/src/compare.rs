//! Two trees side by side: what is in one and not, or not the same, in the other.
//!
//! Published nodes never change, so what both reach by the same address and generation is the
//! same, with all below it, and is passed over unread: a comparison costs what differs.
//!
//! It does not know what items mean, nor which of the trees is the older one.

use crate::reader::{NodeReader, TreeRoot, child_node, child_upper, root_node};
use btrfs_disk::{Key, Node, Result};
use std::cmp::Ordering;
use std::sync::Arc;

/// One key that the trees do not have alike. At least one of both has it.
#[derive(Clone, Copy, Debug)]
pub struct Difference<'a> {
    /// Which item.
    pub key: Key,
    /// As the left tree has it.
    pub left: Option<&'a [u8]>,
    /// As the right tree has it.
    pub right: Option<&'a [u8]>,
}

/// Tells `report` of all keys that differ, in their order. Without a left tree all differ.
pub fn compare<R: NodeReader + ?Sized, E: From<btrfs_disk::Error>>(
    reader: &R,
    left: Option<&TreeRoot>,
    right: &TreeRoot,
    report: &mut dyn FnMut(Difference<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let mut left = match left {
        Some(root) => Side::of(reader, root)?,
        None => Side { reader, root: *right, path: Vec::new() },
    };
    let mut right = Side::of(reader, right)?;
    loop {
        let order = match (left.key(), right.key()) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(l), Some(r)) => l.cmp(&r),
        };
        match order {
            Ordering::Equal => both(&mut left, &mut right, report)?,
            Ordering::Less => one(&mut left, |key, data| {
                report(Difference { key, left: Some(data), right: None })
            })?,
            Ordering::Greater => one(&mut right, |key, data| {
                report(Difference { key, left: None, right: Some(data) })
            })?,
        }
    }
}

/// Both stand on the same key.
fn both<R: NodeReader + ?Sized, E: From<btrfs_disk::Error>>(
    left: &mut Side<'_, R>,
    right: &mut Side<'_, R>,
    report: &mut dyn FnMut(Difference<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    match left.level().cmp(&right.level()) {
        Ordering::Less => return Ok(right.descend()?),
        Ordering::Greater => return Ok(left.descend()?),
        Ordering::Equal => {}
    }
    if left.level() > 0 {
        if left.child() == right.child() {
            left.advance();
            right.advance();
            return Ok(());
        }
        left.descend()?;
        return Ok(right.descend()?);
    }
    if let (Some((key, l)), Some((_, r))) = (left.item(), right.item())
        && l != r
    {
        report(Difference { key, left: Some(l), right: Some(r) })?;
    }
    left.advance();
    right.advance();
    Ok(())
}

/// The other has nothing before its own, higher key.
fn one<R: NodeReader + ?Sized, E: From<btrfs_disk::Error>>(
    side: &mut Side<'_, R>,
    report: impl FnOnce(Key, &[u8]) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    if side.level() > 0 {
        return Ok(side.descend()?);
    }
    if let Some((key, data)) = side.item() {
        report(key, data)?;
    }
    side.advance();
    Ok(())
}

/// A place in a tree: an item, or the pointer to a subtree that was not looked into yet.
struct Side<'r, R: ?Sized> {
    reader: &'r R,
    root: TreeRoot,
    /// From the root down; every slot exists. Empty: behind the end.
    path: Vec<Step>,
}

struct Step {
    node: Arc<Node>,
    slot: usize,
    /// The key below which `node` ends.
    upper: Option<Key>,
}

impl<'r, R: NodeReader + ?Sized> Side<'r, R> {
    fn of(reader: &'r R, root: &TreeRoot) -> Result<Side<'r, R>> {
        let node = root_node(reader, root)?;
        let mut path = Vec::new();
        if !node.is_empty() {
            path.push(Step { node, slot: 0, upper: None });
        }
        Ok(Side { reader, root: *root, path })
    }

    fn key(&self) -> Option<Key> {
        self.path.last().map(|step| step.node.key(step.slot))
    }

    fn level(&self) -> u8 {
        self.path.last().map_or(0, |step| step.node.level())
    }

    fn child(&self) -> Option<btrfs_disk::ChildPtr> {
        self.path.last().map(|step| step.node.child(step.slot))
    }

    fn item(&self) -> Option<(Key, &[u8])> {
        self.path.last().map(|step| (step.node.key(step.slot), step.node.data(step.slot)))
    }

    /// To the next of the same level, or of one above.
    fn advance(&mut self) {
        while let Some(step) = self.path.last_mut() {
            step.slot += 1;
            if step.slot < step.node.len() {
                return;
            }
            self.path.pop();
        }
    }

    /// To the first below the pointer that it stands on.
    fn descend(&mut self) -> Result<()> {
        let Some(step) = self.path.last() else { return Ok(()) };
        let node = child_node(self.reader, self.root.id, &step.node, step.slot, step.upper)?;
        let upper = child_upper(&step.node, step.slot, step.upper);
        self.path.push(Step { node, slot: 0, upper });
        Ok(())
    }
}
