//! The trees of one commit by number, as a map that shares with the one before it all that did not
//! change: with ten thousand snapshots a commit copies a few nodes of it, not the whole.
//!
//! A search tree of immutable nodes. Each knows what is below it in sum, so that what all trees
//! are together is known without a look at each, and the few dead ones are found at once.
//!
//! Invariants: entries ascend; an inner entry's number is the lowest below it; no node is empty,
//! and none has more than `MOST` entries; all leaves are of one depth.

use super::Root;
use btrfs_disk::TreeId;
use std::sync::Arc;

/// Entries of a node: a change copies so many of each level.
/// Chosen, not measured.
const MOST: usize = 32;

/// Trees by number. A clone costs nothing.
#[derive(Clone, Default)]
pub struct Trees(Option<Arc<Node>>);

/// What many trees are together.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TreesSum {
    /// All of them.
    pub trees: u64,
    /// Those that files are in.
    pub subvolumes: u64,
    /// Those of them that no name leads to any more.
    pub dead: u64,
    /// Interior levels of the highest that files or checksums are in.
    pub height: u8,
    /// Some subvolume was snapshotted, or is a snapshot.
    pub shared: bool,
}

struct Node {
    entries: Vec<(TreeId, Entry)>,
    sum: TreesSum,
}

#[derive(Clone)]
enum Entry {
    Tree(Arc<Root>),
    Below(Arc<Node>),
}

impl Trees {
    /// The tree of this number.
    pub fn get(&self, id: TreeId) -> Option<&Root> {
        self.0.as_ref()?.get(id)
    }

    /// One more, or another in its place.
    pub fn insert(&mut self, id: TreeId, root: Root) {
        self.change(id, Some(Arc::new(root)));
    }

    /// One fewer.
    pub fn remove(&mut self, id: TreeId) {
        self.change(id, None);
    }

    /// All together.
    pub fn sum(&self) -> TreesSum {
        self.0.as_ref().map_or_else(TreesSum::default, |top| top.sum)
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (TreeId, &Root)> {
        self.range_from(TreeId(0))
    }

    /// From this number on, ascending.
    pub fn range_from(&self, from: TreeId) -> impl Iterator<Item = (TreeId, &Root)> {
        self.walk(from, |_| true)
    }

    /// Subvolumes that no name leads to any more, ascending; others are not looked at.
    pub fn dead(&self) -> impl Iterator<Item = TreeId> {
        self.walk(TreeId(0), |sum| sum.dead > 0).map(|(id, _)| id)
    }

    /// Those of which each node above, and they themselves, are `wanted`.
    fn walk(
        &self,
        from: TreeId,
        wanted: impl Fn(&TreesSum) -> bool + Copy,
    ) -> impl Iterator<Item = (TreeId, &Root)> {
        let next = move |from: TreeId| self.0.as_ref()?.next(from, &wanted);
        std::iter::successors(next(from), move |(id, _)| next(TreeId(id.0.checked_add(1)?)))
    }

    fn change(&mut self, id: TreeId, root: Option<Arc<Root>>) {
        let mut tops = match &self.0 {
            Some(top) => top.with(id, root),
            None => pack(root.map(|root| (id, Entry::Tree(root))).into_iter().collect()),
        };
        // One that split is below a new one; one of a single node below is not needed.
        self.0 = loop {
            match tops.as_slice() {
                [] => break None,
                [(_, Entry::Below(only))] => match only.entries.as_slice() {
                    [below @ (_, Entry::Below(_))] => tops = vec![below.clone()],
                    _ => break Some(only.clone()),
                },
                _ => tops = pack(tops),
            }
        };
    }
}

impl FromIterator<(TreeId, Root)> for Trees {
    fn from_iter<I: IntoIterator<Item = (TreeId, Root)>>(all: I) -> Trees {
        let mut trees = Trees::default();
        all.into_iter().for_each(|(id, root)| trees.insert(id, root));
        trees
    }
}

impl Node {
    fn new(entries: Vec<(TreeId, Entry)>) -> Node {
        let sum = entries.iter().map(|(id, entry)| entry.sum(*id));
        Node { sum: sum.fold(TreesSum::default(), together), entries }
    }

    /// The entry that `id` is in or below, if it is anywhere.
    fn slot(&self, id: TreeId) -> usize {
        self.entries.partition_point(|(key, _)| *key <= id).saturating_sub(1)
    }

    fn get(&self, id: TreeId) -> Option<&Root> {
        match &self.entries[self.slot(id)] {
            (key, Entry::Tree(root)) => (*key == id).then_some(root),
            (_, Entry::Below(node)) => node.get(id),
        }
    }

    fn next(&self, from: TreeId, wanted: &impl Fn(&TreesSum) -> bool) -> Option<(TreeId, &Root)> {
        let rest = &self.entries[self.slot(from)..];
        rest.iter().filter(|(id, entry)| wanted(&entry.sum(*id))).find_map(
            |(id, entry)| match entry {
                Entry::Tree(root) => (*id >= from).then_some((*id, &**root)),
                Entry::Below(node) => node.next(from, wanted),
            },
        )
    }

