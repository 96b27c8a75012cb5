//! What is odd, and no damage: a note at most, and a content `btrfs check`.

use crate::common;
use btrfs_check::{CheckOptions, FindingKind as Kind, Severity, check};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, Logical, TreeId};
use common::{Recipe, Scratch, assert_sound, listing, make, mounted, open, ours, ready, theirs};
use fuzzing::patch::Patch;

/// No block group comes to the addresses in front of the last one again; `btrfs check` looks at
/// the groups that there are alone.
#[test]
fn free_space_of_block_groups_that_are_gone_is_a_note() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("gone-groups");
    let image = scratch.path("image");
    let after = "sync -f .; btrfs balance start -f -m . >/dev/null";
    make(&image, &Recipe { after, ..Recipe::default() });
    assert_sound(&image, "after a balance", false);
    let patch = Patch::new(&image);
    let groups: Vec<(u64, u64)> = patch
        .items(TreeId::EXTENT)
        .iter()
        .filter(|(key, _)| key.kind == kind::BLOCK_GROUP_ITEM)
        .map(|(key, _)| (key.objectid, key.objectid + key.offset))
        .collect();
    let gap = groups.windows(2).find(|pair| pair[0].1 < pair[1].0).expect("moved on");
    let (start, len) = (gap[0].1, gap[1].0 - gap[0].1);
    // What it counts is nothing to anybody either.
    let info = [7, 0, 0, 0, 0, 0, 0, 0];
    patch.insert(TreeId::FREE_SPACE, Key::new(start, kind::FREE_SPACE_INFO, len), &info);
    patch.insert(TreeId::FREE_SPACE, Key::new(start, kind::FREE_SPACE_EXTENT, len), &[]);
    let report = ours(&image, false);
    let kinds: Vec<_> = report.findings.iter().map(|f| (f.logical, f.kind.clone())).collect();
    assert_eq!(kinds, [(Some(Logical(start)), Kind::FreeSpaceLeft)]);
    assert!(report.is_clean());
    let (content, said) = theirs(&image);
    assert!(content, "{said}");
}

/// mkfs.btrfs put an inode there once, and the name of a top directory; nothing reads them.
#[test]
fn an_inode_in_the_uuid_tree_is_no_damage() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("uuid-inode");
    let image = scratch.path("image");
    make(&image, &Recipe::default());
    for key in [Key::new(256, kind::INODE_ITEM, 0), Key::new(256, kind::INODE_REF, 256)] {
        let patch = Patch::new(&image);
        let (found, item) = patch.find(TreeId::FS, key).expect("item");
        assert_eq!(found, key);
        patch.insert(TreeId::UUID, key, &item);
        let report = ours(&image, false);
        assert!(report.is_clean(), "{}", listing(&report));
        assert!(theirs(&image).0);
    }
    mounted(&image, "noatime", "touch new; sync -f .");
}

/// As a crash between the two writes leaves it.
#[test]
fn a_stale_spare_superblock_is_a_note() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("stale");
    let image = scratch.path("image");
    make(&image, &Recipe::default());
    let patch = Patch::new(&image);
    let newest = open(&image).superblock().generation().0;
    let mut old = (*open(&image).superblock()).clone();
    old.fields.generation = btrfs_disk::Generation(newest - 1);
    let at = 64 << 20;
    patch.write_raw(at, &old.to_bytes(at).expect("superblock"));
    let report = ours(&image, false);
    let stale = Kind::SuperCopyStale { offset: at, generation: newest - 1, newest };
    assert_eq!(report.findings.len(), 1, "{}", listing(&report));
    assert!(report.findings[0].kind == stale && report.is_clean(), "{}", listing(&report));
    assert!(theirs(&image).0);
}

/// Every commit writes them anew, and the first copy is what a mount reads.
#[test]
fn spare_superblocks_are_a_note() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("spare");
    let image = scratch.path("image");
    make(&image, &Recipe::default());
    Patch::new(&image).write_raw(64 << 20, &[0; 4096]);
    let report = ours(&image, false);
    assert_eq!(report.findings.len(), 1, "{}", listing(&report));
    assert!(matches!(report.findings[0].kind, Kind::SuperCopyBad { .. }) && report.is_clean());
    // So they are where nothing is listed.
    let options = CheckOptions { max_findings: 0, ..CheckOptions::default() };
    let report = check(open(&image), &options).expect("the check runs");
    assert_eq!((report.findings.len(), report.left_off), (0, 1));
    assert!(report.is_clean() && report.count(Severity::Note) == 1);
}
