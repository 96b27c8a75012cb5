//! Trees that lose a level, or all of them, and grow again.

use crate::common;
use btrfs_disk::{Key, Node};
use btrfs_tree::{Edit, NodeReader};
use common::{Rng, World};
use std::sync::Arc;

fn key(n: u64) -> Key {
    Key::new(n, 3, 0)
}

fn grown(items: u64) -> World {
    let (mut world, mut rng) = (World::new(512), Rng(1));
    world.apply((0..items).map(|n| (key(n), Edit::Put(rng.bytes(20)))).collect());
    world.commit();
    world
}

fn node(world: &World, logical: btrfs_disk::Logical) -> Arc<Node> {
    Arc::clone(&world.memory.nodes[&logical])
}

/// The committed leaf that holds `n`.
fn leaf(world: &World, n: u64) -> Arc<Node> {
    let mut at = world.memory.node(&world.root.expect()).unwrap();
    while !at.is_leaf() {
        at = node(world, at.child(at.child_slot(&key(n))).logical);
    }
    at
}

/// Deletes all but the keys that `keep` names.
fn keep_only(world: &mut World, keep: impl Fn(&Key) -> bool) {
    let gone = world.model.keys().filter(|k| !keep(k)).map(|k| (*k, Edit::Delete));
    let gone = gone.collect();
    world.apply(gone);
    world.check();
}

#[test]
fn one_untouched_leaf_becomes_the_root() {
    for n in [0, 250, 777, 1999] {
        let mut world = grown(2000);
        assert_eq!(world.root.level, 3);
        let kept = leaf(&world, n);
        keep_only(&mut world, |key| kept.search(key).is_ok());
        assert_eq!((world.root.level, world.root.generation), (0, world.generation));
        assert_eq!(world.books.live.len(), 1);
        assert_ne!(world.root.logical, kept.logical());
        world.commit();
        world.apply((0..2000).map(|n| (key(n), Edit::Put([1, 2].into()))).collect());
        world.check();
    }
}

/// A chain of interior nodes with one child each, as appending leaves it at the end.
#[test]
fn a_committed_chain_of_single_children_goes_at_once() {
    let (mut world, mut rng) = (World::new(512), Rng(1));
    let mut next = 0;
    let last = loop {
        world.apply((next..next + 3).map(|n| (key(n), Edit::Put(rng.bytes(60)))).collect());
        world.commit();
        next += 3;
        let root = node(&world, world.root.logical);
        if world.root.level == 2 {
            let last = root.child(root.len() - 1);
            if node(&world, last.logical).len() == 1 {
                break last;
            }
        }
    };
    assert!(world.root.level == 2 && next < 1000);
    keep_only(&mut world, |key| *key >= last.key);
    assert_eq!((world.root.level, world.books.live.len()), (0, 1));
    assert_eq!(world.root.generation, world.generation);
}

#[test]
fn a_tree_emptied_in_its_first_generation_is_one_dirty_leaf() {
    let mut world = World::new(512);
    world.apply((0..2000).map(|n| (key(n), Edit::Put([7; 20].into()))).collect());
    assert!(world.root.level >= 3);
    keep_only(&mut world, |_| false);
    assert_eq!((world.root.level, world.dirty.len(), world.books.detaches), (0, 1, 0));
    world.apply(vec![(key(1), Edit::Put([1].into()))]);
    world.apply(vec![(key(1), Edit::Delete)]);
    world.check();
}

/// The only child that is left would be the root: where it cannot be read, or is another node than its pointer says,
/// the root that leads to it stays.
#[test]
fn an_only_child_that_cannot_be_read_stays_a_child() {
    for foreign in [false, true] {
        let mut world = grown(2000);
        let root = node(&world, world.root.logical);
        let only = root.child(1);
        let (from, to) = (only.key, (root.len() > 2).then(|| root.key(2)));
        let child = world.memory.nodes.remove(&only.logical).expect("there");
        if foreign {
            let other = node(&world, root.child(0).logical);
            world.memory.nodes.insert(only.logical, other);
        }
        let is_behind = |key: &Key| to.is_some_and(|to| *key >= to);
        let gone = world.model.keys().filter(|key| **key < from || is_behind(key));
        let gone = gone.map(|key| (*key, Edit::Delete)).collect();
        world.apply(gone);
        assert_eq!((world.root.level, world.root.generation), (3, world.generation));
        let top = world.dirty.over(&world.memory).node(&world.root.expect()).expect("new");
        assert_eq!(top.children().collect::<Vec<_>>(), [only], "foreign: {foreign}");
        world.memory.nodes.insert(only.logical, child);
        world.check();
    }
}

/// Every prefix and suffix of a tree can go, at once or step by step.
#[test]
fn ends_can_be_cut_off_anywhere() {
    for cut in (0..1200).step_by(37) {
        let mut world = grown(1200);
        keep_only(&mut world, |key| key.objectid >= cut);
        world.commit();
        keep_only(&mut world, |key| key.objectid < cut + 30);
        world.commit();
        world.check();
    }
}
