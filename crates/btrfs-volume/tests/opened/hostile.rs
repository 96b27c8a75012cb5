//! Images whose checksums are right and whose contents lie: typed errors, no panic, no
//! hang, no writes where nothing may be written.

use crate::common;
use blockdev::{BlockDevice, MemDevice};
use btrfs_disk::Geometry;
use btrfs_disk::build::{self, NodeIdentity};
use btrfs_disk::ids::block_group;
use btrfs_disk::items::{Chunk, DevItem};
use btrfs_disk::key::kind;
use btrfs_disk::{
    ChildPtr, Error, Expect, FixedSize, Generation, Key, LeafItem, Logical, Node, Superblock,
    TreeId,
};
use btrfs_volume::{OpenOptions, Volume};
use common::*;
use std::sync::Arc;

const FIRST: u64 = 64 << 10;
const SECOND: u64 = 64 << 20;

/// An image in memory with one metadata copy, so that nothing covers up a lie.
struct Victim {
    dev: Arc<MemDevice>,
    sb: Superblock,
    geometry: Geometry,
    root: Node,
    /// Physical address of the chunk tree's root.
    root_at: u64,
}

impl Victim {
    fn new(args: &[&str]) -> Victim {
        let scratch = Scratch::new();
        let path = scratch.mkfs("image", 128 * MIB, args);
        let dev = Arc::new(MemDevice::from_bytes(&std::fs::read(&path).expect("image")));
        dev.write_at(SECOND, &[0; 4096]).expect("one copy only");
        let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
        let (sb, geometry) = ((*volume.superblock()).clone(), *volume.geometry());
        let root = volume.read_node(&expect(&sb)).expect("chunk root");
        let chunk = volume.chunk(sb.fields.chunk_root).expect("mapped");
        let root_at = chunk.stripes[0].1.0 + sb.fields.chunk_root.0 - chunk.logical.0;
        Victim { dev, sb, geometry, root, root_at }
    }

    fn open(&self) -> btrfs_disk::Result<Volume> {
        Volume::open(self.dev.clone(), OpenOptions::default())
    }

    fn refusal(&self) -> Error {
        self.open().map(|_| ()).expect_err("refused")
    }

    fn put_super(&self, sb: &Superblock) {
        self.dev.write_at(FIRST, &sb.to_bytes(FIRST).expect("bytes")).expect("write");
    }

    fn put_node(&self, node: &Node) {
        let at = self.root_at + node.logical().0 - self.sb.fields.chunk_root.0;
        self.dev.write_at(at, &build::seal(&self.geometry, node)).expect("write");
    }

    fn identity(&self, offset: u64) -> NodeIdentity {
        NodeIdentity {
            logical: self.sb.fields.chunk_root.offset(offset),
            generation: self.sb.fields.chunk_root_generation,
            owner: TreeId::CHUNK,
        }
    }

    /// The chunk tree's items with one more chunk, or with another one in its place.
    fn with_chunk(&self, logical: u64, chunk: &Chunk) {
        let data = chunk.to_vec();
        let key = Key::new(256, kind::CHUNK_ITEM, logical);
        let mut items: Vec<LeafItem<'_>> = self
            .root
            .items()
            .filter(|(k, _)| *k != key)
            .map(|(key, data)| LeafItem { key, data })
            .collect();
        items.push(LeafItem { key, data: &data });
        items.sort_by_key(|item| item.key);
        self.put_node(&build::leaf(&self.geometry, &self.identity(0), &items));
    }

    /// The chunk tree with its device item changed.
    fn with_device(&self, change: impl Fn(&mut DevItem)) {
        let changed = |(key, data): (Key, &[u8])| {
            let mut data = data.to_vec();
            if key.kind == kind::DEV_ITEM {
                let mut item = DevItem::read(&data).expect("device item");
                change(&mut item);
                data = item.to_vec();
            }
            (key, data)
        };
        let items: Vec<_> = self.root.items().map(changed).collect();
        let items: Vec<_> = items.iter().map(|(key, data)| LeafItem { key: *key, data }).collect();
        self.put_node(&build::leaf(&self.geometry, &self.identity(0), &items));
    }

