//! The checksum tree against a map of sector to checksum, and how often a commit looks into it.

use super::*;
use btrfs_disk::{ChecksumType, Generation, TreeId};
use btrfs_tree::{DirtyNodes, NodeSink};
use std::cell::Cell;
use std::sync::Arc;

const SECTOR: u64 = 4096;
const FORMAT: SumFormat = SumFormat { sector: SECTOR, size: 4, max_item: 256 };

fn geometry() -> Geometry {
    Geometry {
        sector_size: SECTOR as u32,
        node_size: 4096,
        csum: ChecksumType::Crc32c,
        metadata_uuid: [1; 16],
        chunk_tree_uuid: [2; 16],
    }
}

/// Hands out addresses, counts nothing.
struct Addresses(u64);

impl NodeSink for Addresses {
    fn detach(&mut self, _: TreeId, _: &Arc<btrfs_disk::Node>) -> Result<()> {
        Ok(())
    }
    fn alloc(&mut self, _: TreeId, _: u8, _: Key) -> Result<Logical> {
        self.0 += 16384;
        Ok(Logical(self.0))
    }
    fn free_dirty(&mut self, _: TreeId, _: Logical, _: u8) -> Result<()> {
        Ok(())
    }
}

/// Commit after commit against a map of sector to checksum.
#[test]
fn random_commits_match_a_map() {
    let geometry = geometry();
    let blank = btrfs_tree::Blank(geometry);
    let (mut dirty, mut sink) = (DirtyNodes::new(), Addresses(1 << 30));
    let generation = Generation(7);
    let mut root =
        btrfs_tree::new_tree(&geometry, &mut dirty, &mut sink, generation, TreeId::CSUM).unwrap();
    let mut model: BTreeMap<u64, [u8; 4]> = BTreeMap::new();
    let mut seed = 5u64;
    let mut random = move |n: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % n
    };
    for round in 0..300u32 {
        let (mut landed, mut freed) = (BTreeMap::new(), Vec::new());
        for _ in 0..random(6) {
            let (at, count) = (random(600), 1 + random(90));
            let range = at..at + count;
            let known = |s: &u64| model.contains_key(&(s * SECTOR));
            if range.clone().all(|s| known(&s)) {
                let extent = Extent { logical: Logical(at * SECTOR), len: count * SECTOR };
                freed.push(extent);
                range.for_each(|s| {
                    model.remove(&(s * SECTOR));
                });
            } else if range.clone().all(|s| !known(&s)) && freed.is_empty() {
                let mut sums = Vec::new();
                for sector in range {
                    let sum = [round as u8, sector as u8, 3, 4];
                    model.insert(sector * SECTOR, sum);
                    sums.extend_from_slice(&sum);
                }
                landed.insert(Logical(at * SECTOR), sums.into());
            }
        }
        // Stillborn data leaves no checksums.
        let dead = Extent { logical: Logical(1 << 29), len: SECTOR };
        landed.insert(dead.logical, vec![9u8; 4].into());
        let fate = Obsolete { freed: &freed, stillborn: &[dead], stale: &[] };
        let edits = edits(&dirty.over(&blank), &root, &FORMAT, &landed, &fate).unwrap();
        root = btrfs_tree::apply(&blank, &mut dirty, &mut sink, generation, &root, edits).unwrap();
        assert_eq!(read_all(&dirty.over(&blank), &root), model, "round {round}");
    }
}

fn read_all<R: NodeReader>(reader: &R, root: &TreeRoot) -> BTreeMap<u64, [u8; 4]> {
    let mut all = BTreeMap::new();
    let mut cursor = Cursor::new(reader, root);
    cursor.first().unwrap();
    while let Some((key, data)) = cursor.item() {
        assert!(data.len() <= 256 && !data.is_empty());
        for (i, sum) in data.chunks_exact(4).enumerate() {
            let old = all.insert(key.offset + i as u64 * SECTOR, sum.try_into().unwrap());
            assert!(old.is_none(), "items overlap at {key}");
        }
        cursor.next().unwrap();
    }
    all
}

/// Counts the nodes that are asked for.
struct Counting<R>(R, Cell<u64>);

