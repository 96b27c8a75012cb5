//! How full nodes are after the ways in which trees are written, and what a batch costs.

use crate::common;
use btrfs_disk::{Error, Key};
use btrfs_tree::{Edit, TreeShape, apply, refresh_root, verify};
use common::{Rng, World};
use std::collections::BTreeMap;

fn put(rng: &mut Rng, len: usize) -> Edit {
    Edit::Put(rng.bytes(len))
}

fn shape(world: &World) -> TreeShape {
    verify(&world.dirty.over(&world.memory), &world.root).unwrap()
}

/// Filled part of the leaves' room, 0 to 1.
fn fill(world: &World) -> f64 {
    let shape = shape(world);
    let room = shape.nodes[0] * world.memory.geometry.leaf_space() as u64;
    if room == 0 { 0.0 } else { shape.leaf_bytes as f64 / room as f64 }
}

#[test]
fn appending_leaves_full_nodes() {
    let (mut world, mut rng) = (World::new(16384), Rng(1));
    for batch in 0..300u64 {
        let edits = (0..37).map(|n| (Key::new(batch * 37 + n, 3, 0), put(&mut rng, 100)));
        world.apply(edits.collect());
        world.commit();
    }
    world.check();
    assert!(fill(&world) > 0.97, "{}", fill(&world));
}

/// A directory in the middle of a tree that is filled name by name.
#[test]
fn appending_in_the_middle_leaves_full_nodes() {
    let (mut world, mut rng) = (World::new(16384), Rng(2));
    let edits = (0..2000).map(|n| (Key::new(n, 3, 0), put(&mut rng, 100)));
    world.apply(edits.collect());
    world.commit();
    for batch in 0..3000u64 {
        let edits = (0..4).map(|n| (Key::new(700, 5, batch * 4 + n), put(&mut rng, 80)));
        world.apply(edits.collect());
        world.commit();
    }
    world.check();
    assert!(fill(&world) > 0.95, "{}", fill(&world));
}

/// Hashes of names: attributes of 1 KiB and names, one at a time or thousands.
#[test]
fn keys_at_random_leave_nodes_as_full_as_the_kernel_does() {
    for (size, node_size) in [(1060, 16384), (300, 16384), (50, 4096)] {
        for batch in [1, 20, 200, 2000] {
            let (mut world, mut rng) = (World::new(node_size), Rng(batch));
            for _ in 0..(4000 / batch).max(5) {
                let edits: BTreeMap<Key, Edit> =
                    (0..batch).map(|_| (Key::new(5, 3, rng.next()), put(&mut rng, size))).collect();
                world.apply(edits.into_iter().collect());
                world.commit();
            }
            world.check();
            let fill = fill(&world);
            assert!(fill > 0.82, "{size} bytes, {batch} at a time: {fill}");
        }
    }
}

/// Whoever overflows gets a neighbour's room in place of a new node, not beside it; and the
/// neighbour is one.
#[test]
fn an_overflow_takes_two_leaves_and_touches_two() {
    let (mut world, mut rng) = (World::new(4096), Rng(3));
    let mut shared = 0;
    for _ in 0..5000 {
        let key = Key::new(rng.next() >> 30, 3, 0);
        let (allocs, detaches) = (world.books.allocs_at[0], world.books.detaches_at[0]);
        let len = rng.below(900) as usize;
        world.apply(vec![(key, put(&mut rng, len))]);
        let allocs = world.books.allocs_at[0] - allocs;
        let detaches = world.books.detaches_at[0] - detaches;
        assert!(allocs <= 2 && detaches <= allocs, "{allocs} new leaves for {detaches}");
        shared += u64::from(detaches == 2);
        world.commit();
    }
    world.check();
    assert!(shared > 100, "{shared}");
}

#[test]
fn one_large_batch_leaves_full_nodes() {
    let (mut world, mut rng) = (World::new(16384), Rng(4));
    world.apply(vec![(Key::new(0, 3, 0), put(&mut rng, 10)), (Key::MAX, put(&mut rng, 10))]);
    world.apply((1..50_000).map(|n| (Key::new(n, 3, 0), put(&mut rng, 60))).collect());
    world.check();
    assert!(fill(&world) > 0.97, "{}", fill(&world));
}

