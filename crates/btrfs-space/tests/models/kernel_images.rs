//! Our reading of the format's references and free space against images that the kernel
//! made: every reference is derived again from the trees and compared.

use crate::common;
use common::derive::{assert_space_true, assert_true};
use common::{Image, with_kernel};

/// Files of many extents, some small, some large.
const FILES: &str = "
    for i in $(seq 1 400); do head -c $((i * 97)) /dev/urandom > f$i; done
    dd if=/dev/urandom of=big bs=1M count=24 status=none
    sync -f .
    for i in $(seq 0 3 300); do dd if=/dev/urandom of=big bs=4k count=1 seek=$i conv=notrunc status=none; done
    sync -f .
";

#[test]
fn plain_files() {
    with_kernel(|| {
        let image = Image::new("512M", &[]);
        image.script("", FILES);
        let opened = image.open();
        let census = assert_true(&opened);
        assert!(census.data > 300 && census.most > 1, "{census:?}");
        assert_space_true(&opened);
    });
}

#[test]
fn snapshots_modified_on_both_sides() {
    with_kernel(|| {
        let image = Image::new("1G", &["-n", "4096"]);
        image.script("", "btrfs -q subvolume create a && cd a");
        image.script("", &format!("cd a; {FILES}"));
        image.script(
            "",
            "for i in $(seq 1 25); do touch $(seq -f a/empty$i-%g 1 100); done; sync -f .
             btrfs -q subvolume snapshot a b; sync -f .; touch a/empty*; sync -f .
             for i in $(seq 1 7 400); do touch a/f$i; done; sync -f .
             btrfs -q subvolume snapshot a c; btrfs -q subvolume snapshot b d; sync -f .
             for i in $(seq 1 5 400); do echo more >> b/f$i; rm -f a/f$((i + 1)); done; sync -f .
             dd if=/dev/zero of=d/big bs=1M count=3 conv=notrunc status=none
             btrfs -q subvolume snapshot d a/e; sync -f .; rm -f d/f3*; sync -f .",
        );
        let opened = image.open();
        let census = assert_true(&opened);
        assert!(census.full_backref > 10 && census.shared_data > 100, "{census:?}");
        assert!(census.shared_tree > 10, "{census:?}");
        assert_space_true(&opened);
    });
}

#[test]
fn reflinks_beyond_the_inline_limit() {
    with_kernel(|| {
        let image = Image::new("512M", &[]);
        image.script(
            "",
            "dd if=/dev/urandom of=x bs=128k count=1 status=none; sync -f .
             for i in $(seq 1 600); do cp --reflink=always x y$i; done; sync -f .
             for i in $(seq 1 3 600); do rm y$i; done; sync -f .
             btrfs -q subvolume snapshot . s; sync -f .
             for i in $(seq 2 3 600); do touch y$i; done; sync -f .",
        );
        let opened = image.open();
        let census = assert_true(&opened);
        assert!(census.most_owners > 300, "{census:?}");
        assert_space_true(&opened);
    });
}

#[test]
fn after_a_balance() {
    with_kernel(|| {
        let image = Image::new("1G", &[]);
        image.script("", &format!("btrfs -q subvolume create a; cd a; {FILES}"));
        image.script("", "btrfs -q subvolume snapshot a b; rm a/f1*; sync -f .");
        image.script("", "btrfs -q balance start --full-balance .; sync -f .");
        let opened = image.open();
        let census = assert_true(&opened);
        assert!(census.full_backref > 0, "{census:?}");
        assert_space_true(&opened);
    });
}

#[test]
fn free_space_in_bitmaps() {
    with_kernel(|| {
        let image = Image::new("1G", &[]);
        image.script(
            "",
            "head -c 4096 /dev/urandom > x; for i in $(seq 1 1200); do head -c 4096 x > y$i; done; sync -f .
             rm y*[02468]; sync -f .",
        );
        let dump = image.dump(10);
        assert!(dump.contains("FREE_SPACE_BITMAP"), "the kernel went over to bitmaps");
        assert_space_true(&image.open());
    });
}

#[test]
fn mixed_block_groups() {
    with_kernel(|| {
        let image = Image::new("256M", &["--mixed"]);
        image.script("", "for i in $(seq 1 300); do head -c $((i * 57)) /dev/urandom > f$i; done");
        image.script("", "btrfs -q subvolume snapshot . s; rm f1*; sync -f .");
        let opened = image.open();
        assert_true(&opened);
        assert_space_true(&opened);
    });
}
