//! Volumes of the kernel's making have no findings, whatever their options and load;
//! `btrfs check` agrees.

use crate::common;
use common::{Recipe, Scratch, assert_sound, make, ready, sh};

fn sound(name: &str, recipe: &Recipe<'_>) {
    if !ready() {
        return;
    }
    let scratch = Scratch::new(name);
    let image = scratch.path("image");
    make(&image, recipe);
    let report = assert_sound(&image, name, true);
    let totals = report.totals;
    assert!(totals.inodes > 1000 && totals.subvolumes >= 4, "load is missing: {totals:?}");
    assert!(totals.data_extents > 20 && totals.tree_blocks > 20, "load is missing: {totals:?}");
}

#[test]
fn defaults() {
    sound("defaults", &Recipe::default());
}

#[test]
fn xxhash_with_zstd() {
    let recipe =
        Recipe { mkfs: "--csum xxhash", mount: "compress-force=zstd", ..Recipe::default() };
    sound("xxhash", &recipe);
}

#[test]
fn small_nodes_with_explicit_holes() {
    let mkfs = "--csum sha256 -n 4096 -O ^no-holes";
    sound("holes", &Recipe { mkfs, mount: "compress=lzo", ..Recipe::default() });
}

#[test]
fn large_nodes_with_zlib() {
    let mkfs = "--csum blake2 -n 65536";
    let mount = "compress-force=zlib,max_inline=4095";
    sound("large", &Recipe { mkfs, mount, ..Recipe::default() });
}

#[test]
fn mixed_block_groups() {
    sound("mixed", &Recipe { size: "512M", mkfs: "--mixed", ..Recipe::default() });
}

#[test]
fn first_version_of_the_space_cache() {
    let mkfs = "-R ^free-space-tree";
    sound("v1", &Recipe { mkfs, mount: "space_cache=v1", ..Recipe::default() });
}

#[test]
fn no_extended_references_and_a_full_balance() {
    let recipe = Recipe {
        size: "2G",
        mkfs: "-m single -O ^no-holes,^extref",
        before: "LINKS=50",
        after: "btrfs balance start -f --full-balance . >/dev/null",
        ..Recipe::default()
    };
    sound("balanced", &recipe);
}

#[test]
fn dup_with_quotas_many_snapshots_and_balances() {
    let after = "btrfs quota enable .; btrfs quota rescan -w . >/dev/null
        for i in $(seq 1 12); do
            btrfs -q subvolume snapshot snap2 ss$i; rm -f ss$i/a/f3$i*; echo $i >> ss$i/a/b/big22
        done
        btrfs balance start -m -d . >/dev/null
        for i in 1 3 5 7; do btrfs -q subvolume delete ss$i >/dev/null; done
        btrfs balance start -m . >/dev/null
        for i in $(seq 1 40); do echo $i >> ss2/a/f$i; done
        btrfs -q subvolume snapshot ss2 nested-in-snapshot
        btrfs -q subvolume create ss4/below; btrfs -q subvolume snapshot ss4 copy-with-a-stub
        sync -f .; btrfs subvolume sync . >/dev/null; btrfs quota rescan -w . >/dev/null";
    sound("quotas", &Recipe { size: "2G", mkfs: "-m dup -d dup", after, ..Recipe::default() });
}

#[test]
fn no_checksums_and_no_copy_on_write() {
    sound("nodatasum", &Recipe { mkfs: "-R quota", mount: "nodatacow", ..Recipe::default() });
}

#[test]
fn fragmented_free_space_in_bitmaps() {
    if !ready() {
        return;
    }
    let after = "mkdir frag; eight=$(printf '%8000s' x); for i in $(seq 1 6000); do
            echo \"$eight$i\" > frag/f$i
        done; sync -f .; for i in $(seq 1 2 6000); do echo frag/f$i; done | xargs rm; sync -f .";
    let recipe = Recipe { size: "512M", mkfs: "--mixed", after, ..Recipe::default() };
    let scratch = Scratch::new("bitmaps");
    let image = scratch.path("image");
    make(&image, &recipe);
    let dump = format!("btrfs inspect-internal dump-tree -t 10 {}", image.display());
    assert!(sh(&dump).contains("FREE_SPACE_BITMAP"), "the load is to make bitmaps");
    assert_sound(&image, "bitmaps", false);
}

#[test]
fn shrunk_grown_and_defragmented() {
    let after = "btrfs filesystem resize 900M . >/dev/null; btrfs filesystem defragment -r -czstd a
        btrfs filesystem resize max . >/dev/null; btrfs property set a/b compression lzo
        btrfs subvolume set-default $(btrfs inspect-internal rootid snap2) .";
    sound("resized", &Recipe { after, ..Recipe::default() });
}