    /// The last chunk (data, single) of the volume: a form for new ones.
    fn last_chunk(&self) -> (u64, Chunk) {
        let (key, data) = self.root.items().last().expect("chunks");
        (key.offset, Chunk::parse(data).expect("chunk"))
    }
}

fn expect(sb: &Superblock) -> Expect {
    Expect {
        logical: sb.fields.chunk_root,
        level: sb.fields.chunk_root_level,
        generation: Some(sb.fields.chunk_root_generation),
        owner: Some(TreeId::CHUNK),
        first_key: None,
    }
}

type Edit = Box<dyn Fn(&mut Chunk)>;

/// A chunk that `room` has place for, made wrong in one way each: where it begins then, and what is said of it.
fn wrong_in_one_way(room: Logical, total: u64) -> Vec<(u64, Edit, &'static str)> {
    let free = room.0;
    vec![
        (free, Box::new(|c| c.stripes[0].offset = 1 << 20), "overlaps another"),
        (free - 4096, Box::new(|_| ()), "chunks overlap"),
        (free, Box::new(move |c| c.stripes[0].offset = total - 4096), "device's end"),
        (free, Box::new(|c| c.stripes[0].offset = u64::MAX - 4095), "device's end"),
        (free, Box::new(|c| c.stripes[0].offset += 1), "not aligned"),
        (free + 1, Box::new(|_| ()), "not aligned"),
        (free, Box::new(|c| c.fields.length = 0), "not aligned"),
        (free, Box::new(|c| c.fields.length -= 1), "not aligned"),
        (free, Box::new(|c| c.fields.length = u64::MAX - 4095), "too long"),
        (u64::MAX - 4095, Box::new(|_| ()), "too long"),
        (0u64.wrapping_sub(1 << 20) - 4096, Box::new(|_| ()), "too long"),
        (1 << 63, Box::new(|_| ()), "too long"),
        (free, Box::new(|c| c.stripes[0].devid = 9), "device 9"),
        (free, Box::new(|c| c.stripes[0].dev_uuid[0] ^= 1), "another UUID"),
        (free, Box::new(|c| c.fields.kind |= block_group::DUP), "1 stripes for 2 copies"),
        (free, Box::new(|c| c.fields.kind &= !block_group::TYPE_MASK), "of types 0x0"),
        (free, Box::new(|c| c.fields.kind |= 5), "of types 0x5"),
        (free, Box::new(|c| c.fields.kind |= 1 << 40), "flags"),
        (free, Box::new(|c| c.fields.sector_size = 512), "sectors of 512"),
    ]
}

/// A pointer of a node may lead there.
#[test]
fn nodes_at_the_last_address_are_damage() {
    if !have_mkfs() {
        return;
    }
    let victim = Victim::new(&["-m", "single"]);
    let volume = victim.open().expect("opens");
    let at = |logical| Expect { logical: Logical(logical), ..expect(&victim.sb) };
    let read = volume.read_nodes(&[at(u64::MAX - 8191), at(u64::MAX - 4095)]);
    assert!(matches!(read, Err(Error::Corrupt(_))));
}

#[test]
fn no_device_is_longer_than_addresses() {
    if !have_mkfs() {
        return;
    }
    let victim = Victim::new(&["-m", "single"]);
    for total in [u64::MAX - 4095, 1 << 63] {
        let mut sb = victim.sb.clone();
        (sb.fields.total_bytes, sb.fields.dev_item.total_bytes) = (total, total);
        victim.put_super(&sb);
        assert!(victim.refusal().to_string().contains("device of"), "{}", victim.refusal());
    }
}

/// Of which nothing is wrong, behind the last one; it is the last MiB of the device.
fn one_more(victim: &Victim) -> (Logical, Chunk) {
    let (logical, mut chunk) = victim.last_chunk();
    let at = Logical(logical + chunk.fields.length);
    chunk.fields.length = 1 << 20;
    chunk.stripes[0].offset = victim.sb.fields.total_bytes - (1 << 20);
    (at, chunk)
}

