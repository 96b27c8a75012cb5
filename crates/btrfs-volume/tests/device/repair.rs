//! Damaged copies: answered from another one, rewritten where that is allowed.

use crate::common;
use blockdev::Sticky;
use blocksim::Hooked;
use btrfs_disk::ids::block_group;
use btrfs_disk::items::RootItem;
use btrfs_disk::{DamageKind, Error, Expect, Generation, Logical, Physical, Superblock, TreeId};
use btrfs_volume::{OpenOptions, Volume};
use common::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FIRST: u64 = 64 << 10;
const SECOND: u64 = 64 << 20;

fn expect_root(volume: &Volume) -> Expect {
    let sb = volume.superblock();
    Expect {
        logical: sb.fields.root,
        level: sb.fields.root_level,
        generation: Some(sb.fields.generation),
        owner: Some(TreeId::ROOT),
        first_key: None,
    }
}

fn physical(volume: &Volume, logical: Logical) -> Vec<Physical> {
    let chunk = volume.chunk(logical).expect("mapped");
    chunk.stripes.iter().map(|(_, p)| Physical(p.0 + logical.0 - chunk.logical.0)).collect()
}

#[test]
fn each_superblock_copy_may_be_damaged_and_a_commit_mends_it() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    for damaged in [FIRST, SECOND] {
        let path = scratch.mkfs("image", 128 * MIB, &[]);
        let clean = super_at(&path, damaged);
        flip(&path, damaged + 300);
        let volume = open(&path).expect("another copy answers");
        assert_eq!(volume.read_only_reason(), None);
        let mut sb = (*volume.superblock()).clone();
        assert!(same(&sb, &clean), "both copies said the same");
        sb.fields.generation = Generation(sb.fields.generation.0 + 1);
        volume.commit_superblock(sb.clone()).expect("commit");
        assert!(same(&volume.superblock(), &sb));
        drop(volume);
        for at in [FIRST, SECOND] {
            assert!(same(&super_at(&path, at), &sb), "copy at {at}");
        }
    }
}

fn super_at(path: &Path, at: u64) -> Superblock {
    Superblock::parse(&read_bytes(path, at, 4096), at).expect("valid copy")
}

/// Equal but for what each copy says of itself.
fn same(a: &Superblock, b: &Superblock) -> bool {
    let bare = |sb: &Superblock| {
        let mut sb = sb.clone();
        (sb.fields.csum, sb.fields.bytenr) = ([0; 32], 0);
        sb
    };
    bare(a) == bare(b)
}

fn generation_chosen(path: &Path) -> u64 {
    open(path).expect("opens").superblock().generation().0
}

/// By no more than what a failed flush explains.
#[test]
fn the_newest_copy_of_the_same_volume_wins() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &[]);
    let generation = generation_chosen(&path);
    let second = |by: &dyn Fn(&mut Superblock)| {
        edit_super(&path, SECOND, by);
        generation_chosen(&path) - generation
    };
    for (ahead, wins) in [(1, true), (2, true), (3, false), (1000, false)] {
        let chosen = second(&|sb| sb.fields.generation = Generation(generation + ahead));
        assert_eq!(chosen, if wins { ahead } else { 0 }, "{ahead} ahead");
    }
    // An older one does not, and neither does the newer one of another volume.
    assert_eq!(second(&|sb| sb.fields.generation = Generation(1)), 0);
    let foreign = second(&|sb| {
        sb.fields.generation = Generation(generation + 1);
        sb.fields.fsid = [7; 16];
    });
    assert_eq!(foreign, 0);
    // Where the first one says nothing there is nothing to hold it against.
    edit_super(&path, SECOND, |sb| {
        sb.fields.fsid = super_at(&path, FIRST).fields.fsid;
        sb.fields.generation = Generation(generation + 7);
    });
    flip(&path, FIRST + 300);
    assert_eq!(generation_chosen(&path), generation + 7);
}

