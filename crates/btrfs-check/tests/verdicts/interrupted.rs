//! Images of volumes that were cut off: in the middle of a balance, of deleting a
//! subvolume or a large file, with unlinked files still open, with a log tree. They are sound; what is
//! left over is for the next mount.

use crate::common;
use btrfs_check::{CheckOptions, FindingKind, check};
use btrfs_disk::key::kind;
use btrfs_disk::{Logical, TreeId};
use common::{Scratch, assert_sound, listing, mkfs_btrfs, mounted, open, ours, ready, sh, theirs};
use fuzzing::patch::Patch;
use std::path::Path;

/// Copies an image that is in use: superblocks first, since a commit never writes over
/// what the superblock in force leads to. Torn copies are still possible.
const LIVE_COPY: &str = r#"
live_copy() {
    dd if=$1 of=$2.super bs=4k skip=16 count=1 status=none
    dd if=$1 of=$2.spare bs=4k skip=16384 count=1 status=none
    cp --sparse=always $1 $2
    dd if=$2.super of=$2 bs=4k seek=16 count=1 conv=notrunc status=none
    dd if=$2.spare of=$2 bs=4k seek=16384 count=1 conv=notrunc status=none
    rm $2.super $2.spare
}
"#;

fn on_volume(image: &Path, mkfs: &str, script: &str) -> String {
    mkfs_btrfs(image, "1G", &format!("mkfs.btrfs {mkfs}"));
    mounted(image, "noatime,commit=1", &format!("{LIVE_COPY}\nset -e; {script}"))
}

const TREES: &str = "
    for s in 1 2 3; do
        btrfs -q subvolume create s$s
        for d in $(seq 1 20); do
            mkdir s$s/d$d
            for i in $(seq 1 150); do echo $s $d $i > s$s/d$d/f$i; done
            head -c 300000 /dev/urandom > s$s/d$d/big
        done
    done
    sync -f .
    for i in 1 2 3; do
        btrfs -q subvolume snapshot s$i n$i
        for d in 1 4 7 10; do for j in $(seq 1 7 150); do echo z >> n$i/d$d/f$j; done; done
    done
    sync -f .
";

#[test]
fn balances() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("balance");
    let image = scratch.path("image");
    let script = format!(
        "{TREES}
        (for k in 1 2 3; do btrfs balance start -f --full-balance . ; done >/dev/null 2>&1) &
        for k in 1 2 3 4 5 6 7 8 9 10; do sleep 0.12; live_copy $image $image.$k; done; wait"
    );
    on_volume(&image, "-n 4096 -m single", &script);
    let (mut agreed, mut torn) = (0, 0);
    for k in 1..=10 {
        let copy = scratch.path(&format!("image.{k}"));
        if !theirs(&copy).0 {
            torn += 1;
            continue;
        }
        let mut report = ours(&copy, false);
        // The copy was made between the two superblocks' writes.
        report.findings.retain(|f| !matches!(f.kind, FindingKind::SuperCopyStale { .. }));
        assert!(report.findings.is_empty(), "copy {k}:\n{}", listing(&report));
        agreed += 1;
    }
    println!("{agreed} copies agree, {torn} were torn");
    assert!(agreed >= 3, "most copies are torn");
}

#[test]
fn subvolume_deletions() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("deletion");
    let image = scratch.path("image");
    let script = format!(
        "{TREES}
        for d in $(seq 1 40); do mkdir s1/x$d
            for i in $(seq 1 400); do : > s1/x$d/file-with-quite-a-long-name-$i; done; done
        sync -f .; btrfs -q subvolume snapshot s1 more; rm -rf more/x*7; sync -f .
        # An open file keeps the kernel's cleaner away from a deleted subvolume.
        exec 8< s1/d1/f1 9< more/d1/f1
        btrfs -q subvolume delete s1 more > /dev/null; btrfs filesystem sync .
        fsfreeze -f .; cp --sparse=always $image $image.dead; fsfreeze -u ."
    );
    on_volume(&image, "-n 4096 -m single", &script);
    let image = scratch.path("image.dead");
    let path = image.display().to_string();
    let (mut dead, mut halfway) = (0, 0);
    for pause in ["0", "0.005", "0.01", "0.01", "0.015", "0.02", "0.02", "0.03", "0.1"] {
        let report = assert_sound(&image, "while a subvolume is deleted", false);
        dead += report.totals.dead_subvolumes;
        let root = sh(&format!("btrfs inspect-internal dump-tree -t root {path}"));
        halfway +=
            root.lines().filter(|l| l.contains("drop_progress") && !l.contains("(0 ")).count();
        // The cleaner begins at mount and is stopped by the unmount.
        mounted(&image, "noatime", &format!("btrfs filesystem sync .; sleep {pause}"));
    }
    println!("{dead} times a subvolume was being deleted, {halfway} times half of it was gone");
    assert!(dead >= 2, "the first copy has both of them");
    assert_sound(&image, "after the deletion", false);
}

