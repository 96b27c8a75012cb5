//! Quotas in commits made by hand: snapshots, groups above them, subvolumes dropped in steps.
//! `btrfs check --qgroup-report` counts the same, and a rescan by the kernel changes nothing.

use crate::common;
use btrfs_disk::TreeId;
use btrfs_space::{DropState, Space};
use common::derive::{assert_space_true, assert_true};
use common::edit::{Commit, Dice};
use common::random::{random_commits, random_op};
use common::{Image, Opened, with_kernel};
use std::process::Command;

/// What the quota tree says of groups, without what every commit changes.
fn numbers(image: &Image) -> Vec<String> {
    let wanted = ["key (", "referenced", "exclusive"];
    let dump = image.dump(8);
    let lines = dump.lines().map(str::trim).filter(|l| wanted.iter().any(|word| l.contains(word)));
    let place = |line: &str| line.split(" itemoff").next().unwrap_or_default().to_owned();
    lines
        .map(place)
        .map(|line| line.split_once(" key").map_or(line.clone(), |l| l.1.into()))
        .collect()
}

/// What the status item says.
fn status(image: &Image) -> String {
    let dump = image.dump(8);
    let status = dump.lines().find(|line| line.contains(" scan ")).unwrap_or("no status item");
    status.trim().to_owned()
}

/// Where a rescan is that the status tells of.
fn scanned(status: &str) -> u64 {
    assert!(status.contains("SCANNING"), "{status}");
    let place = status.split(" scan ").nth(1).and_then(|rest| rest.split(' ').next());
    place.and_then(|place| place.parse().ok()).expect(status)
}

fn report(image: &Image) -> String {
    let mut command = Command::new("btrfs");
    let output = command.args(["check", "--readonly", "-Q"]).arg(&image.path).output();
    String::from_utf8_lossy(&output.expect("btrfs check").stdout).into_owned()
}

fn judge(image: &Image, what: &str) {
    let opened = image.open();
    assert_true(&opened);
    assert_space_true(&opened);
    drop(opened);
    image.check();
    let report = report(image);
    assert!(report.contains("Counts for qgroup id: 0/5"), "{what}: it was to count: {report}");
    assert!(!report.contains("different"), "{what}: {report}");
    let before = numbers(image);
    rescan(image, what);
    assert_eq!(before, numbers(image), "{what}: a rescan was to change nothing");
}

/// The kernel counts anew, to the end. Its scan can be stopped by what else the machine does: it says
/// so in the status item, and has then compared nothing.
fn rescan(image: &Image, what: &str) {
    let mut left = Vec::new();
    while left.len() < 5 {
        image.script("noatime", "btrfs quota rescan -w . > /dev/null");
        let status = status(image);
        if status.contains("flags ON scan") {
            return;
        }
        left.push(status);
    }
    let log = Command::new("dmesg").output().expect("dmesg");
    let log = String::from_utf8_lossy(&log.stdout);
    let said: Vec<&str> = log.lines().filter(|line| line.contains("qgroup")).collect();
    let last = &said[said.len().saturating_sub(20)..];
    panic!("{what}: no rescan of five came to its end: {left:#?}, the kernel's log: {last:#?}");
}

const FILES: &str = "btrfs quota enable .
    for i in $(seq 1 120); do head -c $((i * 311)) /dev/urandom > f$i; done
    dd if=/dev/urandom of=big bs=1M count=4 status=none; sync -f .
    for i in $(seq 0 5 100); do
        dd if=/dev/urandom of=big bs=4k count=1 seek=$i conv=notrunc status=none
    done
    btrfs -q subvolume snapshot . one; touch f1*; sync -f .
    btrfs -q subvolume snapshot one two; rm -f one/f2*; echo x >> two/f99; sync -f .
    btrfs quota rescan -w . > /dev/null";

const GROUPS: &str = "
    btrfs qgroup create 1/1 .; btrfs qgroup create 2/7 .
    btrfs qgroup assign --no-rescan 0/256 1/1 .
    btrfs qgroup assign --no-rescan 1/1 2/7 .; btrfs qgroup assign --no-rescan 0/5 2/7 .
    btrfs quota rescan -w . > /dev/null";

fn session<T>(image: &Image, work: impl FnOnce(&Opened, &Space) -> T) -> T {
    let opened = image.open();
    let space = opened.space();
    work(&opened, &space)
}