/// An older and smaller state of a volume was put back, sparsely: what lies behind it is of a later day.
#[test]
fn a_copy_behind_the_end_that_the_first_one_tells_is_left_over() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &["--mixed", "-b", "48M"]);
    let first = super_at(&path, FIRST);
    assert_eq!(first.fields.total_bytes, 48 * MIB);
    for ahead in [1, 100] {
        let mut later = first.clone();
        later.fields.generation.0 += ahead;
        (later.fields.total_bytes, later.fields.dev_item.total_bytes) = (128 * MIB, 128 * MIB);
        let later = later.to_bytes(SECOND).expect("known checksum");
        write_bytes(&path, SECOND, &later);
        let volume = open(&path).expect("opens");
        assert!(same(&volume.superblock(), &first), "{ahead} ahead");
        volume.mend_superblocks().expect("nothing to mend");
        assert!(same(&super_at(&path, FIRST), &first) && read_bytes(&path, SECOND, 4096) == later);
    }
}

#[test]
fn a_wiped_first_copy_leaves_the_volume_readable_but_unwritten() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &[]);
    write_bytes(&path, FIRST, &[0; 4096]);
    let volume = open(&path).expect("the second copy answers");
    assert!(volume.read_only_reason().expect("reason").contains("wiped"));
    assert!(volume.read_node(&expect_root(&volume)).is_ok());
    assert!(matches!(
        volume.commit_superblock((*volume.superblock()).clone()),
        Err(Error::ReadOnly(_))
    ));
    drop(volume);
    write_bytes(&path, SECOND, &[0; 4096]);
    assert!(open(&path).is_err());
}

#[test]
fn both_copies_damaged_is_a_typed_error() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &[]);
    flip(&path, FIRST + 500);
    flip(&path, SECOND + 500);
    let error = open(&path).map(|_| ()).expect_err("refused");
    assert!(matches!(error, Error::Corrupt(_)));
    assert!(error.to_string().contains("65536 fails its checksum"), "{error}");
}

#[test]
fn a_damaged_copy_of_a_node_is_rewritten() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    for node_size in ["4096", "16384", "65536"] {
        for mirror in 0..2 {
            let path = scratch.mkfs("image", 128 * MIB, &["-m", "dup", "-n", node_size]);
            let volume = open(&path).expect("opens");
            let (expect, size) = (expect_root(&volume), volume.geometry().node_size as usize);
            let copies = physical(&volume, expect.logical);
            assert_eq!(copies.len(), 2);
            let clean = read_bytes(&path, copies[0].0, size);
            assert!(clean == read_bytes(&path, copies[1].0, size));
            drop(volume);
            flip(&path, copies[mirror].0 + size as u64 - 1);

            let readonly = open_read_only(&path).expect("opens");
            readonly.read_node(&expect).expect("a good copy");
            drop(readonly);
            assert!(read_bytes(&path, copies[mirror].0, size) != clean, "ro mounts do not repair");

            let volume = open(&path).expect("opens");
            let node = volume.read_node(&expect).expect("a good copy");
            assert!(node.bytes() == clean);
            let counters = volume.counters();
            drop(volume);
            // The first copy answers, so only damage in it is noticed here.
            assert_eq!(counters.repairs, 1 - mirror as u64);
            assert_eq!(counters.checksum_errors > 0, mirror == 0);
            assert_eq!(read_bytes(&path, copies[mirror].0, size) == clean, mirror == 0);
        }
    }
}

/// What the root tree says of the roots of trees, by ascending address.
fn expect_trees(volume: &Volume) -> Vec<Expect> {
    let root = volume.read_node(&expect_root(volume)).expect("root tree");
    let items = root.items().filter(|(key, _)| key.kind == btrfs_disk::key::kind::ROOT_ITEM);
    let mut all: Vec<_> = items
        .map(|(key, data)| {
            let item = RootItem::parse(data).expect("a root item");
            let (generation, owner) = (Some(item.generation), Some(TreeId(key.objectid)));
            Expect { logical: item.bytenr, level: item.level, generation, owner, first_key: None }
        })
        .collect();
    all.sort_by_key(|expect| expect.logical);
    all
}

#[test]
fn of_nodes_that_are_read_together_a_damaged_copy_is_rewritten() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &["-m", "dup"]);
    let volume = open(&path).expect("opens");
    let trees = expect_trees(&volume);
    let one = |expect: &Expect| volume.read_node(expect).expect("a node");
    let clean: Vec<_> = trees.iter().map(one).collect();
    let bad = physical(&volume, trees[trees.len() / 2].logical)[0];
    drop(volume);
    flip(&path, bad.0 + 200);
    let volume = open(&path).expect("opens");
    let before = volume.counters();
    let nodes = volume.read_nodes(&trees).expect("good copies");
    let after = volume.counters();
    assert!(nodes.iter().zip(&clean).all(|(node, clean)| node.bytes() == clean.bytes()));
    assert_eq!(nodes.len(), clean.len());
    assert_eq!(after.repairs - before.repairs, 1);
    // Of the bad one both copies, and what is looked at again before it is rewritten.
    let (reads, single) = (after.reads - before.reads, 4);
    assert!(reads < trees.len() as u64 + single, "{reads} reads of {} nodes", trees.len());
}