#[test]
fn open_unlinked_files_and_a_log_tree() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("orphans");
    let image = scratch.path("image");
    let script = "
        mkdir d; head -c 1000000 /dev/urandom > d/unlinked; head -c 100000 /dev/zero > d/kept
        exec 9< d/unlinked; rm d/unlinked; mkdir gone; btrfs filesystem sync .
        fsfreeze -f .; cp --sparse=always $image $image.orphans; fsfreeze -u .
        echo more >> d/kept; sync d/kept 2>/dev/null; dd if=/dev/zero of=d/kept bs=4k count=1 \
            seek=40 conv=notrunc,fsync status=none
        live_copy $image $image.log; exec 9<&-";
    on_volume(&image, "", script);
    let report = assert_sound(&scratch.path("image.orphans"), "orphans", true);
    assert_eq!(report.totals.orphans, 1);
    let report = ours(&scratch.path("image.log"), false);
    assert!(report.findings.is_empty(), "{}", listing(&report));
    let totals = &report.totals;
    println!("log pending: {}, {} blocks", totals.pending_log, totals.log_blocks);
    assert_eq!(totals.pending_log, totals.log_blocks > 1, "the log was not read");
}

/// A log whose content went over a preallocated extent, or into a new one: its checksums may be
/// in the tree before any file says why. And a file is deleted over many commits, with its
/// count of bytes as it was.
#[test]
fn what_a_log_and_a_deletion_explain() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("explained");
    let image = scratch.path("image");
    let script = "
        fallocate -l 1M a; dd if=/dev/zero of=b bs=4k count=1 status=none; sync -f .
        dd if=/dev/urandom of=a bs=4k count=9 seek=20 conv=notrunc,fsync status=none
        dd if=/dev/urandom of=b bs=4k count=9 seek=20 conv=notrunc,fsync status=none
        live_copy $image $image.log";
    on_volume(&image, "", script);
    let log = scratch.path("image.log");
    // As a crash leaves it that the kernel's replay was interrupted behind: the sums that the log
    // carries are in the tree.
    let patch = Patch::new(&log);
    let report = ours(&log, false);
    assert!(report.totals.pending_log && report.findings.is_empty(), "{}", listing(&report));
    let sums: Vec<_> =
        patch.log_items().into_iter().filter(|(key, _)| key.kind == kind::EXTENT_CSUM).collect();
    assert!(sums.len() >= 2, "the log has checksums");
    for (key, data) in &sums {
        patch.insert(TreeId::CSUM, *key, data);
    }
    let report = ours(&log, false);
    assert!(report.findings.is_empty(), "{}", listing(&report));
    let options = CheckOptions { max_findings: 0, ..CheckOptions::default() };
    let report = check(open(&log), &options).expect("the check runs");
    assert!(report.is_clean() && report.left_off == 0, "also where nothing is listed");
    // Without the log they are nobody's.
    patch.edit_super(|sb| sb.fields.log_root = Logical(0));
    let report = ours(&log, false);
    let odd = |f: &&btrfs_check::Finding| {
        matches!(f.kind, FindingKind::CsumUnwritten { .. } | FindingKind::CsumStray { .. })
    };
    assert_eq!(report.findings.iter().filter(odd).count(), 2, "{}", listing(&report));
}

/// The power goes while the kernel deletes a file of many extents: it takes them away over many
/// commits, and counts the inode's bytes at the end.
#[test]
fn a_large_file_half_deleted() {
    if !ready() {
        return;
    }
    // Whether a copy comes in between is the scheduler's business: some tries.
    let half: usize = (1..=6).map(|_| copies_of_a_deletion()).find(|half| *half > 0).unwrap_or(0);
    assert!(half > 0, "the kernel was too fast");
}

/// Copies of the volume, each of a commit of its own, for as long as the deletion takes. How
/// many have half of the file.
fn copies_of_a_deletion() -> usize {
    let scratch = Scratch::new("half");
    let image = scratch.path("image");
    let script = "
        python3 -c 'import os
f = os.open(\"big\", os.O_RDWR | os.O_CREAT)
for i in range(40000): os.pwrite(f, b\"x\" * 4096, i * 8192)'
        sync -f .; rm big & k=0
        while [ $k -lt 12 ] && { [ $k -lt 3 ] || kill -0 $! 2>/dev/null; }; do
            k=$((k + 1)); btrfs filesystem sync .; live_copy $image $image.$k
        done; wait";
    on_volume(&image, "-m single", script);
    let copies =
        (1..).map(|k| scratch.path(&format!("image.{k}"))).take_while(|path| path.exists());
    let (mut half, mut count) = (0, 0);
    for copy in copies {
        count += 1;
        if !theirs(&copy).0 {
            continue; // torn
        }
        let mut report = ours(&copy, false);
        report.findings.retain(|f| !matches!(f.kind, FindingKind::SuperCopyStale { .. }));
        assert!(report.findings.is_empty(), "{}:\n{}", copy.display(), listing(&report));
        let gone = report.totals.data_bytes < 40_000 * 4096;
        half += usize::from(report.totals.orphans == 1 && gone && report.totals.data_bytes > 0);
    }
    println!("{half} of {count} copies have half of the file");
    half
}