fn random(seed: u64, mkfs: &[&str], groups: bool) {
    let image = Image::new("512M", mkfs);
    image.script("noatime", FILES);
    if groups {
        image.script("noatime", GROUPS);
    }
    judge(&image, "the kernel's own");
    let mut dice = Dice(seed);
    for round in 0..6 {
        session(&image, |opened, space| random_commits(opened, space, &mut dice, 4, 30));
        judge(&image, &format!("seed {seed}, round {round}"));
    }
}

#[test]
fn random_commits_and_snapshots() {
    with_kernel(|| {
        random(0x5eed_0011, &["-n", "4096"], false);
        random(0x5eed_0012, &[], false);
    });
}

#[test]
fn random_commits_and_snapshots_in_groups() {
    with_kernel(|| {
        random(0x5eed_0013, &["-n", "4096"], true);
        random(0x5eed_0014, &[], true);
    });
}

/// A snapshot of a snapshot, and two of one subvolume, each in one commit with edits before.
#[test]
fn several_snapshots_in_one_commit() {
    with_kernel(|| {
        let image = Image::new("512M", &["-n", "4096"]);
        image.script("noatime", FILES);
        session(&image, |opened, space| {
            let mut dice = Dice(77);
            let mut commit = Commit::new(opened, space);
            let trees = [TreeId::FS, TreeId(256), TreeId(257)];
            for _ in 0..30 {
                random_op(&mut commit, trees[dice.roll(3) as usize], &trees, &mut dice);
            }
            commit.snapshot(TreeId(256), TreeId(1000), b"s1000");
            commit.finish();
        });
        judge(&image, "one");
        session(&image, |opened, space| {
            let mut commit = Commit::new(opened, space);
            commit.name_snapshot(TreeId(1001), b"s1001");
            commit.name_snapshot(TreeId(1002), b"s1002");
            commit.plant_snapshot(TreeId(256), TreeId(1001));
            commit.plant_snapshot(TreeId(257), TreeId(1002));
            commit.finish();
        });
        judge(&image, "two");
    });
}

/// `steps` commits at most; true at the end.
fn drop_in_steps(opened: &Opened, space: &Space, id: TreeId, budget: usize) {
    let mut commit = Commit::new(opened, space);
    commit.orphan(id);
    commit.finish();
    let mut state = DropState::default();
    for _ in 0..10_000 {
        let mut commit = Commit::new(opened, space);
        let done = commit.drop_tree(id, &mut state, budget);
        commit.finish();
        if done {
            return;
        }
    }
    panic!("it was to end");
}

#[test]
fn subvolumes_go_one_after_the_other() {
    with_kernel(|| {
        for (seed, groups) in [(1, false), (2, true), (3, true)] {
            let image = Image::new("512M", &["-n", "4096"]);
            image.script("noatime", FILES);
            if groups {
                image.script("noatime", GROUPS);
            }
            let mut dice = Dice(0x0bad_5eed * seed);
            session(&image, |opened, space| random_commits(opened, space, &mut dice, 9, 20));
            judge(&image, "before");
            loop {
                let opened = image.open();
                let space = opened.space();
                let ids = opened.trees().into_iter().map(|(_, _, root)| root.id);
                let left: Vec<TreeId> =
                    ids.filter(|id| id.is_subvolume() && *id != TreeId::FS).collect();
                if left.is_empty() {
                    break;
                }
                let id = left[dice.roll(left.len() as u64) as usize];
                let budget = [7, 40, 100_000][dice.roll(3) as usize];
                drop_in_steps(&opened, &space, id, budget);
                drop((space, opened));
                let gone = format!("QGROUP_INFO 0/{id})");
                assert!(!image.dump(8).contains(&gone), "its group goes with it");
                judge(&image, &format!("seed {seed}, without {id}"));
            }
        }
    });
}

/// A file of `a` has very many pieces of one extent, in leaves that `a` alone has; `b` has the extent too.
const IN_PIECES: &str = "btrfs quota enable .
    btrfs -q subvolume create a; mkdir d; touch d/x
    dd if=/dev/urandom of=a/big bs=1M count=4 status=none; sync -f .
    btrfs -q subvolume snapshot a b; sync -f .
    for i in $(seq 0 2 1023); do
        dd if=/dev/urandom of=a/big bs=4k count=1 seek=$i conv=notrunc status=none
    done
    sync -f .; btrfs quota rescan -w . > /dev/null";