    /// What takes its place: one node, two, or none.
    fn with(&self, id: TreeId, root: Option<Arc<Root>>) -> Vec<(TreeId, Entry)> {
        let mut entries = self.entries.clone();
        let slot = self.slot(id);
        if let Entry::Below(node) = &self.entries[slot].1 {
            entries.splice(slot..=slot, node.with(id, root));
            join(&mut entries, slot);
        } else {
            let at = entries.partition_point(|(key, _)| *key < id);
            let there = entries.get(at).is_some_and(|(key, _)| *key == id);
            let new = root.map(|root| (id, Entry::Tree(root)));
            entries.splice(at..at + usize::from(there), new);
        }
        pack(entries)
    }
}

/// Nodes of these entries, as few as they fit in.
fn pack(mut entries: Vec<(TreeId, Entry)>) -> Vec<(TreeId, Entry)> {
    let node =
        |entries: Vec<(TreeId, Entry)>| (entries[0].0, Entry::Below(Arc::new(Node::new(entries))));
    match entries.len() {
        0 => Vec::new(),
        len if len <= MOST => vec![node(entries)],
        len => {
            let behind = entries.split_off(len / 2);
            vec![node(entries), node(behind)]
        }
    }
}

/// Nodes that have become small, at `slot` and behind it, become one.
fn join(entries: &mut Vec<(TreeId, Entry)>, slot: usize) {
    let Some([(_, Entry::Below(a)), (_, Entry::Below(b))]) = entries.get(slot..slot + 2) else {
        return;
    };
    if a.entries.len() + b.entries.len() <= MOST / 2 {
        let both = a.entries.iter().chain(&b.entries).cloned().collect();
        entries.splice(slot..slot + 2, pack(both));
    }
}

impl Entry {
    fn sum(&self, id: TreeId) -> TreesSum {
        let root = match self {
            Entry::Below(node) => return node.sum,
            Entry::Tree(root) => root,
        };
        let subvolume = id.is_subvolume();
        let counts = subvolume || id == TreeId::CSUM;
        TreesSum {
            trees: 1,
            subvolumes: u64::from(subvolume),
            dead: u64::from(subvolume && root.item.is_deleted()),
            height: if counts { root.root.level } else { 0 },
            shared: subvolume && root.item.last_snapshot.0 != 0,
        }
    }
}

fn together(a: TreesSum, b: TreesSum) -> TreesSum {
    TreesSum {
        trees: a.trees + b.trees,
        subvolumes: a.subvolumes + b.subvolumes,
        dead: a.dead + b.dead,
        height: a.height.max(b.height),
        shared: a.shared || b.shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use btrfs_disk::items::RootItem;
    use btrfs_disk::{Generation, Logical};
    use btrfs_tree::TreeRoot;
    use std::collections::{BTreeMap, HashSet};

    fn tree(id: TreeId, refs: u32) -> Root {
        let root = TreeRoot { id, logical: Logical(0), generation: Generation(1), level: 0 };
        Root { root, item: RootItem { refs, ..RootItem::default() } }
    }

    fn nodes(trees: &Trees) -> HashSet<*const Node> {
        let mut found = HashSet::new();
        let mut left: Vec<Arc<Node>> = trees.0.iter().cloned().collect();
        while let Some(node) = left.pop() {
            assert!((1..=MOST).contains(&node.entries.len()), "{} entries", node.entries.len());
            assert!(node.entries.is_sorted_by_key(|(id, _)| *id));
            found.insert(Arc::as_ptr(&node));
            left.extend(node.entries.iter().filter_map(|(_, entry)| match entry {
                Entry::Below(node) => Some(node.clone()),
                Entry::Tree(_) => None,
            }));
        }
        found
    }

    #[test]
    fn it_is_a_map() {
        let (mut trees, mut model) = (Trees::default(), BTreeMap::new());
        let mut state = 1_u64;
        for step in 0..20_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step | 1);
            // At first it grows, then it becomes small again.
            let id = TreeId(256 + (state >> 33) % 3000);
            let refs = u32::from((state >> 20) & 7 != 0);
            if (state >> 24) % 20_000 > step {
                trees.insert(id, tree(id, refs));
                model.insert(id, refs);
            } else {
                trees.remove(id);
                model.remove(&id);
            }
            assert_eq!(trees.get(id).map(|root| root.item.refs), model.get(&id).copied());
            if step % 500 == 0 {
                nodes(&trees);
                assert!(trees.iter().map(|(id, _)| id).eq(model.keys().copied()));
                let behind = trees.range_from(id).map(|(id, _)| id);
                assert!(behind.eq(model.range(id..).map(|(id, _)| *id)));
                let dead = model.iter().filter(|(_, refs)| **refs == 0).map(|(id, _)| *id);
                assert!(trees.dead().eq(dead));
                assert_eq!(trees.sum().subvolumes, model.len() as u64);
            }
        }
        model.keys().for_each(|id| trees.remove(*id));
        assert!(trees.0.is_none());
    }

    #[test]
    fn a_change_shares_all_but_a_few_nodes() {
        let id = |n: u64| TreeId(256 + n);
        let mut trees: Trees = (0..10_000).map(|n| (id(n), tree(id(n), 1))).collect();
        let before = nodes(&trees);
        let old = trees.clone();
        for (n, refs) in [(10_000, 1), (5_000, 0)] {
            trees.insert(id(n), tree(id(n), refs));
        }
        let new = nodes(&trees).difference(&before).count();
        assert!(new <= 8, "{new} of {} nodes are new", before.len());
        assert_eq!((old.sum().trees, old.dead().count()), (10_000, 0));
        assert!(trees.dead().eq([id(5_000)]));
    }
}
