//! Random reference changes, drained in random portions into a map of items, against a
//! multiset of references; and the rules of the items' form.

use btrfs_disk::checksum::{ChecksumType, data_ref_hash};
use btrfs_disk::items::{ExtentItem, extent_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{Error, Generation, Geometry, Key, Logical, TreeId};
use btrfs_space::refs::{Drained, Format, current_refs, drain, stored_refs};
use btrfs_space::{Changes, ExtentKind, RefDeltas, RefOwner};
use std::cmp::Reverse;
use std::collections::BTreeMap;

type Tree = BTreeMap<Key, Vec<u8>>;
type Model = BTreeMap<u64, BTreeMap<RefOwner, u64>>;

fn geometry(node_size: u32) -> Geometry {
    Geometry {
        sector_size: 4096,
        node_size,
        csum: ChecksumType::Crc32c,
        metadata_uuid: [1; 16],
        chunk_tree_uuid: [2; 16],
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

fn apply(tree: &mut Tree, changes: Changes) {
    assert!(changes.windows(2).all(|w| w[0].0 < w[1].0), "changes ascend");
    for (key, data) in changes {
        match data {
            Some(data) => {
                tree.insert(key, data.into_vec());
            }
            None => assert!(tree.remove(&key).is_some(), "{key} is deleted and absent"),
        }
    }
}

/// The form of every item is what the kernel demands.
fn judge_form(tree: &Tree, limit: usize) {
    let mut total: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (key, data) in tree {
        let entry = total.entry(key.objectid).or_default();
        if matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM) {
            assert!(data.len() < limit, "{key}: {} bytes", data.len());
            let item = ExtentItem::parse(key.kind, data).expect("item");
            let ranks: Vec<_> = item
                .inline
                .iter()
                .map(|i| RefOwner::of_inline(i).expect("a reference"))
                .map(|owner| (owner.kind(), Reverse(owner.sequence())))
                .collect();
            assert!(ranks.is_sorted(), "{key}: {ranks:?}");
            entry.0 = item.fields.refs;
            entry.1 += item.inline.iter().map(|i| i.count()).sum::<u64>();
        } else {
            let (owner, count) = RefOwner::of_separate(key, data).expect("reads").expect("ref");
            assert!(key.offset >= owner.sequence());
            entry.1 += count;
        }
    }
    for (extent, (refs, sum)) in total {
        assert_eq!(refs, sum, "extent {extent}");
        assert!(refs > 0);
    }
}

fn compare(tree: &mut Tree, pending: &RefDeltas, model: &Model) {
    for (extent, owners) in model {
        let refs = current_refs(tree, &[pending], Logical(*extent)).expect("adds up");
        let refs = refs.unwrap_or_else(|| panic!("extent {extent} is missing"));
        assert_eq!(&refs.owners, owners, "extent {extent}");
        let (count, _) = stored_refs(tree, &[pending], Logical(*extent)).unwrap().unwrap();
        assert_eq!(count, owners.values().sum::<u64>());
    }
}

/// A holder out of few, so that additions and drops meet.
fn owner(dice: &mut Dice, data: bool) -> RefOwner {
    let parent = Logical(16384 * (1 + dice.roll(40)));
    let root = TreeId(256 + dice.roll(40));
    match (data, dice.roll(3)) {
        (true, 0) => RefOwner::SharedData { parent },
        (true, _) => RefOwner::Data { root, ino: 256 + dice.roll(4), offset: 4096 * dice.roll(2) },
        (false, 0) => RefOwner::SharedTree { parent },
        (false, _) => RefOwner::Tree { root },
    }
}

struct World {
    tree: Tree,
    deltas: RefDeltas,
    model: Model,
    format: Format,
    born: u64,
}

impl World {
    fn kind_of(extent: u64) -> (ExtentKind, u64) {
        match extent / 65536 % 2 {
            0 => (ExtentKind::Data, 65536),
            _ => (ExtentKind::Node { level: (extent / 131072 % 3) as u8 }, 16384),
        }
    }

    fn change(&mut self, extent: u64, owner: RefOwner, count: i64) {
        let (kind, len) = Self::kind_of(extent);
        self.deltas.add(Logical(extent), len, kind, owner, count);
    }

    fn step(&mut self, dice: &mut Dice) {
        let extent = 65536 * (1 + dice.roll(24));
        let (kind, len) = Self::kind_of(extent);
        let data = kind == ExtentKind::Data;
        if !self.model.contains_key(&extent) {
            // Space of a freed extent comes back only when a drain has told so.
            if self.deltas.get(Logical(extent)).is_some() {
                return;
            }
            self.deltas.born(Logical(extent), len, kind, TreeId::FS);
            self.model.insert(extent, BTreeMap::new());
            self.born += 1;
        }
        for _ in 0..1 + dice.roll(60) {
            let owner = owner(dice, data);
            let has = self.model.get_mut(&extent).expect("there").entry(owner).or_default();
            let count = if data { 1 + dice.roll(5) } else { 1 };
            let grows = dice.roll(10) < 6;
            if grows && (data || *has == 0) {
                *has += count;
                self.change(extent, owner, count as i64);
            } else if !grows && *has > 0 {
                let count = count.min(*has);
                *has -= count;
                self.change(extent, owner, -(count as i64));
            }
            self.model.get_mut(&extent).expect("there").retain(|_, count| *count > 0);
        }
        if dice.roll(12) == 0 {
            let all: Vec<_> =
                std::mem::take(self.model.get_mut(&extent).expect("there")).into_iter().collect();
            all.into_iter().for_each(|(owner, count)| self.change(extent, owner, -(count as i64)));
        }
    }

    fn drain(&mut self) -> Drained {
        let before: Vec<u64> = self.in_tree();
        let drained = drain(&mut self.deltas, &mut self.tree, &self.format).expect("adds up");
        apply(&mut self.tree, drained.changes.clone());
        judge_form(&self.tree, self.format.item_limit);
        let after = self.in_tree();
        let starts = |list: &[btrfs_space::Extent]| -> Vec<u64> {
            list.iter().map(|e| e.logical.0).collect()
        };
        let minus = |a: &[u64], b: &[u64]| -> Vec<u64> {
            a.iter().filter(|x| !b.contains(x)).copied().collect()
        };
        assert_eq!(starts(&drained.created), minus(&after, &before));
        assert_eq!(starts(&drained.freed), minus(&before, &after));
        self.model.retain(|_, owners| !owners.is_empty());
        assert_eq!(after, self.model.keys().copied().collect::<Vec<_>>());
        drained
    }

    fn in_tree(&self) -> Vec<u64> {
        let is_item = |key: &&Key| matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM);
        self.tree.keys().filter(is_item).map(|key| key.objectid).collect()
    }
}

#[test]
fn drained_deltas_are_the_multiset_of_references() {
    for (seed, node_size) in [(1, 16384), (2, 4096), (3, 65536), (4, 16384), (5, 4096)] {
        let mut dice = Dice(0x9e37_79b9 * seed);
        let mut world = World {
            tree: Tree::new(),
            deltas: RefDeltas::new(),
            model: Model::new(),
            format: Format {
                node_size: 16384,
                ..Format::new(&geometry(node_size), Generation(seed))
            },
            born: 0,
        };
        let (mut freed, mut separate, mut stillborn) = (0, false, 0);
        for round in 0..150 {
            for _ in 0..1 + dice.roll(12) {
                world.step(&mut dice);
            }
            let (tree, deltas) = (&mut world.tree, &world.deltas);
            compare(tree, deltas, &world.model);
            // Half of the changes come through another epoch's deltas.
            if round % 2 == 0 {
                let mut merged = RefDeltas::new();
                merged.merge(std::mem::take(&mut world.deltas));
                world.deltas = merged;
            }
            let drained = world.drain();
            freed += drained.freed.len();
            stillborn += drained.stillborn_data.len() + drained.stillborn_nodes.len();
            separate |= world.tree.keys().any(|key| key.kind > kind::METADATA_ITEM);
            compare(&mut world.tree, &world.deltas, &world.model);
        }
        assert!(freed > 20 && world.born > 50, "{freed} {}", world.born);
        assert!(stillborn > 0 && (separate || node_size > 16384));
    }
}

#[test]
fn holders_of_one_hash_stand_side_by_side() {
    // CRC-32C is blind to its own polynomial (33 bits, reflected), wherever it is added.
    let twin = (1 | 0x82F6_3B78u64 << 1) << 12;
    let root = TreeId(5);
    let wanted = data_ref_hash(root.0, 257, 0);
    assert_eq!(data_ref_hash(root.0, 257, twin), wanted);
    let owners: Vec<RefOwner> =
        [0, twin].map(|offset| RefOwner::Data { root, ino: 257, offset }).into();
    assert_eq!(owners[0].sequence(), owners[1].sequence());
    let (mut tree, mut deltas) = (Tree::new(), RefDeltas::new());
    let format = Format::new(&geometry(4096), Generation(1));
    let extent = Logical(1 << 20);
    deltas.born(extent, 4096, ExtentKind::Data, TreeId::FS);
    // Fills the inline room, so that the twins get items of their own.
    for parent in 1..20 {
        let owner = RefOwner::SharedData { parent: Logical(parent * 4096) };
        deltas.add(extent, 4096, ExtentKind::Data, owner, 1);
    }
    let mut round = |deltas: &mut RefDeltas| {
        let drained = drain(deltas, &mut tree, &format).expect("adds up");
        apply(&mut tree, drained.changes);
        let at: Vec<u64> = tree
            .iter()
            .filter(|(key, _)| key.kind == kind::EXTENT_DATA_REF)
            .map(|(key, _)| key.offset - wanted)
            .collect();
        at
    };
    assert_eq!(round(&mut deltas), [0u64; 0]);
    for owner in &owners {
        deltas.add(extent, 4096, ExtentKind::Data, *owner, 2);
    }
    assert_eq!(round(&mut deltas), [0, 1]);
    // The first goes; the second is found behind the gap, and counts on.
    deltas.add(extent, 4096, ExtentKind::Data, owners[0], -2);
    deltas.add(extent, 4096, ExtentKind::Data, owners[1], 1);
    assert_eq!(round(&mut deltas), [1]);
    deltas.add(extent, 4096, ExtentKind::Data, owners[1], -3);
    assert_eq!(round(&mut deltas), [0u64; 0]);
}

/// Kernels give a holder a second item where there is a gap in front of the first: both count.
#[test]
fn a_holder_with_two_items_drops_both() {
    let (mut tree, mut deltas) = (Tree::new(), RefDeltas::new());
    let (format, extent) = (Format::new(&geometry(4096), Generation(1)), Logical(1 << 20));
    let owner = RefOwner::Data { root: TreeId(5), ino: 257, offset: 0 };
    deltas.born(extent, 4096, ExtentKind::Data, TreeId::FS);
    for parent in 1..20 {
        let other = RefOwner::SharedData { parent: Logical(parent * 4096) };
        deltas.add(extent, 4096, ExtentKind::Data, other, 1);
    }
    let settle = |tree: &mut Tree, deltas: &mut RefDeltas| {
        let changes = drain(deltas, tree, &format).map(|drained| drained.changes);
        changes.map(|changes| apply(tree, changes))
    };
    settle(&mut tree, &mut deltas).expect("adds up");
    // Inline there is no room any more.
    deltas.add(extent, 4096, ExtentKind::Data, owner, 5);
    settle(&mut tree, &mut deltas).expect("adds up");
    let key = Key::new(extent.0, kind::EXTENT_DATA_REF, owner.sequence());
    let item = tree.remove(&key).expect("it is there");
    let part = |count: u8| [&item[..item.len() - 4], &[count, 0, 0, 0]].concat();
    tree.insert(key, part(2));
    tree.insert(Key { offset: key.offset + 3, ..key }, part(3));
    let mut left = |count| {
        deltas.add(extent, 4096, ExtentKind::Data, owner, count);
        settle(&mut tree, &mut deltas)?;
        let items = tree.iter().filter(|(key, _)| key.kind == kind::EXTENT_DATA_REF);
        Ok::<_, btrfs_disk::Error>(items.map(|(_, item)| item[item.len() - 4]).collect::<Vec<u8>>())
    };
    assert_eq!(left(-3).expect("of both"), [2]);
    assert_eq!(left(-2).expect("of the second"), [0; 0]);
    assert!(left(-1).is_err(), "there are no more");
}

#[test]
fn what_does_not_add_up_is_damage() {
    let format = Format::new(&geometry(16384), Generation(9));
    let extent = Logical(1 << 20);
    let owner = RefOwner::Data { root: TreeId(5), ino: 257, offset: 0 };
    let other = RefOwner::Data { root: TreeId(5), ino: 258, offset: 0 };
    let data = ExtentKind::Data;
    let refused = |tree: &mut Tree, fill: &dyn Fn(&mut RefDeltas), text: &str| {
        let mut deltas = RefDeltas::new();
        fill(&mut deltas);
        match drain(&mut deltas, tree, &format) {
            Err(Error::Corrupt(corrupt)) => {
                assert!(corrupt.to_string().contains(text), "{corrupt} instead of {text}");
            }
            other => panic!("{other:?} instead of {text}"),
        }
    };
    let mut tree = Tree::new();
    refused(&mut tree, &|d| d.add(extent, 4096, data, owner, -1), "not there");
    refused(&mut tree, &|d| d.add(extent, 4096, data, owner, 1), "not there");
    refused(
        &mut tree,
        &|d| {
            d.born(extent, 4096, data, TreeId::FS);
            d.add(extent, 4096, data, owner, -1);
        },
        "drops 1",
    );
    let mut deltas = RefDeltas::new();
    deltas.born(extent, 4096, data, TreeId::FS);
    deltas.add(extent, 4096, data, owner, 2);
    let drained = drain(&mut deltas, &mut tree, &format).expect("new");
    apply(&mut tree, drained.changes);
    refused(&mut tree, &|d| d.born(extent, 4096, data, TreeId::FS), "there already");
    // What was called free is in use.
    refused(
        &mut tree,
        &|d| d.born(extent.offset(2048), 4096, data, TreeId::FS),
        "begins inside another",
    );
    refused(
        &mut tree,
        &|d| d.born(Logical(extent.0 - 4096), 8192, data, TreeId::FS),
        "there already",
    );
    refused(&mut tree, &|d| d.add(extent, 4096, data, owner, -3), "drops 3");
    refused(&mut tree, &|d| d.add(extent, 4096, data, other, -1), "drops 1");
    refused(&mut tree, &|d| d.add(extent, 8192, data, owner, -1), "does not fit");
    refused(&mut tree, &|d| d.set_full_backref(extent, 16384, 0), "does not fit");
    refused(
        &mut tree,
        &|d| {
            d.add(extent, 4096, data, owner, 1);
            d.add(extent, 8192, data, owner, 1);
        },
        "disagree",
    );
    let key = Key::new(extent.0, kind::EXTENT_ITEM, 4096);
    let mut item = ExtentItem::parse(key.kind, &tree[&key]).expect("item");
    item.fields.refs = 1;
    tree.insert(key, item.to_vec());
    refused(&mut tree, &|d| d.add(extent, 4096, data, owner, -1), "more inline");
    item.fields.refs = u64::MAX;
    tree.insert(key, item.to_vec());
    refused(&mut tree, &|d| d.add(extent, 4096, data, owner, 1), "overflows");
    item.fields.refs = 2;
    tree.insert(key, item.to_vec());
    tree.insert(Key::new(extent.0, kind::SHARED_DATA_REF, 4096), vec![1, 0, 0, 0]);
    refused(&mut tree, &|d| d.add(extent, 4096, data, owner, -2), "has holders");
    assert_eq!(item.fields.flags, extent_flags::DATA);
}