/// What is in front of where a drop has come to may be anything by now: nobody looks for references there.
#[test]
fn what_a_tree_that_is_half_dropped_shares_is_counted_on() {
    with_kernel(|| {
        let image = Image::new("512M", &["-n", "4096"]);
        image.script("noatime", IN_PIECES);
        judge(&image, "the kernel's own");
        let (a, b) = (TreeId(256), TreeId(257));
        session(&image, |opened, space| {
            let mut commit = Commit::new(opened, space);
            commit.orphan(a);
            commit.finish();
            let (mut state, mut dice) = (DropState::default(), Dice(0x5eed_0031));
            for step in 0.. {
                let mut commit = Commit::new(opened, space);
                let done = commit.drop_tree(a, &mut state, 3);
                commit.finish();
                let status = status(&image);
                assert!(status.contains("flags ON scan"), "behind step {step}: {status}");
                if done {
                    assert!(step > 9, "{step} steps are few");
                    break;
                }
                // Takes what the step before has freed, and changes what both have.
                let mut commit = Commit::new(opened, space);
                for _ in 0..20 {
                    random_op(&mut commit, TreeId::FS, &[TreeId::FS, b], &mut dice);
                }
                commit.punch(b, 257, step);
                commit.finish();
            }
        });
        judge(&image, "dropped");
    });
}

/// Where more is shared than a commit may remember a rescan begins, and the numbers come right by themselves.
#[test]
fn a_tree_that_shares_too_much_leaves_the_numbers_to_a_rescan() {
    with_kernel(|| {
        let image = Image::new("512M", &["-n", "4096"]);
        image.script("noatime", FILES);
        image.script(
            "noatime",
            "mkdir d; for i in $(seq 1 4500); do cp --reflink=never f12 d/$i; done; sync -f .
             btrfs -q subvolume snapshot . three; btrfs -q subvolume snapshot . four
             btrfs quota rescan -w . > /dev/null",
        );
        let nothing = |opened: &Opened, space: &Space| Commit::new(opened, space).finish();
        let drop_one = |most: usize, id: TreeId, rescans: usize| {
            session(&image, |opened, space| {
                let mut commit = Commit::new(opened, space);
                commit.orphan(id);
                commit.finish();
                if rescans > 0 {
                    let mut commit = Commit::new(opened, space);
                    commit.begin_rescan();
                    commit.finish();
                }
                (1..rescans).for_each(|_| drop(nothing(opened, space)));
                let before = status(&image);
                let mut commit = Commit::new(opened, space);
                commit.settle.follow_at_most(most);
                assert!(commit.drop_tree(id, &mut DropState::default(), 100_000));
                commit.finish();
                [before, status(&image)]
            })
        };
        let counted = |what: &str| {
            session(&image, |opened, space| (0..9).for_each(|_| drop(nothing(opened, space))));
            let status = status(&image);
            assert!(status.contains("flags ON scan"), "{what}: {status}");
            judge(&image, what);
        };
        let [before, begun] = drop_one(10, TreeId(256), 0);
        assert!(before.contains("flags ON scan"), "{before}");
        assert!(begun.contains("SCANNING|INCONSISTENT scan"), "{begun}");
        counted("counted anew");
        let [before, again] = drop_one(10, TreeId(258), 2);
        assert!(scanned(&again) < scanned(&before), "begun anew: {before}, then {again}");
        counted("begun anew");
        // What the rescan has not come to is followed as well.
        let [before, again] = drop_one(4000, TreeId(259), 1);
        let (before, again) = (scanned(&before), scanned(&again));
        assert!(again < before + (1 << 20), "begun anew, not gone on: {before}, then {again}");
        counted("begun anew in front of most");
        let [_, status] = drop_one(10_000, TreeId(257), 0);
        assert!(status.contains("flags ON scan"), "{status}");
        judge(&image, "within the bound");
    });
}

/// Begun by us, a part of it in each commit, next to other changes; ended by us or the kernel.
#[test]
fn a_rescan_goes_on_in_steps() {
    with_kernel(|| {
        for commits in [1, 9] {
            let image = Image::new("512M", &["-n", "4096"]);
            image.script("noatime", FILES);
            image.script(
                "noatime",
                "mkdir d; for i in $(seq 1 4500); do cp --reflink=never f12 d/$i; done",
            );
            let mut dice = Dice(0x5eed_0021 + commits);
            session(&image, |opened, space| {
                let mut commit = Commit::new(opened, space);
                commit.begin_rescan();
                commit.finish();
                random_commits(opened, space, &mut dice, commits, 30);
            });
            let under_way = image.dump(8).contains("SCANNING");
            assert_eq!(under_way, commits < 9, "{commits} commits: {}", image.dump(8));
            if under_way {
                image.script("noatime", "btrfs quota rescan -W . || true");
            }
            judge(&image, "ended");
        }
    });
}
