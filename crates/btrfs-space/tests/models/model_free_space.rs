//! Random allocations and frees in the free-space tree of one group against a plain map
//! of sectors, through extents, bitmaps and back.

use btrfs_disk::items::{FREE_SPACE_USING_BITMAPS, FreeSpaceInfo};
use btrfs_disk::key::kind;
use btrfs_disk::{Error, FixedSize, Key, Logical};
use btrfs_space::Extent;
use btrfs_space::free_space::{GroupSpan, add_group, rewrite, update};
use std::collections::BTreeMap;

type Tree = BTreeMap<Key, Vec<u8>>;
const SECTOR: u64 = 4096;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

fn apply(tree: &mut Tree, changes: btrfs_space::Changes) {
    assert!(changes.windows(2).all(|w| w[0].0 < w[1].0), "changes ascend");
    for (key, data) in changes {
        match data {
            Some(data) => {
                assert_ne!(tree.get(&key).map(|d| &d[..]), Some(&data[..]), "{key} as before");
                tree.insert(key, data.into_vec());
            }
            None => assert!(tree.remove(&key).is_some(), "{key} is deleted and absent"),
        }
    }
}

/// What the items say, read by the format's own words and nothing of the crate.
fn sectors(tree: &Tree, span: &GroupSpan) -> (Vec<bool>, bool) {
    let mut map = vec![false; (span.len / SECTOR) as usize];
    let info = FreeSpaceInfo::read(&tree[&span.info_key()]).expect("info");
    let bitmaps = info.flags & FREE_SPACE_USING_BITMAPS != 0;
    let mut covered = 0;
    for (key, data) in tree.iter().filter(|(key, _)| key.kind != kind::FREE_SPACE_INFO) {
        let first = ((key.objectid - span.start) / SECTOR) as usize;
        let count = (key.offset / SECTOR) as usize;
        match key.kind {
            kind::FREE_SPACE_EXTENT => map[first..first + count].fill(true),
            kind::FREE_SPACE_BITMAP => {
                assert_eq!(data.len(), count.div_ceil(8));
                for bit in 0..count {
                    map[first + bit] = data[bit / 8] >> (bit % 8) & 1 == 1;
                }
                covered += key.offset;
            }
            other => panic!("item of type {other}"),
        }
        assert_eq!(key.kind == kind::FREE_SPACE_BITMAP, bitmaps);
    }
    assert!(!bitmaps || covered == span.len, "bitmaps cover the group");
    let runs = (0..map.len()).filter(|i| map[*i] && (*i == 0 || !map[*i - 1])).count();
    assert_eq!(info.extent_count as usize, runs);
    (map, bitmaps)
}

/// A free (or taken) stretch beginning at a random place.
fn stretch(dice: &mut Dice, map: &[bool], free: bool, most: u64) -> Option<(usize, usize)> {
    let from = dice.roll(map.len() as u64) as usize;
    let first = (from..map.len()).find(|i| map[*i] == free)?;
    let room = map[first..].iter().take_while(|f| **f == free).count();
    Some((first, room.min(1 + dice.roll(most) as usize)))
}

fn extent(span: &GroupSpan, (first, count): (usize, usize)) -> Extent {
    Extent { logical: Logical(span.start + first as u64 * SECTOR), len: count as u64 * SECTOR }
}

/// One update of random stretches; `free` of a hundred are frees.
fn round(dice: &mut Dice, tree: &mut Tree, span: &GroupSpan, model: &mut [bool], free: u64) {
    let (mut created, mut freed) = (Vec::new(), Vec::new());
    for _ in 0..1 + dice.roll(40) {
        let frees = dice.roll(100) < free;
        let most = if free > 90 { 400 } else { 3 };
        let Some(found) = stretch(dice, model, !frees, most) else { continue };
        // What came in this update does not go in it, as in a drain.
        let new = extent(span, found);
        let clash = |list: &[Extent]| {
            list.iter().any(|e| e.logical.0 < new.end() && new.logical.0 < e.end())
        };
        if clash(&created) || clash(&freed) {
            continue;
        }
        model[found.0..found.0 + found.1].fill(frees);
        if frees { freed.push(new) } else { created.push(new) }
    }
    let (slow, free) = rewrite(tree, span, &created, &freed).expect("adds up");
    let changes = update(tree, span, &created, &freed).expect("adds up");
    assert_eq!(changes, slow);
    apply(tree, changes);
    assert_eq!(free, model.iter().filter(|f| **f).count() as u64 * SECTOR);
    assert_eq!(sectors(tree, span).0, model);
}

