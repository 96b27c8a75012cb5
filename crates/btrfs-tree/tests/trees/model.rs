//! Bulk edit against `BTreeMap`: seeded random batches over many generations.

use crate::common;
use btrfs_disk::Key;
use btrfs_tree::{Cursor, Edit, get, scan};
use common::{Rng, World};
use std::collections::BTreeMap;

/// What batches look like for a while.
#[derive(Clone, Copy)]
struct Mood {
    edits: u64,
    deletes_percent: u64,
    /// Keys lie in a window of this many, around a random place.
    window: u64,
    size: u64,
}

const SPACE: u64 = 20_000;

fn mood(rng: &mut Rng, max_item: u64) -> Mood {
    let sizes = [0, 8, 60, 300, max_item / 5, max_item / 2, max_item];
    Mood {
        edits: [1, 3, 20, 200, 1500][rng.below(5) as usize],
        deletes_percent: [0, 10, 50, 90, 100][rng.below(5) as usize],
        window: [10, 200, 4000, SPACE][rng.below(4) as usize],
        size: sizes[rng.below(7) as usize],
    }
}

fn key(n: u64) -> Key {
    Key::new(n / 100, [3, 5][(n % 2) as usize], (n % 100) / 2)
}

fn batch(rng: &mut Rng, mood: &Mood) -> Vec<(Key, Edit)> {
    let base = rng.below(SPACE);
    let mut out = BTreeMap::new();
    for _ in 0..mood.edits {
        let n = (base + rng.below(mood.window)) % SPACE;
        let edit = if rng.below(100) < mood.deletes_percent {
            Edit::Delete
        } else {
            let len = rng.below(mood.size + 1) as usize;
            Edit::Put(rng.bytes(len))
        };
        out.insert(key(n), edit);
    }
    out.into_iter().collect()
}

fn lookups(rng: &mut Rng, world: &World) {
    let reader = world.dirty.over(&world.memory);
    let mut kept = Cursor::new(&reader, &world.root);
    for _ in 0..20 {
        let wanted = key(rng.below(SPACE));
        let found = get(&reader, &world.root, &wanted).unwrap();
        assert_eq!(
            found.as_ref().map(|item| item.data()),
            world.model.get(&wanted).map(|d| &d[..])
        );
        let mut cursor = Cursor::new(&reader, &world.root);
        cursor.seek(&wanted).unwrap();
        assert_eq!(cursor.key(), world.model.range(wanted..).next().map(|(k, _)| *k));
        cursor.seek_back(&wanted).unwrap();
        assert_eq!(cursor.key(), world.model.range(..=wanted).next_back().map(|(k, _)| *k));
        let found = kept.find(&wanted).unwrap();
        let data = world.model.get(&wanted).map(|d| &d[..]);
        assert_eq!(found.as_ref().map(|item| item.data()), data, "from where it stood");
        // It may be behind a leaf's end now, or at an item that is moved away from.
        let near = key(rng.below(SPACE));
        match rng.below(3) {
            0 => kept.next().unwrap(),
            1 => kept.prev().unwrap(),
            _ => kept.seek(&near).unwrap(),
        }
    }
}

/// Returns the highest level that the root had.
fn run(seed: u64, node_size: u32, batches: u32) -> u8 {
    let mut depth = 0;
    let mut rng = Rng(seed);
    let mut world = World::new(node_size);
    let max_item = world.memory.geometry.max_item_size() as u64;
    let mut now = mood(&mut rng, max_item);
    for n in 0..batches {
        if rng.below(8) == 0 {
            now = mood(&mut rng, max_item);
        }
        if world.model.values().map(|v| v.len()).sum::<usize>()
            > (node_size as usize * 300).max(1 << 20)
        {
            now.deletes_percent = 100;
        }
        let edits = batch(&mut rng, &now);
        let again = edits.clone();
        world.apply(edits);
        world.check();
        depth = depth.max(world.root.level);
        let (root, calls) = (world.root, world.books.calls());
        world.apply(again);
        assert_eq!((world.root, world.books.calls()), (root, calls), "a repetition did something");
        lookups(&mut rng, &world);
        if rng.below(3) == 0 {
            world.commit();
            world.check();
        }
        if n % 97 == 96 {
            let all = world.model.keys().map(|k| (*k, Edit::Delete)).collect();
            world.apply(all);
            world.check();
            assert_eq!((world.root.level, world.books.live.len()), (0, 1));
        }
    }
    depth
}

/// Nodes smaller than the format allows: few pointers make deep trees.
#[test]
fn random_batches_in_deep_trees() {
    let depth = (200..208).map(|seed| run(seed, 512, 300)).max();
    assert!(depth >= Some(4), "no tree was deeper than {depth:?}");
}

#[test]
fn random_batches_in_small_nodes() {
    for seed in 0..6 {
        run(seed, 4096, 500);
    }
}

#[test]
fn random_batches_in_large_nodes() {
    for seed in 100..104 {
        run(seed, 16384, 400);
    }
}

#[test]
fn a_cursor_walks_both_ways() {
    let mut world = World::new(4096);
    let mut rng = Rng(5);
    let edits = (0..5000).map(|n| (key(n * 3), Edit::Put(rng.bytes((n % 90) as usize))));
    let edits: BTreeMap<_, _> = edits.collect();
    world.apply(edits.into_iter().collect());
    let reader = world.dirty.over(&world.memory);
    let mut cursor = Cursor::new(&reader, &world.root);
    for (key, data) in &world.model {
        cursor.next().unwrap();
        assert_eq!(cursor.item(), Some((*key, &data[..])));
    }
    cursor.next().unwrap();
    assert_eq!(cursor.item(), None);
    for (key, data) in world.model.iter().rev() {
        cursor.prev().unwrap();
        assert_eq!(cursor.item(), Some((*key, &data[..])));
    }
    cursor.prev().unwrap();
    assert_eq!(cursor.item(), None);
    cursor.next().unwrap();
    assert_eq!(cursor.key(), world.model.keys().next().copied());
    let (from, to) = (key(2000), key(9000));
    let got: Vec<Key> =
        scan(&reader, &world.root, from..=to).map(|item| item.unwrap().key()).collect();
    let want: Vec<Key> = world.model.range(from..=to).map(|(k, _)| *k).collect();
    assert_eq!(got, want);
}