#[test]
fn chunks_that_cannot_be_are_refused_with_their_key() {
    if !have_mkfs() {
        return;
    }
    let victim = Victim::new(&["-m", "single"]);
    let (free, good) = one_more(&victim);
    victim.with_chunk(free.0, &good);
    victim.open().expect("nothing is wrong with that");
    victim.put_node(&victim.root);
    for (at, edit, text) in wrong_in_one_way(free, victim.sb.fields.total_bytes) {
        let mut chunk = good.clone();
        edit(&mut chunk);
        victim.with_chunk(at, &chunk);
        let error = victim.refusal();
        // The gate of nodes may find some of these first; both must name the item.
        let Error::Corrupt(corrupt) = &error else { panic!("{text}: {error}") };
        assert!(corrupt.key.is_some() || corrupt.logical.is_some(), "{error}");
        victim.put_node(&victim.root);
    }
    let mut raid = good.clone();
    raid.fields.kind |= block_group::RAID1;
    raid.fields.num_stripes = 2;
    raid.stripes.push(raid.stripes[0]);
    victim.with_chunk(free.0, &raid);
    assert!(victim.open().is_err());
    victim.put_node(&victim.root);
    victim.open().expect("clean again");
}

#[test]
fn a_device_item_is_of_the_superblocks_device() {
    if !have_mkfs() {
        return;
    }
    let victim = Victim::new(&["-m", "single"]);
    victim.with_device(|_| ());
    victim.open().expect("as it was");
    victim.with_device(|item| item.uuid[3] ^= 1);
    assert!(victim.refusal().to_string().contains("another device"));
    victim.with_device(|item| item.devid += 1);
    assert!(matches!(victim.refusal(), Error::Corrupt(_)));
}

#[test]
fn the_map_refuses_what_the_node_gate_lets_through() {
    if !have_mkfs() {
        return;
    }
    let victim = Victim::new(&["-m", "single"]);
    let volume = victim.open().expect("opens");
    let (logical, good) = victim.last_chunk();
    let free = Logical(logical + good.fields.length);
    let refused = |chunk: &Chunk, text: &str| {
        let error = volume.add_chunk(free, chunk).expect_err(text);
        assert!(error.to_string().contains(text), "{error} instead of {text}");
    };
    refused(&good, "overlaps another");
    let (free, chunk) = one_more(&victim);
    for (at, edit, text) in wrong_in_one_way(free, victim.sb.fields.total_bytes) {
        let mut wrong = chunk.clone();
        edit(&mut wrong);
        let error = volume.add_chunk(Logical(at), &wrong).expect_err(text);
        assert!(error.to_string().contains(text), "{error} instead of {text}");
    }
    volume.add_chunk(free, &chunk).expect("room behind the others");
    volume.add_chunk(free, &chunk).expect("the same again");
    assert_eq!(volume.mirrors(free).expect("mapped"), 1);
    let mut raid = chunk.clone();
    raid.fields.kind |= block_group::RAID5;
    assert!(
        matches!(volume.add_chunk(free, &raid), Err(Error::Unsupported(t)) if t.contains("RAID5"))
    );
    volume.remove_chunk(free).expect("there");
    assert!(volume.mirrors(free).is_err());
    assert!(volume.remove_chunk(free).is_err());
    let mut dup = chunk.clone();
    dup.fields.kind |= block_group::DUP;
    dup.fields.num_stripes = 2;
    dup.stripes.push(dup.stripes[0]);
    refused(&dup, "overlaps another");
    dup.fields.length = 512 << 10;
    dup.stripes[1].offset += 512 << 10;
    volume.add_chunk(free, &dup).expect("two copies side by side");
    assert_eq!(volume.mirrors(free).expect("mapped"), 2);
}

