//! What one structure claims of another's: device items, subvolumes' entries, and trees that
//! claim each other's blocks and extents. `btrfs check` must complain, too, but where said.

use crate::common;
use btrfs_check::FindingKind as Kind;
use btrfs_disk::ids::DEV_ITEMS_OBJECTID;
use btrfs_disk::items::{DevItem, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::node::{HEADER_SIZE, KEY_PTR_SIZE};
use btrfs_disk::{Key, TreeId};
use common::{Recipe, Scratch, assert_sound, copy, listing, make, ours, ready, theirs};
use fuzzing::patch::Patch;

const FS: TreeId = TreeId::FS;

type Case = (&'static str, bool, fn(&Patch), fn(&Kind) -> bool);

/// The two subvolumes that `MORE` makes.
fn two(patch: &Patch) -> (TreeId, TreeId) {
    let subvolume = |path: &str| {
        let key = Key::new(256, kind::DIR_ITEM, btrfs_disk::checksum::name_hash(path.as_bytes()));
        let (_, data) = patch.find(FS, key).expect("entry");
        let entry = btrfs_disk::items::DirItem::iter(&data).flatten().next().expect("entry");
        TreeId(entry.location.objectid)
    };
    (subvolume("one"), subvolume("two"))
}

const MORE: &str = "btrfs -q subvolume create one; btrfs -q subvolume create two
    for s in one two; do for i in $(seq 60); do head -c 5000 /dev/urandom > $s/f$i; done; done";

fn file_extent(patch: &Patch, tree: TreeId) -> (Key, Vec<u8>) {
    patch.some(tree, |key, data| key.kind == kind::EXTENT_DATA && data.len() == 53)
}

fn edit_root_item(patch: &Patch, tree: TreeId, edit: fn(&mut RootItem)) {
    patch.edit_as::<RootItem>(TreeId::ROOT, Key::new(tree.0, kind::ROOT_ITEM, 0), edit);
}

fn edit_device(patch: &Patch, edit: fn(&mut DevItem)) {
    patch.edit_as(TreeId::CHUNK, Key::new(DEV_ITEMS_OBJECTID, kind::DEV_ITEM, 1), edit);
}

const CASES: &[Case] = &[
    (
        "a device of another volume",
        true,
        |p| edit_device(p, |item| item.fsid[0] ^= 1),
        |k| matches!(k, Kind::DeviceItemBad { .. }),
    ),
    (
        "a device that is larger than the superblock says",
        true,
        |p| edit_device(p, |item| item.total_bytes += 1 << 30),
        |k| matches!(k, Kind::DeviceItemBad { .. }),
    ),
    (
        "more devices counted than there are",
        true,
        |p| p.edit_super(|sb| sb.fields.num_devices = 3),
        |k| matches!(k, Kind::SuperNumDevices { stored: 3, counted: 1 }),
    ),
    (
        "a subvolume's entry says that it is a file",
        true,
        |p| {
            let key = Key::new(256, kind::DIR_ITEM, btrfs_disk::checksum::name_hash(b"one"));
            p.edit(FS, key, |data| data[29] = 1);
        },
        |k| matches!(k, Kind::DirEntryDiffers { .. }),
    ),
    (
        "another root directory",
        true,
        |p| edit_root_item(p, FS, |root| root.root_dirid = 257),
        |k| matches!(k, Kind::RootBad { .. }),
    ),
    (
        "an extent shorter in memory than its range",
        true,
        |p| {
            let (key, _) = file_extent(p, FS);
            p.edit(FS, key, |data| data[8..16].fill(0));
        },
        |k| matches!(k, Kind::FileExtentBad { .. }),
    ),
    (
        "a node with flags that mean nothing",
        false,
        |p| p.edit_root(FS, |bytes| bytes[57] |= 4),
        |k| matches!(k, Kind::NodeFlags { flags: 1024 }),
    ),
    (
        "a file that claims another tree's extent",
        true,
        |p| {
            let (one, two) = two(p);
            let (_, other) = file_extent(p, two);
            let (key, _) = file_extent(p, one);
            p.edit(one, key, |data| data[21..37].copy_from_slice(&other[21..37]));
        },
        |k| matches!(k, Kind::ReferenceMissing { .. }),
    ),
    (
        "a tree that claims another tree's leaf",
        true,
        |p| {
            // A parent is no older than its child, and the second was written last.
            let (two, one) = two(p);
            let slot = HEADER_SIZE..HEADER_SIZE + KEY_PTR_SIZE;
            let other = p.root_bytes(two)[slot.clone()].to_vec();
            let generation = u64::from_le_bytes(other[25..33].try_into().expect("8"));
            p.edit_root(one, |bytes| {
                assert!(u64::from_le_bytes(bytes[80..88].try_into().expect("8")) >= generation);
                assert_eq!(bytes[HEADER_SIZE..HEADER_SIZE + 17], other[..17], "the same first key");
                bytes[slot].copy_from_slice(&other);
            });
        },
        |k| matches!(k, Kind::ReferenceMissing { .. }),
    ),
];

#[test]
fn claims_of_others() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("claims");
    let base = scratch.path("base");
    make(&base, &Recipe { mkfs: "-n 4096", after: MORE, ..Recipe::default() });
    assert_sound(&base, "claims", false);
    let mut failures = String::new();
    for (name, complains, damage, found) in CASES {
        let image = scratch.path("case");
        copy(&base, &image);
        damage(&Patch::new(&image));
        let report = ours(&image, false);
        if !report.findings.iter().any(|f| found(&f.kind)) {
            failures += &format!("{name}: not found, but\n{}", listing(&report));
        }
        let (content, said) = theirs(&image);
        if content == *complains {
            failures += &format!("{name}: btrfs check content: {content}\n{said}");
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// A superblock that says 0 bytes is a damaged one, and not none.
#[test]
fn a_volume_of_no_bytes_is_damaged() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("no-bytes");
    let image = scratch.path("image");
    make(&image, &Recipe::default());
    let patch = Patch::new(&image);
    patch.edit_super(|sb| sb.fields.total_bytes = 0);
    let device = blockdev::FileDevice::open(&image, true, true).expect("image opens");
    let options = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let error = btrfs_volume::Volume::open(std::sync::Arc::new(device), options).err();
    let error = error.expect("refused").to_string();
    assert!(error.contains("damaged") && error.contains("volume of 0 bytes"), "{error}");
}
