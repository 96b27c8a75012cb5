//! Volumes on which the kernel was interrupted while it moved block groups: trees of its own are left
//! in them. The next mount that writes frees these, and nothing else changes.
//!
//! The states are real ones: the image lies on an ext4, which is frozen in the midst of the
//! kernel's balance, so that a copy of it is what a crash at that moment leaves.

#[path = "../common/mod.rs"]
mod common;
mod crashes;
mod images;
mod room;

use blockdev::BlockDevice;
use btrfs_disk::items::{ExtentItemFields, FileExtent, extent_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_fs::{BtrfsFs, Caller, Defect, Delete, Injection, Options};
use common::Image;
use common::kernel::kernel;
use common::likeness::assert_like;
use fuzzing::patch::Patch;
use images::{Quotas, interrupted, populate, positions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use testkit::compare::{Rules, TreeSnapshot};
use testkit::oracle;
use vfs::FileSystem;

const MIB: u64 = 1 << 20;

fn open(device: Arc<dyn BlockDevice>) -> BtrfsFs {
    let options = Options { background: false, ..Options::default() };
    BtrfsFs::open_device(device, options).expect("open")
}

fn judge(image: &Path, expected: &TreeSnapshot, quotas: Quotas) {
    quotas.assert_sound(image);
    let seen = kernel(image, "ro,noatime,skip_balance", |m| TreeSnapshot::of_dir(m.path()));
    assert_like(expected, &seen.expect("walk the kernel's mount"), &Rules::default());
    kernel(image, "noatime,skip_balance", |mount| oracle::scrub(mount).expect("scrub"));
    quotas.assert_sound(image);
}

fn is_freed(what: &str, quotas: Quotas) {
    let image = Image::new(400 * MIB, &["-n", "4096", "-m", "single"]);
    let tree = kernel(&image.path, "noatime", |mount| populate(mount, quotas));
    let states = interrupted(&image.path, what, quotas);
    assert!(!states.is_empty(), "no state of a balance had trees of its own: this shows nothing");
    let mut copied = 0;
    for state in &states {
        let trees = positions(state, quotas).0;
        let by_the_kernel = by_the_kernel(state);
        copied += copies(state);
        let fs = open(Arc::new(common::open_device(state, false)));
        assert_eq!(fs.read_only_reason(), None);
        assert_eq!(positions(state, quotas).0, 0, "freed before anybody is served");
        println!("{trees} trees of a relocation freed");
        assert_like(&tree, &common::snapshot(&fs), &Rules::default());
        fs.sync().expect("commit");
        assert_eq!(copies(state), 0, "of copies that nobody needs nothing is left");
        assert_eq!(content_used(state), by_the_kernel, "what a mount by the kernel leaves in use");
        common::new_file(&fs, "new", &vec![3; 3 << 20]);
        let after = common::snapshot(&fs);
        fs.destroy().expect("close");
        drop(fs);
        judge(state, &after, quotas);
    }
    assert!(what != "-d" || copied > 0, "no state had copies of content: this shows nothing");
    println!("{copied} pieces of copies freed");
}

/// A full volume opens, or nothing could be deleted from it: nothing moves until there is room.
#[test]
fn what_there_is_no_room_to_free_refuses_no_mount() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(400 * MIB, &["-n", "4096", "-m", "single"]);
    let tree = kernel(&image.path, "noatime", |mount| populate(mount, Quotas::Off));
    let states = interrupted(&image.path, "-m", Quotas::Off);
    let state = states.first().expect("no state of a balance had trees of its own");
    let trees = positions(state, Quotas::Off).0;
    let injection = Injection::of(Some(Defect::NoRoomToDrop));
    let options = Options { background: false, injection, ..Options::default() };
    let device = Arc::new(common::open_device(state, false));
    let fs = BtrfsFs::open_device(device, options).expect("open");
    assert_eq!(fs.read_only_reason(), None);
    assert_like(&tree, &common::snapshot(&fs), &Rules::default());
    common::new_file(&fs, "new", &vec![3; 3 << 20]);
    let which = Delete::Name(fs.root(), b"snapshot3");
    let gone = fs.delete_subvolume(&Caller::root(), which).expect("delete");
    fs.sync_deleted(&[gone], None).expect("dropped");
    let groups = |fs: &BtrfsFs| fs.space().group_infos().iter().map(|g| g.logical).collect();
    let before: Vec<_> = groups(&fs);
    let refused = fs.balance_groups(|_| true).expect_err("no room");
    assert_eq!(refused.errno(), libc::ENOSPC, "{refused}");
    assert!(groups(&fs) == before, "something has moved");
    let after = common::snapshot(&fs);
    fs.destroy().expect("close");
    drop(fs);
    Quotas::Off.assert_sound(state);
    assert_eq!(positions(state, Quotas::Off).0, trees, "they are there still");
    let fs = open(Arc::new(common::open_device(state, false)));
    assert_eq!(positions(state, Quotas::Off).0, 0, "there is room now");
    fs.balance_groups(|_| true).expect("moves");
    fs.destroy().expect("close");
    drop(fs);
    judge(state, &after, Quotas::Off);
}

/// Kernels before about 5.16 let that tree share nodes with those of relocations, so a leaf may hold its
/// references by its address. (Made of what a newer one leaves: `btrfs check` knows it of no root.)
#[test]
fn copies_that_a_leaf_holds_by_its_address_are_freed() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(400 * MIB, &["-n", "4096", "-m", "single"]);
    let tree = kernel(&image.path, "noatime", |mount| populate(mount, Quotas::Off));
    let states = interrupted(&image.path, "-d", Quotas::Off);
    let mut shown = 0;
    for state in states.iter().filter(|state| copies(state) > 0) {
        let used = by_the_kernel(state);
        shown += held_by_leaves(state);
        let fs = open(Arc::new(common::open_device(state, false)));
        fs.sync().expect("commit");
        assert_eq!((copies(state), content_used(state)), (0, used));
        assert_like(&tree, &common::snapshot(&fs), &Rules::default());
        fs.destroy().expect("close");
        drop(fs);
        judge(state, &tree, Quotas::Off);
    }
    assert!(shown > 0, "no state had copies of content: this shows nothing");
}