#[test]
fn a_chunk_tree_copy_damaged_is_repaired_while_opening() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &[]);
    let volume = open(&path).expect("opens");
    let root = volume.superblock().fields.chunk_root;
    let copies = physical(&volume, root);
    drop(volume);
    let clean = read_bytes(&path, copies[0].0, 16384);
    write_bytes(&path, copies[0].0, &[0xA5; 16384]);
    assert_eq!(open(&path).expect("opens").counters().repairs, 1);
    assert!(read_bytes(&path, copies[0].0, 16384) == clean);
}

#[test]
fn a_node_without_a_good_copy_names_its_address() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &["-m", "dup"]);
    let volume = open(&path).expect("opens");
    let expect = expect_root(&volume);
    for at in physical(&volume, expect.logical) {
        flip(&path, at.0 + 200);
    }
    let error = volume.read_node(&expect).expect_err("no copy is good");
    let Error::Corrupt(corrupt) = &error else { panic!("{error}") };
    assert_eq!(corrupt.logical, Some(expect.logical));
    assert_ne!(corrupt.kind, DamageKind::Content);
    assert!(error.to_string().contains(&expect.logical.to_string()), "{error}");
    let counters = volume.counters();
    assert_eq!((counters.checksum_errors, counters.unrecoverable, counters.repairs), (2, 1, 0));
}

#[test]
fn a_node_from_another_time_or_place_is_no_copy() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let volume = open(&scratch.mkfs("image", 128 * MIB, &["-m", "dup"])).expect("opens");
    let expect = expect_root(&volume);
    let later = Expect { generation: Some(Generation(99)), ..expect };
    assert!(matches!(volume.read_node(&later), Err(Error::Corrupt(_))));
    let higher = Expect { level: expect.level + 1, ..expect };
    assert!(matches!(volume.read_node(&higher), Err(Error::Corrupt(_))));
    let nowhere = Expect { logical: Logical(1 << 50), ..expect };
    assert!(matches!(volume.read_node(&nowhere), Err(Error::Corrupt(_))));
    assert_eq!(volume.counters().repairs, 0, "nothing was rewritten");
}

const SECTOR: usize = 4096;

/// A volume with DUP data, and 8 sectors of content written through it.
fn with_data(scratch: &Scratch, csum: &str) -> (PathBuf, Volume, Logical, Vec<u8>, Vec<u8>) {
    let path = scratch.mkfs("image", 256 * MIB, &["-d", "dup", "--csum", csum]);
    let volume = open(&path).expect("opens");
    let chunks = volume.chunks();
    let chunk = chunks.iter().find(|c| c.flags & block_group::DATA != 0).expect("data chunk");
    let at = chunk.logical.offset(1 << 20);
    let content: Vec<u8> = (0..8 * SECTOR).map(|i| (i / 7 % 251) as u8).collect();
    volume.write(at, &[&content[..SECTOR], &content[SECTOR..]]).expect("write");
    let csum = volume.geometry().csum;
    let sums =
        content.chunks(SECTOR).flat_map(|s| csum.digest(s)[..csum.size()].to_vec()).collect();
    (path, volume, at, content, sums)
}

#[test]
fn damaged_sectors_of_data_are_answered_and_rewritten_one_by_one() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    for csum in ["crc32c", "xxhash", "sha256", "blake2"] {
        let (path, volume, at, content, sums) = with_data(&scratch, csum);
        let copies = physical(&volume, at);
        for copy in &copies {
            assert!(read_bytes(&path, copy.0, content.len()) == content, "both mirrors");
        }
        // Different sectors in each copy: no copy is whole, together they are.
        flip(&path, copies[0].0 + 2 * 4096 + 5);
        flip(&path, copies[0].0 + 7 * 4096 + 4095);
        flip(&path, copies[1].0 + 4096);
        let mut buf = vec![0; content.len()];
        volume.read_data(at, &mut buf, Some(&sums)).expect("every sector has a good copy");
        assert!(buf == content);
        assert_eq!(volume.counters().repairs, 2);
        assert!(read_bytes(&path, copies[0].0, content.len()) == content);
        // Without sums nothing is noticed, and nothing repaired.
        flip(&path, copies[0].0);
        volume.read_data(at, &mut buf, None).expect("unverified");
        assert!(buf != content);
        assert_eq!(volume.counters().repairs, 2);
    }
}