#[test]
fn thinning_out_merges_nodes() {
    let (mut world, mut rng) = (World::new(4096), Rng(5));
    world.apply((0..20_000).map(|n| (Key::new(n, 3, 0), put(&mut rng, 60))).collect());
    world.commit();
    while world.model.len() > 1000 {
        let one_in = 1 + rng.below(4);
        let gone: Vec<Key> = world.model.keys().copied().filter(|k| k.objectid % 20 != 0).collect();
        let gone = gone.into_iter().filter(|_| rng.below(one_in) == 0);
        world.apply(gone.map(|key| (key, Edit::Delete)).collect());
        world.commit();
    }
    world.check();
    assert!(fill(&world) > 0.4, "{:?}", shape(&world));
}

/// Edits that only change values are written to the same addresses within a generation.
#[test]
fn a_generation_settles() {
    let (mut world, mut rng) = (World::new(4096), Rng(6));
    world.apply((0..20_000).map(|n| (Key::new(n, 3, 0), put(&mut rng, 60))).collect());
    world.commit();
    let some: Vec<Key> = (0..20_000).step_by(391).map(|n| Key::new(n, 3, 0)).collect();
    world.apply(some.iter().map(|key| (*key, put(&mut rng, 60))).collect());
    let (calls, root) = (world.books.calls(), world.root);
    for _ in 0..5 {
        world.apply(some.iter().map(|key| (*key, put(&mut rng, 60))).collect());
        assert_eq!((world.books.calls(), world.root), (calls, root));
    }
    world.check();
}

/// A small batch in a large tree reads and writes its own paths alone.
#[test]
fn a_small_batch_touches_few_nodes() {
    let (mut world, mut rng) = (World::new(4096), Rng(7));
    world.apply((0..100_000).map(|n| (Key::new(n, 3, 0), put(&mut rng, 60))).collect());
    world.commit();
    assert_eq!(world.root.level, 2);
    world.apply(vec![(Key::new(5000, 3, 0), put(&mut rng, 60))]);
    assert_eq!((world.dirty.len(), world.books.detaches), (3, 3));
    let absent = (0..1000).map(|n| (Key::new(n, 7, 0), Edit::Delete));
    let (root, calls) = (world.root, world.books.calls());
    world.apply(absent.collect());
    assert_eq!((world.root, world.books.calls()), (root, calls));
    world.check();
}

#[test]
fn what_does_not_fit_a_leaf_changes_nothing() {
    let (mut world, mut rng) = (World::new(4096), Rng(8));
    let most = world.memory.geometry.max_item_size();
    world.apply((0..50).map(|n| (Key::new(n, 3, 0), put(&mut rng, most))).collect());
    world.check();
    let calls = world.books.calls();
    let edits =
        vec![(Key::new(1, 3, 0), Edit::Delete), (Key::new(2, 3, 0), put(&mut rng, most + 1))];
    let (dirty, books) = (&mut world.dirty, &mut world.books);
    let refused = apply(&world.memory, dirty, books, world.generation, &world.root, edits);
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    assert_eq!(world.books.calls(), calls);
    world.check();
}

#[test]
fn a_root_can_be_renewed_without_a_change() {
    let (mut world, mut rng) = (World::new(4096), Rng(9));
    for count in [0, 10, 1000] {
        world.apply((0..count).map(|n| (Key::new(n, 3, 0), put(&mut rng, 60))).collect());
        world.commit();
        let old = world.root;
        let (dirty, books) = (&mut world.dirty, &mut world.books);
        world.root = refresh_root(&world.memory, dirty, books, world.generation, &old).unwrap();
        assert_eq!(world.root.generation, world.generation);
        assert_ne!(world.root.logical, old.logical);
        world.check();
    }
}

#[test]
#[should_panic(expected = "edits must strictly ascend")]
fn edits_out_of_order_are_a_mistake_of_the_program() {
    let mut world = World::new(4096);
    world.apply(vec![(Key::new(2, 3, 0), Edit::Delete), (Key::new(1, 3, 0), Edit::Delete)]);
}