/// What the tree for moving content refers to by its number its leaves refer to by their addresses from now on.
fn held_by_leaves(image: &Path) -> usize {
    let patch = Patch::new(image);
    let mut changed = 0;
    for leaf in patch.leaves(TreeId::DATA_RELOC) {
        let mut counts = BTreeMap::new();
        for (key, data) in leaf.items().filter(|(key, _)| key.kind == kind::EXTENT_DATA) {
            let item = FileExtent::parse(data).expect("an extent");
            let FileExtent::Extent { fields, .. } = item else { panic!("{key}: inline") };
            if fields.disk_bytenr.0 != 0 {
                let extent =
                    Key::new(fields.disk_bytenr.0, kind::EXTENT_ITEM, fields.disk_num_bytes);
                *counts.entry(extent).or_insert(0_u32) += 1;
            }
        }
        for (extent, count) in &counts {
            patch.edit(TreeId::EXTENT, *extent, |item| by_address(item, leaf.logical().0, *count));
        }
        let node = Key::new(leaf.logical().0, kind::METADATA_ITEM, 0);
        patch.edit_as(TreeId::EXTENT, node, |item: &mut ExtentItemFields| {
            item.flags |= extent_flags::FULL_BACKREF;
        });
        changed += counts.len();
    }
    changed
}

/// An extent item, whose references are of one kind or of the other: 28 bytes behind a type, or 12.
fn by_address(item: &mut Vec<u8>, leaf: u64, count: u32) {
    let mut rest = item.split_off(ExtentItemFields::SIZE);
    let ours = |data: &[u8]| data[1..9] == TreeId::DATA_RELOC.0.to_le_bytes();
    let (mut found, mut by_leaves) = (0, vec![(leaf, count)]);
    while let Some(&what) = rest.first() {
        let size = if what == kind::EXTENT_DATA_REF { 29 } else { 13 };
        let behind = rest.split_off(size);
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("a count"));
        let parent = u64::from_le_bytes(rest[1..9].try_into().expect("an address"));
        match what {
            kind::EXTENT_DATA_REF if ours(&rest) => found += number(25),
            kind::EXTENT_DATA_REF => item.extend_from_slice(&rest),
            _ => by_leaves.push((parent, number(9))),
        }
        rest = behind;
    }
    assert_eq!(found, count, "all of them in one leaf");
    by_leaves.sort_by_key(|(leaf, _)| std::cmp::Reverse(*leaf));
    for (leaf, count) in by_leaves {
        item.push(kind::SHARED_DATA_REF);
        item.extend_from_slice(&leaf.to_le_bytes());
        item.extend_from_slice(&count.to_le_bytes());
    }
}

/// Pieces of the copies that a relocation of content has made.
fn copies(image: &Path) -> usize {
    let items = Patch::new(image).items(TreeId::DATA_RELOC).into_iter();
    items.filter(|(key, _)| key.kind == kind::EXTENT_DATA).count()
}

/// Bytes of content that have extents.
fn content_used(image: &Path) -> u64 {
    let content = |(key, data): &(Key, Vec<u8>)| {
        let flags = ExtentItemFields::read(data.get(..ExtentItemFields::SIZE)?).ok()?.flags;
        (key.kind == kind::EXTENT_ITEM && flags & extent_flags::DATA != 0).then_some(key.offset)
    };
    Patch::new(image).items(TreeId::EXTENT).iter().filter_map(content).sum()
}

/// What is in use once the kernel has mounted it.
fn by_the_kernel(image: &Path) -> u64 {
    let copy = image.with_extension("theirs");
    let done =
        std::process::Command::new("cp").arg("--sparse=always").args([image, &copy]).status();
    assert!(done.expect("cp").success());
    kernel(&copy, "noatime,skip_balance", |_| ());
    let used = content_used(&copy);
    std::fs::remove_file(&copy).expect("remove");
    used
}

#[test]
fn trees_of_a_metadata_balance_are_freed() {
    testkit::require!(kernel_btrfs);
    is_freed("-m", Quotas::Off);
}

#[test]
fn quotas_do_not_count_them() {
    testkit::require!(kernel_btrfs);
    is_freed("-m", Quotas::Full);
}

#[test]
fn trees_of_a_data_balance_are_freed() {
    testkit::require!(kernel_btrfs);
    is_freed("-d", Quotas::Off);
}

/// They count them, for those whose nodes the balance had copied.
#[test]
fn simple_quotas_stay_right() {
    testkit::require!(kernel_btrfs);
    testkit::require!(oracle::newer_btrfs().is_ok(), "no newer btrfs-progs");
    is_freed("-m", Quotas::Simple);
    is_freed("-d", Quotas::Simple);
}