#[test]
fn items_are_the_map_through_both_forms() {
    for (seed, len) in [(1, 40 << 20), (2, (19 << 20) + SECTOR * 5), (3, 1 << 20)] {
        let span = GroupSpan { start: 1 << 30, len, sector: SECTOR };
        let (mut tree, mut dice) = (Tree::new(), Dice(seed * 0x1234_5677));
        let changes = add_group(&mut tree, &span).expect("new");
        apply(&mut tree, changes);
        let mut model = vec![true; (len / SECTOR) as usize];
        assert_eq!(sectors(&tree, &span), (model.clone(), false));
        let mut forms = Vec::new();
        for phase in [30, 98, 40, 99] {
            for _ in 0..60 {
                round(&mut dice, &mut tree, &span, &mut model, phase);
                let (_, bitmaps) = sectors(&tree, &span);
                if forms.last() != Some(&bitmaps) {
                    forms.push(bitmaps);
                }
            }
        }
        let back = span.low() > 0;
        assert!(forms.contains(&true), "bitmaps were used: {forms:?}");
        assert!(!back || forms.len() > 2, "and given up: {forms:?}");
    }
}

#[test]
fn thresholds_are_the_kernels() {
    let span = |len| GroupSpan { start: 0, len, sector: SECTOR };
    assert_eq!((span(1 << 30).high(), span(1 << 30).low()), (1438, 1338));
    assert_eq!((span(8 << 20).high(), span(8 << 20).low()), (11, 0));
    assert_eq!((span(256 << 20).high(), span(256 << 20).low()), (359, 259));
}

#[test]
fn what_cannot_be_is_damage() {
    let span = GroupSpan { start: 1 << 20, len: 1 << 20, sector: SECTOR };
    let mut tree = Tree::new();
    let refused = |result: btrfs_disk::Result<btrfs_space::Changes>, text: &str| match result {
        Err(Error::Corrupt(corrupt)) => assert!(corrupt.to_string().contains(text), "{corrupt}"),
        other => panic!("{other:?} instead of {text}"),
    };
    let bad = |tree: &mut Tree, created: &[Extent], freed: &[Extent], text: &str| {
        refused(update(tree, &span, created, freed), text);
        refused(rewrite(tree, &span, created, freed).map(|(changes, _)| changes), text);
    };
    bad(&mut tree, &[], &[], "without free space info");
    let changes = add_group(&mut tree, &span).expect("new");
    apply(&mut tree, changes);
    let inside = |first, count| extent(&span, (first, count));
    bad(&mut tree, &[], &[inside(3, 1)], "free already");
    let changes = update(&mut tree, &span, &[inside(3, 2)], &[]).expect("free");
    apply(&mut tree, changes);
    bad(&mut tree, &[inside(4, 2)], &[], "is not free");
    bad(&mut tree, &[inside(2, 2)], &[], "is not free");
    bad(&mut tree, &[], &[inside(4, 2)], "free already");
    let outside = Extent { logical: Logical(span.end()), len: SECTOR };
    bad(&mut tree, &[], &[outside], "outside");
    refused(update(&mut tree, &span, &[outside], &[]), "outside");
    let read = |tree: &mut Tree, text: &str| {
        refused(rewrite(tree, &span, &[], &[]).map(|(changes, _)| changes), text);
    };
    let mut more = tree.clone();
    more.insert(Key::new(span.start + 2 * SECTOR, kind::FREE_SPACE_EXTENT, SECTOR), vec![]);
    read(&mut more, "overlaps");
    let mut fewer = tree.clone();
    fewer.retain(|key, _| key.kind != kind::FREE_SPACE_EXTENT || key.objectid == span.start);
    read(&mut fewer, "are announced");
    let mut wild = tree.clone();
    wild.insert(Key::new(span.end() - SECTOR, kind::FREE_SPACE_EXTENT, 1 << 30), vec![]);
    read(&mut wild, "outside its block group");
    let mut mixed = tree;
    mixed.insert(Key::new(span.start, kind::FREE_SPACE_BITMAP, span.len), vec![0; 32]);
    read(&mut mixed, "does not belong");
}

