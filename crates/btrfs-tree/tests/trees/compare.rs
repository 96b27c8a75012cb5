//! Two states of a tree side by side: `compare` tells exactly of the keys that differ, in order,
//! and reads no node that both have.

use crate::common;
use btrfs_disk::{Error, Expect, Geometry, Key, Logical, Node, Result};
use btrfs_tree::{Edit, NodeReader, TreeRoot, compare};
use common::{Memory, Rng, World};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

type Items = BTreeMap<Key, Box<[u8]>>;
type Changes = Vec<(Key, Option<Box<[u8]>>, Option<Box<[u8]>>)>;

/// Nodes of all generations, and which were asked for.
struct Watched {
    memory: Memory,
    asked: RefCell<Vec<Logical>>,
}

impl NodeReader for Watched {
    fn node(&self, expect: &Expect) -> Result<Arc<Node>> {
        self.asked.borrow_mut().push(expect.logical);
        self.memory.node(expect)
    }

    fn geometry(&self) -> &Geometry {
        &self.memory.geometry
    }
}

fn batch(rng: &mut Rng, edits: u64, deletes_percent: u64) -> Vec<(Key, Edit)> {
    let mut all = BTreeMap::new();
    for _ in 0..edits {
        let n = rng.below(6000);
        let deletes = rng.below(100) < deletes_percent;
        let len = rng.below(200) as usize;
        let edit = if deletes { Edit::Delete } else { Edit::Put(rng.bytes(len)) };
        all.insert(Key::new(n / 10, [3, 5][(n % 2) as usize], n % 10), edit);
    }
    all.into_iter().collect()
}

fn naive(left: &Items, right: &Items) -> Changes {
    let keys: std::collections::BTreeSet<&Key> = left.keys().chain(right.keys()).collect();
    let sides = keys.into_iter().map(|key| (*key, left.get(key), right.get(key)));
    sides.filter(|(_, l, r)| l != r).map(|(key, l, r)| (key, l.cloned(), r.cloned())).collect()
}

fn told(reader: &Watched, left: Option<&TreeRoot>, right: &TreeRoot) -> Changes {
    let mut all = Vec::new();
    compare(reader, left, right, &mut |found| -> std::result::Result<(), Error> {
        all.push((found.key, found.left.map(Into::into), found.right.map(Into::into)));
        Ok(())
    })
    .unwrap();
    all
}

fn reachable(reader: &Watched, root: &TreeRoot) -> HashSet<Logical> {
    reader.asked.borrow_mut().clear();
    told(reader, None, root);
    reader.asked.borrow_mut().drain(..).collect()
}

/// A tree that is changed again and again: each state against each other.
fn states(seed: u64, size: u64, edits: u64, deletes_percent: u64) {
    let mut rng = Rng(seed);
    let mut world = World::new(4096);
    let mut nodes = HashMap::new();
    let mut states: Vec<(TreeRoot, Items)> = Vec::new();
    for round in 0..5 {
        let many = if round == 0 { size } else { edits };
        world.apply(batch(&mut rng, many, if round == 0 { 0 } else { deletes_percent }));
        world.commit();
        // No address is used twice.
        world.books.free.clear();
        nodes.extend(world.memory.nodes.clone());
        states.push((world.root, world.model.clone()));
    }
    let memory = Memory { geometry: world.memory.geometry, nodes };
    let reader = Watched { memory, asked: RefCell::default() };
    for (left, was) in &states {
        for (right, is) in &states {
            let (a, b) = (reachable(&reader, left), reachable(&reader, right));
            assert_eq!(told(&reader, Some(left), right), naive(was, is), "seed {seed}");
            let asked: Vec<Logical> = reader.asked.borrow_mut().drain(..).collect();
            let most = 2 + a.symmetric_difference(&b).count();
            // Where the heights differ, or nodes were cut elsewhere, some shared ones are looked at.
            let unaligned = most / 2;
            assert!(asked.len() <= most + unaligned, "{} read, {most} differ", asked.len());
        }
        assert_eq!(told(&reader, None, left), naive(&Items::new(), was));
    }
}

#[test]
fn exactly_what_differs_is_told() {
    for seed in 0..40 {
        states(seed, 3000, [1, 3, 40, 400][seed as usize % 4], [0, 50, 100][seed as usize % 3]);
        states(seed, 20, [1, 3, 200, 4000][seed as usize % 4], 30);
        states(seed, [0, 1][seed as usize % 2], 50, 95);
    }
}
