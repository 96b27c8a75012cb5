//! Trees that share nodes: a reference count per node, kept by the rule that a copied
//! node gives its children one reference more. The order in which bulk edit calls the
//! sink decides whether the counts come out right.

use crate::common;
use btrfs_disk::{Error, Generation, Key, Logical, Node, Result, TreeId};
use btrfs_tree::{
    DirtyNodes, Edit, NodePosition, NodeReader, NodeSink, Step, TreeRoot, Visitor, apply,
    copy_root, new_tree, verify, walk,
};
use common::{Memory, Rng, geometry};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Default)]
struct Counts {
    refs: HashMap<Logical, u64>,
    next: u64,
}

impl Counts {
    fn share_children(&mut self, node: &Node) {
        if !node.is_leaf() {
            for child in node.children() {
                *self.refs.get_mut(&child.logical).expect("child is counted") += 1;
            }
        }
    }
}

impl NodeSink for Counts {
    fn detach(&mut self, _: TreeId, old: &Arc<Node>) -> Result<()> {
        let refs = self.refs.get_mut(&old.logical()).expect("detach of a live node");
        *refs -= 1;
        if *refs > 0 {
            self.share_children(old);
        } else {
            self.refs.remove(&old.logical());
        }
        Ok(())
    }

    fn alloc(&mut self, _: TreeId, _: u8, _: Key) -> Result<Logical> {
        self.next += 4096;
        self.refs.insert(Logical(self.next), 1);
        Ok(Logical(self.next))
    }

    fn free_dirty(&mut self, _: TreeId, logical: Logical, _: u8) -> Result<()> {
        assert_eq!(self.refs.remove(&logical), Some(1));
        Ok(())
    }
}

type Model = BTreeMap<Key, Box<[u8]>>;

struct Forest {
    memory: Memory,
    dirty: DirtyNodes,
    counts: Counts,
    generation: Generation,
    trees: Vec<(TreeRoot, Model)>,
}

impl Forest {
    fn new(node_size: u32) -> Forest {
        let geometry = geometry(node_size);
        let (mut dirty, mut counts) = (DirtyNodes::new(), Counts::default());
        let generation = Generation(1);
        let root = new_tree(&geometry, &mut dirty, &mut counts, generation, TreeId(256)).unwrap();
        let memory = Memory { geometry, nodes: HashMap::new() };
        Forest { memory, dirty, counts, generation, trees: vec![(root, BTreeMap::new())] }
    }

    fn edit(&mut self, tree: usize, edits: BTreeMap<Key, Edit>) {
        let (root, model) = &mut self.trees[tree];
        for (key, edit) in &edits {
            match edit {
                Edit::Put(data) => drop(model.insert(*key, data.clone())),
                Edit::Delete => drop(model.remove(key)),
            }
        }
        let (dirty, counts) = (&mut self.dirty, &mut self.counts);
        *root = apply(&self.memory, dirty, counts, self.generation, root, edits).unwrap();
    }

    /// As a commit with a snapshot does: write, then copy the root.
    fn snapshot(&mut self, tree: usize) {
        self.write();
        let (from, model) = self.trees[tree].clone();
        let id = TreeId(256 + self.trees.len() as u64);
        let (dirty, counts) = (&mut self.dirty, &mut self.counts);
        let root = copy_root(&self.memory, dirty, counts, self.generation, &from, id).unwrap();
        let copy = self.dirty.get(root.logical).unwrap().clone();
        self.counts.share_children(&copy);
        self.trees.push((root, model));
    }

    fn write(&mut self) {
        for node in self.dirty.take() {
            self.memory.nodes.insert(node.logical(), node);
        }
    }

    fn check(&self) {
        let reader = self.dirty.over(&self.memory);
        let mut pointers = Pointers::default();
        for (root, model) in &self.trees {
            assert_eq!(verify(&reader, root).unwrap().items, model.len() as u64);
            let items = btrfs_tree::scan(&reader, root, Key::MIN..=Key::MAX);
            for (item, (key, data)) in items.zip(model) {
                let item = item.unwrap();
                assert_eq!((item.key(), item.data()), (*key, &data[..]));
            }
            *pointers.to.entry(root.logical).or_default() += 1;
            walk(&reader, root, &mut pointers);
        }
        assert_eq!(pointers.to, self.counts.refs);
    }
}

/// Counts each pointer of the forest once, however many trees it is reached by.
#[derive(Default)]
struct Pointers {
    to: HashMap<Logical, u64>,
    seen: HashMap<Logical, ()>,
}

impl Visitor for Pointers {
    fn node(&mut self, _: &NodePosition<'_>, node: &Arc<Node>) -> Step {
        if self.seen.insert(node.logical(), ()).is_some() {
            return Step::Over;
        }
        if !node.is_leaf() {
            for child in node.children() {
                *self.to.entry(child.logical).or_default() += 1;
            }
        }
        Step::Into
    }

    fn broken(&mut self, _: &NodePosition<'_>, error: Error) -> Step {
        panic!("{error}")
    }
}

fn batch(rng: &mut Rng) -> BTreeMap<Key, Edit> {
    let base = rng.below(3000);
    let window = [30, 300, 3000][rng.below(3) as usize];
    let deletes = rng.below(100);
    let one = |rng: &mut Rng| {
        let key = Key::new((base + rng.below(window)) % 3000, 3, 0);
        let len = rng.below(60) as usize;
        let edit = if rng.below(100) < deletes { Edit::Delete } else { Edit::Put(rng.bytes(len)) };
        (key, edit)
    };
    (0..rng.below(120) + 1).map(|_| one(rng)).collect()
}

#[test]
fn snapshots_stay_what_they_were_and_counts_add_up() {
    for seed in 0..20 {
        let mut rng = Rng(seed);
        let mut forest = Forest::new([512, 1024, 4096][seed as usize % 3]);
        for round in 0..120 {
            let tree = rng.below(forest.trees.len() as u64) as usize;
            let edits = batch(&mut rng);
            forest.edit(tree, edits);
            forest.check();
            if round % 20 == 10 {
                forest.snapshot(tree);
                forest.check();
            }
            if rng.below(3) == 0 {
                forest.write();
                forest.generation.0 += 1;
            }
        }
        assert!(forest.memory.geometry().node_size < 8192);
    }
}