#[test]
fn bitmaps_refuse_what_cannot_be() {
    let span = GroupSpan { start: 0, len: 32 << 20, sector: SECTOR };
    let mut tree = Tree::new();
    let changes = add_group(&mut tree, &span).expect("new");
    apply(&mut tree, changes);
    let holes: Vec<Extent> = (0..100).map(|i| extent(&span, (i * 40, 1))).collect();
    let changes = update(&mut tree, &span, &holes, &[]).expect("free");
    apply(&mut tree, changes);
    assert!(sectors(&tree, &span).1, "bitmaps");
    let refused = |tree: &mut Tree, created: &[Extent], freed: &[Extent], text: &str| {
        for result in [
            update(tree, &span, created, freed),
            rewrite(tree, &span, created, freed).map(|(changes, _)| changes),
        ] {
            match result {
                Err(Error::Corrupt(c)) => assert!(c.to_string().contains(text), "{c}"),
                other => panic!("{other:?} instead of {text}"),
            }
        }
    };
    let inside = |first, count| extent(&span, (first, count));
    refused(&mut tree, &[inside(39, 2)], &[], "is not free");
    refused(&mut tree, &[], &[inside(40, 2)], "free already");
    // Laid out another way, the group is read whole and put in order.
    let last = Key::new(24 << 20, kind::FREE_SPACE_BITMAP, 8 << 20);
    let bytes = tree.remove(&last).expect("the last bitmap");
    for half in 0..2u64 {
        let key = Key::new(last.objectid + half * (4 << 20), kind::FREE_SPACE_BITMAP, 4 << 20);
        tree.insert(key, bytes[half as usize * 128..][..128].to_vec());
    }
    let (before, _) = sectors(&tree, &span);
    let changes = update(&mut tree, &span, &[inside(8001, 3)], &[]).expect("free");
    apply(&mut tree, changes);
    let (after, _) = sectors(&tree, &span);
    assert!(tree.contains_key(&last));
    assert_eq!(before.iter().zip(&after).filter(|(b, a)| b != a).count(), 3);
    let mut short = tree.clone();
    short.insert(last, vec![0; 7]);
    refused(&mut short, &[inside(8010, 1)], &[], "another size");
}

/// Counts what is asked of the tree.
struct Counting<'t>(&'t mut Tree, u64);

impl btrfs_space::Items for Counting<'_> {
    fn at_or_after(&mut self, key: &Key) -> btrfs_disk::Result<Option<(Key, Vec<u8>)>> {
        self.1 += 1;
        btrfs_space::Items::at_or_after(self.0, key)
    }
    fn at_or_before(&mut self, key: &Key) -> btrfs_disk::Result<Option<(Key, Vec<u8>)>> {
        self.1 += 1;
        btrfs_space::Items::at_or_before(self.0, key)
    }
}

/// Each extent that is freed between two gaps makes one free extent of three, behind what the others left: what
/// was deleted in front of it is looked over once.
#[test]
fn freeing_what_lies_between_gaps_asks_little_of_the_tree() {
    const COUNT: usize = 1000;
    let span = GroupSpan { start: 1 << 30, len: 1 << 30, sector: SECTOR };
    let mut tree = Tree::new();
    let all_free = add_group(&mut tree, &span).expect("a group");
    apply(&mut tree, all_free);
    let taken: Vec<Extent> = (0..COUNT).map(|i| extent(&span, (2 * i + 1, 1))).collect();
    let changes = update(&mut tree, &span, &taken, &[]).expect("they are free");
    apply(&mut tree, changes);
    let before = tree.clone();
    assert_eq!(before.len(), COUNT + 2, "one item each, as few as they are");
    let mut counting = Counting(&mut tree, 0);
    let changes = update(&mut counting, &span, &[], &taken).expect("they are taken");
    let asked = counting.1;
    apply(&mut tree, changes);
    assert_eq!(tree.len(), 2, "all is free again");
    assert!(asked <= 10 * COUNT as u64, "{asked} questions for {COUNT} extents");
}