#[test]
fn data_without_a_good_copy_is_never_returned() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let (path, volume, at, content, sums) = with_data(&scratch, "crc32c");
    for copy in physical(&volume, at) {
        flip(&path, copy.0 + 3 * 4096);
    }
    let mut buf = vec![0; content.len()];
    let error = volume.read_data(at, &mut buf, Some(&sums)).expect_err("sector 3 is lost");
    let Error::Corrupt(corrupt) = error else { panic!("{error}") };
    assert_eq!((corrupt.kind, corrupt.copy), (DamageKind::Content, Some(0)));
    assert_eq!(corrupt.logical, Some(at.offset(3 * 4096)));
    let bad = &buf[3 * SECTOR..4 * SECTOR];
    assert!(*bad == [0; SECTOR], "no byte that failed its checksum stays in the buffer");
    volume.read_data(at.offset(4 * 4096), &mut buf[..SECTOR], Some(&sums[16..20])).expect("good");
}

#[test]
fn a_range_across_a_chunks_end_is_refused() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let (_path, volume, at, _, _) = with_data(&scratch, "crc32c");
    let chunk = volume.chunk(at).expect("mapped");
    let last = Logical(chunk.end() - 4096);
    let mut buf = vec![0; 2 * SECTOR];
    assert!(matches!(volume.read_data(last, &mut buf, None), Err(Error::Corrupt(_))));
    assert!(matches!(volume.write(last, &[&buf]), Err(Error::Corrupt(_))));
    volume.read_data(last, &mut buf[..SECTOR], None).expect("inside");
    assert!(matches!(volume.read_data(at, &mut buf, Some(&[0; 4])), Err(Error::Corrupt(_))));
}

#[test]
fn unreadable_sectors_are_answered_by_the_other_mirror() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let (path, volume, at, content, sums) = with_data(&scratch, "xxhash");
    let copies = physical(&volume, at);
    drop(volume);
    let bad = copies[0].0 + 4096..copies[0].0 + 8192;
    let dev = Arc::new(Sticky::new(Hooked { below: device(&path), hook: Faulty(bad) }));
    let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
    for sums in [Some(&sums[..]), None] {
        let mut buf = vec![0; content.len()];
        volume.read_data(at, &mut buf, sums).expect("the other mirror");
        assert!(buf == content);
    }
    let counters = volume.counters();
    assert!(counters.read_errors > 0);
    assert_eq!(counters.unrecoverable, 0);
    // That a bad sector takes no repair either is no reason to give the device up.
    assert!(counters.write_errors > 0, "it was tried");
    assert_eq!(dev.failure(), None);
    volume.write(at.offset(1 << 20), &[&content]).expect("elsewhere");
    assert!(volume.write(at, &[&content]).is_err());
    assert!(dev.failure().is_some());
}

#[test]
fn superblock_copies_inside_chunks_are_never_written_over() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 256 * MIB, &["-m", "dup"]);
    let volume = open(&path).expect("opens");
    let covering: Vec<_> =
        volume.chunks().into_iter().filter(|c| !c.super_ranges().is_empty()).collect();
    assert!(!covering.is_empty(), "some chunk covers 64 MiB");
    let before = read_bytes(&path, SECOND, 4096);
    for chunk in covering {
        for (at, len) in chunk.super_ranges() {
            assert_eq!(len, 64 << 10);
            for start in [at.0 - 4096, at.0, at.0 + len - 4096] {
                let refused = volume.write(Logical(start), &[&[0; 8192]]);
                assert!(matches!(refused, Err(Error::Corrupt(_))), "{start}");
            }
            volume.discard(Logical(at.0 - 8192), len + 16384).expect("discard around it");
        }
    }
    assert!(read_bytes(&path, SECOND, 4096) == before);
}