#[test]
fn a_chunk_tree_that_bites_its_tail_ends() {
    if !have_mkfs() {
        return;
    }
    let victim = Victim::new(&["-m", "single"]);
    let size = u64::from(victim.geometry.node_size);
    let generation = victim.sb.fields.chunk_root_generation;
    let first = victim.root.key(0);
    let mut sb = victim.sb.clone();
    sb.fields.chunk_root_level = 7;
    victim.put_super(&sb);
    // Every level is a fan of pointers to one node of the next: 400^7 visits if each
    // were followed.
    for level in (1..=7u8).rev() {
        let at = victim.identity(u64::from(7 - level) * size);
        let below = victim.identity(u64::from(8 - level) * size).logical;
        let children: Vec<ChildPtr> = (0..400)
            .map(|i| ChildPtr {
                key: Key::new(first.objectid, first.kind, first.offset + i),
                logical: below,
                generation,
            })
            .collect();
        victim.put_node(&build::interior(&victim.geometry, &at, level, &children));
    }
    let leaf: Vec<LeafItem<'_>> =
        victim.root.items().map(|(key, data)| LeafItem { key, data }).collect();
    victim.put_node(&build::leaf(&victim.geometry, &victim.identity(7 * size), &leaf));
    let start = std::time::Instant::now();
    assert!(matches!(victim.refusal(), Error::Corrupt(_)));
    // The root points to itself.
    let own = ChildPtr { key: first, logical: victim.sb.fields.chunk_root, generation };
    victim.put_node(&build::interior(&victim.geometry, &victim.identity(0), 7, &[own]));
    assert!(matches!(victim.refusal(), Error::Corrupt(_)));
    assert!(start.elapsed().as_secs() < 5);
}

/// SplitMix64: tests must not depend on chance.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn value(&mut self) -> u8 {
        [0, 1, 2, 0x7F, 0x80, 0xFF, self.next() as u8, self.next() as u8][self.below(8)]
    }
}

/// Reads through whatever opened; every outcome but a panic is fine.
fn use_it(volume: &Volume) {
    for chunk in volume.chunks() {
        let mut buf = [0; 8192];
        let _ = volume.read_data(chunk.logical, &mut buf, None);
        let _ = volume.read_data(Logical(chunk.end() - 4096), &mut buf, Some(&[1; 8]));
        let _ = chunk.super_ranges();
    }
    let sb = volume.superblock();
    let _ = volume.read_node(&Expect {
        logical: sb.fields.root,
        level: sb.fields.root_level,
        generation: Some(Generation(sb.fields.generation.0)),
        owner: Some(TreeId::ROOT),
        first_key: None,
    });
}

#[test]
fn mutated_superblocks_never_panic() {
    if !have_mkfs() {
        return;
    }
    let victim = Victim::new(&["-m", "single"]);
    let clean = victim.sb.to_bytes(FIRST).expect("bytes");
    let mut dice = Dice(1);
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..4000 {
        let mut bytes = clean.clone();
        for _ in 0..1 + dice.below(4) {
            // The members, or the system chunk array.
            let at = 32 + dice.below(1200);
            bytes[at] = dice.value();
        }
        victim.geometry.csum.seal(&mut bytes);
        victim.dev.write_at(FIRST, &bytes).expect("write");
        match victim.open() {
            Ok(volume) => {
                opened += 1;
                use_it(&volume);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(opened > 100 && refused > 100, "{opened} opened, {refused} refused");
}

#[test]
fn mutated_chunk_trees_never_panic() {
    if !have_mkfs() {
        return;
    }
    let victim = Victim::new(&["-m", "single", "-n", "4096"]);
    let clean = build::seal(&victim.geometry, &victim.root);
    let used = 101 + victim.root.len() * 25;
    let data = victim.root.data_range(victim.root.len() - 1).start;
    let mut dice = Dice(2);
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..4000 {
        let mut bytes = clean.clone();
        for _ in 0..1 + dice.below(4) {
            let at = if dice.below(2) == 0 {
                32 + dice.below(used - 32)
            } else {
                data + dice.below(bytes.len() - data)
            };
            bytes[at] = dice.value();
        }
        victim.geometry.csum.seal(&mut bytes);
        victim.dev.write_at(victim.root_at, &bytes).expect("write");
        match victim.open() {
            Ok(volume) => {
                opened += 1;
                use_it(&volume);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(opened > 100 && refused > 100, "{opened} opened, {refused} refused");
}
