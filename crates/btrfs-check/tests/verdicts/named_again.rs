//! Trees that a stranger lets begin at one node many times, or that share one: what the check reads and says of them
//! goes with the nodes that there are, not with the names that they have.

use crate::common;
use btrfs_check::{CheckOptions, FindingKind, Report, check};
use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::items::{FileExtent, FileExtentKind, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::{Expect, Key, LeafItem, Logical, NodeIdentity, TreeId, build};
use common::{Scratch, copy, listing, mkfs_btrfs, mounted, open, ours, ready};
use fuzzing::patch::Patch;
use std::path::Path;

/// What the check says, and how often it reads.
fn counted(image: &Path) -> (Report, u64) {
    let volume = open(image);
    let before = volume.counters().reads;
    let report = check(volume.clone(), &CheckOptions::default()).expect("the check runs");
    (report, volume.counters().reads - before)
}

/// A volume with a log tree of several leaves.
fn logged(scratch: &Scratch) -> std::path::PathBuf {
    let image = scratch.path("image");
    mkfs_btrfs(&image, "512M", "mkfs.btrfs");
    let script = "set -e; for i in $(seq 400); do echo $i > file-$i; done; sync -f .
        for i in $(seq 400); do echo more >> file-$i; done; sync file-*
        cp --sparse=always $image $image.log";
    mounted(&image, "noatime,commit=300", script);
    scratch.path("image.log")
}

/// Fills the leaf of log roots with more names of its first tree. How many.
fn name_log_again(image: &Path) -> usize {
    let volume = open(image);
    let sb = volume.superblock().fields;
    let expect =
        |logical, level| Expect { logical, level, generation: None, owner: None, first_key: None };
    let leaf = volume.read_node(&expect(sb.log_root, sb.log_root_level)).expect("log roots");
    assert!(leaf.is_leaf() && leaf.len() == 1, "one log tree");
    let (key, item) = leaf.items().next().map(|(key, data)| (key, data.to_vec())).expect("one");
    let root = RootItem::parse(&item).expect("a root");
    assert!(root.level > 0, "a log of several leaves");
    let more = leaf.free_space() / (item.len() + 25);
    let keys = (0..=more as u64).map(|i| Key { offset: key.offset + i, ..key });
    let items: Vec<_> = keys.map(|key| LeafItem { key, data: &item }).collect();
    let (logical, generation, owner) = (leaf.logical(), leaf.generation(), leaf.owner());
    let identity = NodeIdentity { logical, generation, owner };
    let mut bytes = build::leaf(volume.geometry(), &identity, &items).bytes().to_vec();
    bytes[56..64].copy_from_slice(&leaf.bytes()[56..64]); // flags
    volume.geometry().csum.seal(&mut bytes);
    Patch::new(image).write(logical, &bytes, None);
    more
}

#[test]
fn a_log_tree_is_read_once() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("log-again");
    let image = logged(&scratch);
    let (report, reads) = counted(&image);
    assert!(report.findings.is_empty(), "{}", listing(&report));
    assert!(report.totals.log_blocks > 4, "{} blocks", report.totals.log_blocks);
    let more = name_log_again(&image);
    let (report, again) = counted(&image);
    assert!(more > 20 && again <= reads + 4, "{reads} reads, and {again} with {more} names more");
    let placed = |f: &&btrfs_check::Finding| matches!(f.kind, FindingKind::NodePlacement { .. });
    assert_eq!(report.findings.iter().filter(placed).count(), more, "{}", listing(&report));
}

/// As a balance makes them of subvolumes, but all of one.
#[test]
fn below_a_relocation_root_nothing_is_read_again() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("relocation-again");
    let image = scratch.path("image");
    mkfs_btrfs(&image, "512M", "mkfs.btrfs -n 65536");
    mounted(&image, "noatime", "for i in $(seq 4000); do echo $i > file-number-$i; done");
    let patch = Patch::new(&image);
    let (key, item) = patch.find(TreeId::ROOT, Key::new(5, kind::ROOT_ITEM, 0)).expect("the root");
    assert_eq!((key.objectid, RootItem::parse(&item).expect("a root").level), (5, 1));
    let reads = counted(&image).1;
    const NAMES: u64 = 60;
    patch.edit_leaf(TreeId::ROOT, Key::new(TreeId::RELOC.0, kind::ROOT_ITEM, 0), |items| {
        let at = items.partition_point(|(key, _)| key.objectid < TreeId::RELOC.0);
        let key = |i| Key::new(TreeId::RELOC.0, kind::ROOT_ITEM, 1000 + i);
        items.splice(at..at, (0..NAMES).map(|i| (key(i), item.clone())));
    });
    let (report, again) = counted(&image);
    assert!(again <= reads + NAMES + 4, "{reads} reads, and {again} with {NAMES} names more");
    assert!(!report.is_clean(), "nobody counts these references");
}

/// The leaf is the same for all snapshots, and so is what is odd about it.
#[test]
fn what_snapshots_share_is_told_once() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("shared-unwritten");
    let image = scratch.path("image");
    mkfs_btrfs(&image, "512M", "mkfs.btrfs -n 4096");
    let script = "for i in $(seq 900); do echo $i > file-$i; done; fallocate -l 1M early
        for i in $(seq 900); do echo $i > later-$i; done; sync -f .
        for i in 1 2 3 4 5; do btrfs -q subvolume snapshot . snap-$i; done";
    mounted(&image, "noatime", script);
    let odd = scratch.path("odd");
    copy(&image, &odd);
    let patch = Patch::new(&odd);
    let extent = patch.items(TreeId::FS).into_iter().find_map(|(_, data)| unwritten(&data));
    let at = extent.expect("a preallocated extent").0;
    let key = Key::new(EXTENT_CSUM_OBJECTID, kind::EXTENT_CSUM, at);
    patch.insert(TreeId::CSUM, key, &[0; 4]);
    let report = ours(&odd, false);
    let kinds: Vec<_> = report.findings.iter().map(|f| (f.logical, f.kind.code())).collect();
    assert_eq!(kinds, [(Some(Logical(at)), "csum-unwritten")]);
}

/// Where the preallocated extent is that the item of a file refers to.
fn unwritten(data: &[u8]) -> Option<Logical> {
    match FileExtent::parse(data) {
        Ok(FileExtent::Extent { kind: FileExtentKind::Prealloc, fields, .. })
            if data.len() == 53 && fields.num_bytes == 1 << 20 =>
        {
            Some(fields.disk_bytenr)
        }
        _ => None,
    }
}
