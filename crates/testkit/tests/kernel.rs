//! The model against the kernel's btrfs: the same operations through system calls must
//! answer alike. This is what makes `RefFs` an oracle.
//!
//! `SPINNEY_SEEDS` and `SPINNEY_STEPS` make the runs longer.

use std::path::Path;

use testkit::compare::Rules;
use testkit::ops::{
    Config, Tolerance, check_private_trees, check_shared_tree, explain, generate, lockstep,
};
use testkit::oracle::{KernelMount, TempDir, assert_clean, mkfs_btrfs, scrub};
use testkit::{PosixFs, RefFs, require};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A subvolume of its own for each run.
fn subvolume(mount: &KernelMount, run: usize) -> std::path::PathBuf {
    let path = mount.join(&format!("run{run}"));
    testkit::oracle::sh("btrfs", &["subvolume", "create", &path.to_string_lossy()]).unwrap();
    path
}

fn remove(path: &Path) {
    let path = path.to_string_lossy();
    // The root may have been made immutable.
    testkit::oracle::sh("chattr", &["-ia", &path]).unwrap();
    testkit::oracle::sh("btrfs", &["subvolume", "delete", &path]).unwrap();
}

fn against_the_kernel(config: &Config, tolerance: &Tolerance) {
    let dir = TempDir::new("kernel").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 2 << 30, &[]).unwrap();
    let mount = KernelMount::new(&image, "noatime").unwrap();
    let (first, steps) = (number("SPINNEY_SEED", 1), number("SPINNEY_STEPS", 1500) as usize);
    let mut runs = 0;
    let mut run = |ops: &[testkit::ops::Op]| {
        runs += 1;
        let path = subvolume(&mount, runs);
        let result = lockstep(&RefFs::new(), &PosixFs::open(&path).unwrap(), ops, tolerance);
        remove(&path);
        result
    };
    for seed in first..first + number("SPINNEY_SEEDS", 4) {
        let ops = generate(seed, steps, config);
        if let Err(divergence) = run(&ops) {
            panic!("{}", explain(seed, &ops, divergence, run));
        }
    }
    scrub(&mount).unwrap();
    mount.unmount().unwrap();
    assert_clean(&image);
}

fn exactly() -> Tolerance {
    Tolerance {
        exact_holes: true,
        times: true,
        tree_every: 500,
        rules: Rules::default().ignoring_clock(),
        ..Tolerance::default()
    }
}

#[test]
fn everything() {
    require!(kernel_btrfs);
    against_the_kernel(&Config::all(), &exactly());
}

#[test]
fn names_and_attributes() {
    require!(kernel_btrfs);
    against_the_kernel(&Config::metadata(), &exactly());
}

#[test]
fn content() {
    require!(kernel_btrfs);
    against_the_kernel(&Config::data(), &exactly());
}

#[test]
fn many_threads() {
    require!(kernel_btrfs);
    let dir = TempDir::new("threads").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 2 << 30, &[]).unwrap();
    let mount = KernelMount::new(&image, "noatime").unwrap();
    let (private, shared) = (subvolume(&mount, 1), subvolume(&mount, 2));
    // A hole's place may depend on what the other threads made the kernel write.
    let tolerance = Tolerance { exact_holes: false, ..exactly() };
    let fs = PosixFs::open(&private).unwrap();
    check_private_trees(&fs, 70, 4, 1000, &Config::all(), &tolerance).unwrap();
    drop(fs);
    let fs = PosixFs::open(&shared).unwrap();
    check_shared_tree(&fs, 80, 4, 1000, &Config::all()).unwrap();
    drop(fs);
    mount.unmount().unwrap();
    assert_clean(&image);
}
