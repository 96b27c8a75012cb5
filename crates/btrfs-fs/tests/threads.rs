//! Many threads at once, with commits running all the time and a node cache that is
//! too small: each in a directory of its own against a model of its own, then all over
//! the same few names.
//!
//! `SPINNEY_SEED`, `SPINNEY_SEEDS` and `SPINNEY_STEPS` choose other seeds and more.

mod common;

use btrfs_fs::{BtrfsFs, Options};
use common::{Image, judge, seeds, snapshot, steps};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::ops::{Config, OpKind, Tolerance, check_private_trees, check_shared_tree};
use vfs::FileSystem;

/// Runs `work` beside a thread that commits without pause.
fn with_commits(fs: &BtrfsFs, work: impl FnOnce() -> Result<(), String>) {
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs.sync().expect("commit");
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    });
    if let Err(report) = result {
        panic!("{report}");
    }
}

/// `work` gets a volume, a seed and its number of steps; once for each seed.
fn run(first: u64, work: impl Fn(&BtrfsFs, u64, usize) -> Result<(), String>) {
    for seed in seeds(first, 1) {
        println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_STEPS={}", steps(1500));
        let image = Image::new(1 << 30, &[]);
        let fs = image.open_with(Options { cache_bytes: 1 << 20, ..common::inodes(seed) });
        with_commits(&fs, || work(&fs, seed, steps(1500)));
        let expected = snapshot(&fs);
        fs.destroy().expect("close");
        drop(fs);
        judge(&image.path, &expected);
    }
}

#[test]
fn each_in_its_own_directory() {
    testkit::require!(kernel_btrfs);
    let config = Config::all().without(&[OpKind::Seek]);
    let tolerance = Tolerance { tree_every: 300, ..Tolerance::default() };
    for first in [100, 101] {
        run(first, |fs, seed, steps| check_private_trees(fs, seed, 8, steps, &config, &tolerance));
    }
}

#[test]
fn all_over_the_same_names() {
    testkit::require!(kernel_btrfs);
    run(7001, |fs, seed, steps| check_shared_tree(fs, seed, 16, steps, &Config::all()));
}
