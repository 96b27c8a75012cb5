//! Random operations, in lockstep with the reference model, then judged from outside.
//!
//! `SPINNEY_SEED`, `SPINNEY_SEEDS` and `SPINNEY_STEPS` choose others and more, in each test.

mod common;

use btrfs_fs::{Compress, Method, Options};
use common::{Image, judge, seeds, snapshot, steps};
use testkit::RefFs;
use testkit::compare::TreeSnapshot;
use testkit::ops::{Config, OpKind, Tolerance, explain, generate, lockstep};
use vfs::{FileSystem, SeekWhence};

/// `count` seeds from `first` on.
fn run(first: u64, count: u64, most: usize, config: &Config, mkfs: &[&str]) {
    println!("mkfs {mkfs:?}");
    run_all(&|| Image::new(256 << 20, mkfs), first, count, most, config);
}

fn run_all(make: &dyn Fn() -> Image, first: u64, count: u64, most: usize, config: &Config) {
    for seed in seeds(first, count) {
        println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_STEPS={}", steps(most));
        run_on(make, seed, steps(most), config);
    }
}

fn run_on(make: &dyn Fn() -> Image, seed: u64, steps: usize, config: &Config) {
    run_mounted(make, seed, steps, config, None);
}

fn run_mounted(
    make: &dyn Fn() -> Image,
    seed: u64,
    steps: usize,
    config: &Config,
    compress: Option<Compress>,
) {
    let image = make();
    let model = RefFs::default();
    let options = Options { background: false, compress, ..common::inodes(seed) };
    let fs = image.open_checked(options);
    // Where the kernel stores zeros we may leave a hole: `holes_are_zeros` judges seeks.
    let ops = generate(seed, steps, &config.clone().without(&[OpKind::Seek]));
    let tolerance = Tolerance { tree_every: 200, ..Tolerance::default() };
    if let Err(divergence) = lockstep(&model, &fs, &ops, &tolerance) {
        let again = |ops: &[testkit::ops::Op]| {
            let image = make();
            lockstep(&RefFs::default(), &image.open(), ops, &tolerance)
        };
        panic!("{}", explain(seed, &ops, divergence, again));
    }
    let expected = snapshot(&fs);
    holes_are_zeros(&fs, &expected);
    fs.destroy().expect("close");
    drop(fs);
    judge(&image.path, &expected);
    let again = image.open();
    common::assert_same(&expected, &snapshot(&again));
}

/// Walks each file by SEEK_DATA and SEEK_HOLE: the spans alternate, cover the file, and
/// what is called a hole reads as zeros.
fn holes_are_zeros(fs: &dyn FileSystem, tree: &TreeSnapshot) {
    for node in tree.nodes.values().filter(|n| n.attr.kind == vfs::FileKind::File) {
        let (ino, size) = (node.attr.ino, node.attr.size);
        let mut at = 0;
        while at < size {
            let data = fs.seek(ino, at, SeekWhence::Data).unwrap_or(size);
            assert!(data >= at);
            let mut hole = vec![1; (data - at) as usize];
            assert_eq!(fs.read(ino, at, &mut hole).unwrap(), hole.len());
            assert!(hole.iter().all(|b| *b == 0), "inode {ino:?}: data in a hole at {at}");
            if data == size {
                break;
            }
            at = fs.seek(ino, data, SeekWhence::Hole).unwrap();
            assert!(at > data && at <= size);
        }
    }
}

#[test]
fn everything() {
    testkit::require!(kernel_btrfs);
    run(1, 5, 2000, &Config::all(), &[]);
}

#[test]
fn names_and_attributes() {
    testkit::require!(kernel_btrfs);
    run(11, 1, 4000, &Config::metadata(), &[]);
}

#[test]
fn content() {
    testkit::require!(kernel_btrfs);
    run(21, 1, 3000, &Config::data(), &[]);
}

#[test]
fn compressed_content() {
    testkit::require!(kernel_btrfs);
    for (seed, method) in [(51, "zstd:1"), (52, "lzo"), (53, "zlib")] {
        let compress = Compress { method: Method::parse(method).expect("a method"), force: true };
        let make = || Image::new(256 << 20, &[]);
        run_mounted(&make, seed, steps(1500), &Config::data(), Some(compress));
        run_mounted(&make, seed + 10, steps(1000), &Config::all(), Some(compress));
    }
}

#[test]
fn other_formats() {
    testkit::require!(kernel_btrfs);
    // Attributes that the model takes do not fit a leaf of 4 or 8 KiB.
    let small = Config::all().without(&[OpKind::SetXattr, OpKind::Symlink]);
    run(30, 1, 1500, &small, &["-n", "4096"]);
    run(35, 1, 1500, &small, &["--mixed"]);
    run(38, 1, 1500, &small, &["-n", "8192"]);
    for (seed, options) in [
        (32, &["-n", "65536", "--csum", "xxhash"][..]),
        (33, &["--csum", "sha256", "-m", "single"]),
        (34, &["--csum", "blake2"]),
        (36, &["-O", "^no-holes"]),
        (39, &["-n", "32768", "-m", "dup", "-d", "dup"]),
    ] {
        run(seed, 1, 1500, &Config::all(), options);
    }
    run_all(&|| Image::with_block_group_tree(256 << 20), 37, 1, 1500, &Config::all());
}
