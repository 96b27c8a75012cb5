//! Items of a quota tree that do not fit each other, beside what `btrfs check` says of them; and none of
//! these findings on what mkfs.btrfs and the kernel write.

use crate::common;
use btrfs_check::Report;
use btrfs_disk::items::QgroupLimit;
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use common::{Scratch, copy, listing, mkfs_btrfs, mounted, ours, ready, theirs};
use fuzzing::patch::Patch;
use std::path::Path;
use testkit::oracle::newer_mkfs;

const QUOTA: TreeId = TreeId::QUOTA;
/// The two subvolumes, and groups above them: the first is in 1/7, that in 2/8; 1/8 is empty.
const A: u64 = 256;
const B: u64 = 257;
const UPPER: u64 = 1 << 48 | 7;
const EMPTY: u64 = 1 << 48 | 8;
const ABSENT: u64 = 1 << 48 | 99;

const GROUPS: &str = "btrfs quota enable .; btrfs quota rescan -w . >/dev/null
    btrfs -q subvolume create a; btrfs -q subvolume create b; echo x > b/x; echo x > a/x
    for group in 1/7 1/8 2/8; do btrfs qgroup create $group .; done
    btrfs qgroup assign --no-rescan 0/256 1/7 .; btrfs qgroup assign --no-rescan 1/7 2/8 .
    btrfs qgroup limit 10M 1/7 .; btrfs quota rescan -w . >/dev/null; sync -f .";

fn info(group: u64) -> Key {
    Key::new(0, kind::QGROUP_INFO, group)
}

fn limit(group: u64) -> Key {
    Key::new(0, kind::QGROUP_LIMIT, group)
}

fn relation(from: u64, to: u64) -> Key {
    Key::new(from, kind::QGROUP_RELATION, to)
}

fn both(p: &Patch, one: u64, other: u64) {
    p.insert(QUOTA, relation(one, other), &[]);
    if one != other {
        p.insert(QUOTA, relation(other, one), &[]);
    }
}

fn limited_alone(p: &Patch) {
    p.insert(QUOTA, limit(ABSENT), &QgroupLimit::default().to_vec());
}

fn uncounted(p: &Patch) {
    p.remove(QUOTA, info(B));
    p.remove(QUOTA, limit(B));
}

fn gone(p: &Patch) {
    p.remove(QUOTA, info(UPPER));
    p.remove(QUOTA, limit(UPPER));
}

/// What it is called, what it does, the findings, whether these are notes alone, whether `btrfs check` is content.
type Case = (&'static str, fn(&Patch), &'static [&'static str], bool, bool);

const STRAY: &str = "qgroup-relation-stray";
const HALF: &str = "qgroup-relation-half";
const LEVEL: &str = "qgroup-relation-level";

const CASES: &[Case] = &[
    ("a member of what is absent", |p| both(p, A, ABSENT), &[STRAY], false, false),
    ("what is absent is a member", |p| both(p, 999, UPPER), &[STRAY], false, false),
    // The group in the middle: two relations are of it.
    ("a group that is gone", gone, &[STRAY, STRAY], false, false),
    ("half of a stray one", |p| p.insert(QUOTA, relation(A, ABSENT), &[]), &[STRAY], false, false),
    // `btrfs check` reads one half alone; `btrfs qgroup show` fails by it.
    ("the other half", |p| p.insert(QUOTA, relation(ABSENT, A), &[]), &[STRAY], false, true),
    ("a member does not say so", |p| p.remove(QUOTA, relation(A, UPPER)), &[HALF], false, false),
    ("a group does not say so", |p| p.remove(QUOTA, relation(UPPER, A)), &[HALF], false, true),
    ("a member of itself", |p| both(p, UPPER, UPPER), &[LEVEL], false, true),
    ("in one of its level", |p| both(p, UPPER, EMPTY), &[LEVEL], false, false),
    // The kernel says "inconsistent qgroup config" at mount.
    ("a limit alone", limited_alone, &["qgroup-limit-alone"], false, true),
    ("no limit", |p| p.remove(QUOTA, limit(EMPTY)), &["qgroup-limit-missing"], true, true),
    ("a subvolume without group", uncounted, &["qgroup-uncounted"], true, true),
];

/// Makes an image and runs `load` in its mount.
fn make(image: &Path, mkfs: &str, load: &str) {
    mkfs_btrfs(image, "128M", mkfs);
    mounted(image, "noatime", &format!("set -e; {load}"));
}

/// Of the items' findings; numbers are judged elsewhere.
fn codes(report: &Report) -> Vec<&'static str> {
    let codes = report.findings.iter().map(|finding| finding.kind.code());
    codes.filter(|code| !["qgroup-count", "qgroup-owned"].contains(code)).collect()
}

#[test]
fn items_that_do_not_fit_each_other() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("quota-items");
    let image = scratch.path("image");
    make(&image, "mkfs.btrfs", GROUPS);
    let sound = ours(&image, false);
    assert!(sound.findings.is_empty(), "{}", listing(&sound));
    for (name, damage, expected, notes, content) in CASES {
        let damaged = scratch.path("damaged");
        copy(&image, &damaged);
        damage(&Patch::new(&damaged));
        let report = ours(&damaged, false);
        assert_eq!(codes(&report), *expected, "{name}: {}", listing(&report));
        let (fine, said) = theirs(&damaged);
        assert_eq!((report.is_clean(), fine), (*notes, *content), "{name}: {said}");
    }
}

fn assert_none(image: &Path, what: &str) {
    let report = ours(image, false);
    assert!(report.findings.is_empty(), "{what}: {}", listing(&report));
}

const HISTORY: &str = "btrfs -q subvolume create one; btrfs -q subvolume create two
    for group in 1/1 1/2 2/1; do btrfs qgroup create $group .; done
    btrfs qgroup assign --no-rescan 1/1 2/1 .; btrfs qgroup assign --no-rescan 1/2 2/1 .
    btrfs -q subvolume snapshot -i 1/1 one three; btrfs -q subvolume create -i 1/2 four
    btrfs qgroup limit 50M four; btrfs -q subvolume snapshot four five
    echo x > three/x; echo x > five/x; sync -f .
    mount -o remount,commit=1 . # which wakes the cleaner
    btrfs -q subvolume delete three five >/dev/null; btrfs subvolume sync . >/dev/null
    btrfs qgroup remove --no-rescan 1/2 2/1 .; btrfs qgroup destroy 1/1 .
    btrfs qgroup clear-stale . >/dev/null 2>&1 || true; sync -f .";

#[test]
fn what_is_made_of_it_has_no_findings() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("quota-clean");
    let image = scratch.path("image");
    let rescanned = format!("{HISTORY}\nbtrfs quota rescan -w . >/dev/null; sync -f .");
    let enabled = format!("btrfs quota enable .; {rescanned}");
    make(&image, "mkfs.btrfs", &enabled);
    assert_none(&image, "by the kernel");
    // Its limit has bytes that were never written.
    make(&image, "mkfs.btrfs -R quota", ":");
    assert_none(&image, "by mkfs.btrfs");
    let newer = match newer_mkfs() {
        Ok(newer) => newer,
        Err(why) => testkit::skip!("{why}"),
    };
    for (feature, load) in [("quota", &rescanned[..]), ("squota", HISTORY)] {
        let image = scratch.path(feature);
        make(&image, &format!("{newer} -O {feature}"), ":");
        assert_none(&image, feature);
        make(&image, &format!("{newer} -O {feature}"), load);
        assert_none(&image, &format!("{feature} and a history"));
    }
}