impl<R: NodeReader> NodeReader for Counting<R> {
    fn node(&self, expect: &btrfs_disk::Expect) -> Result<Arc<btrfs_disk::Node>> {
        self.1.set(self.1.get() + 1);
        self.0.node(expect)
    }
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }
}

/// A tree with an item of one sector at every second sector of so many.
fn spread(count: u64) -> (DirtyNodes, TreeRoot) {
    let (geometry, generation) = (geometry(), Generation(7));
    let blank = btrfs_tree::Blank(geometry);
    let (mut dirty, mut sink) = (DirtyNodes::new(), Addresses(1 << 30));
    let root = btrfs_tree::new_tree(&geometry, &mut dirty, &mut sink, generation, TreeId::CSUM)
        .expect("an empty tree");
    let landed = (0..count).map(|i| (Logical(2 * i * SECTOR), vec![1; 4].into())).collect();
    let fate = Obsolete { freed: &[], stillborn: &[], stale: &[] };
    let edits = edits(&dirty.over(&blank), &root, &FORMAT, &landed, &fate).expect("edits");
    let root = btrfs_tree::apply(&blank, &mut dirty, &mut sink, generation, &root, edits)
        .expect("a full tree");
    (dirty, root)
}

/// Nodes that it takes to delete all of `count` items apart, and to put some behind them.
fn nodes_to_clear(count: u64) -> u64 {
    let (dirty, root) = spread(count);
    let blank = btrfs_tree::Blank(geometry());
    let reader = Counting(dirty.over(&blank), Cell::new(0));
    let extent = |i| Extent { logical: Logical(2 * i * SECTOR), len: SECTOR };
    let freed: Vec<Extent> = (0..count).map(extent).collect();
    let landed = (count..count + 100).map(|i| (extent(i).logical, vec![2; 4].into())).collect();
    let fate = Obsolete { freed: &freed, stillborn: &[], stale: &[] };
    let edits = edits(&reader, &root, &FORMAT, &landed, &fate).expect("edits");
    let deleted = edits.iter().filter(|(_, edit)| matches!(edit, Edit::Delete)).count();
    assert_eq!(deleted as u64, count);
    assert_eq!(edits.len() as u64, count + 100);
    reader.1.get()
}

/// An ordinary `rm` of many small files: dead ranges that do not touch, and nothing alive between. Each is
/// looked for once, however many were deleted in front of it.
#[test]
fn what_is_deleted_is_passed_over_once() {
    let (few, many) = (nodes_to_clear(200), nodes_to_clear(2000));
    assert!(many <= 2 * 10 * few, "{few} nodes for 200 ranges, {many} for 2000");
}

/// Sums that give way to landed ones make room for them in the item in front.
#[test]
fn a_run_in_the_place_of_deleted_sums_goes_on_in_front() {
    let (mut dirty, root) = spread(2);
    let blank = btrfs_tree::Blank(geometry());
    let extent = |sector, len| Extent { logical: Logical(sector * SECTOR), len: len * SECTOR };
    // An item of the sectors 0 and 1, one of sector 2.
    let landed: BTreeMap<_, Box<[u8]>> = [(Logical(SECTOR), vec![3; 4].into())].into();
    let fate = Obsolete { freed: &[], stillborn: &[], stale: &[] };
    let first = edits(&dirty.over(&blank), &root, &FORMAT, &landed, &fate).expect("edits");
    let mut sink = Addresses(1 << 31);
    let root = btrfs_tree::apply(&blank, &mut dirty, &mut sink, Generation(7), &root, first)
        .expect("a tree");
    let landed: BTreeMap<_, Box<[u8]>> = [(Logical(2 * SECTOR), vec![4; 8].into())].into();
    let stale = [extent(2, 1)];
    let fate = Obsolete { freed: &[], stillborn: &[], stale: &stale };
    let edits = edits(&dirty.over(&blank), &root, &FORMAT, &landed, &fate).expect("edits");
    let root =
        btrfs_tree::apply(&blank, &mut dirty, &mut sink, Generation(7), &root, edits).expect("one");
    let reader = dirty.over(&blank);
    let mut cursor = Cursor::new(&reader, &root);
    cursor.first().expect("an item");
    let item = cursor.item().map(|(key, sums)| (key.offset, sums.to_vec()));
    assert_eq!(item, Some((0, [[1; 4], [3; 4], [4; 4], [4; 4]].concat())));
}
