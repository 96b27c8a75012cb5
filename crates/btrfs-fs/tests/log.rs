//! Logs that the engine wrote, replayed by the kernel: what was synced is there, and the
//! volume is sound.

mod common;

use btrfs_fs::Options;
use common::{Image, assert_same, snapshot};
use std::path::{Path, PathBuf};
use testkit::compare::TreeSnapshot;
use testkit::ops::{Config, OpKind, Session, generate};
use testkit::oracle;
use vfs::FileSystem;

fn stat(fs: &dyn FileSystem, name: &str) -> u64 {
    fs.stats().into_iter().find(|s| s.name == name).expect("a counter").value
}

/// The image as a crash would leave it now.
fn crashed(image: &Image, name: &str) -> PathBuf {
    let copy = image.path.with_file_name(name);
    let status = std::process::Command::new("cp")
        .args(["--reflink=auto", "--sparse=always"])
        .args([&image.path, &copy])
        .status();
    assert!(status.expect("cp").success());
    copy
}

fn has_log(image: &Path) -> bool {
    let text = oracle::sh("btrfs", &["inspect-internal", "dump-super", image.to_str().unwrap()]);
    let text = text.expect("dump-super");
    let line = text.lines().find(|l| l.starts_with("log_root\t")).expect("log_root");
    !line.trim_end().ends_with("\t0")
}

/// Lets the kernel replay, compares, and has the volume judged.
fn kernel_replays(copy: &Path, expected: &TreeSnapshot) {
    let seen = oracle::with_kernel(copy, "noatime", |mount| {
        TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
    })
    .expect("the kernel replays the log");
    oracle::assert_clean(copy);
    assert_same(expected, &seen);
    oracle::with_kernel(copy, "noatime", |mount| oracle::scrub(mount).expect("scrub"))
        .expect("the kernel mounts the volume");
}

/// This engine replays: in memory alone, then for good.
fn we_replay(copy: &Path, expected: &TreeSnapshot) {
    let shown = common::open_image(copy, Options { read_only: true, ..quiet() });
    assert_same(expected, &snapshot(&shown));
    drop(shown);
    let replayed = common::open_image(copy, quiet());
    assert_same(expected, &snapshot(&replayed));
    replayed.destroy().expect("close");
    drop(replayed);
    assert!(!has_log(copy), "a replay ends the log");
    common::judge(copy, expected);
}

fn quiet() -> Options {
    Options { background: false, tree_log: true, ..Options::default() }
}

fn sync_everything(fs: &dyn FileSystem, tree: &TreeSnapshot) {
    for node in tree.nodes.values() {
        fs.fsync(node.attr.ino, false).expect("fsync");
    }
}

fn random(seed: u64, steps: usize, config: &Config, mkfs: &[&str]) {
    println!("seed {seed}, {steps} steps, mkfs {mkfs:?}");
    let image = Image::new(256 << 20, mkfs);
    let fs = image.open_with(quiet());
    let config = config.clone().without(&[OpKind::Sync]);
    let ops = generate(seed, steps, &config);
    let mut session = Session::new(&fs);
    for (number, op) in ops.iter().enumerate() {
        session.apply(op);
        if number == steps / 2 {
            fs.sync().expect("sync");
        }
        if number > steps / 2 && number % 37 == 0 {
            sync_everything(&fs, &snapshot(&fs));
        }
    }
    let before = stat(&fs, "commit.count");
    let expected = snapshot(&fs);
    sync_everything(&fs, &expected);
    println!(
        "commits in the end {}, fallbacks {}, writes {}, log {}",
        stat(&fs, "commit.count") - before,
        stat(&fs, "log.fallback_commits"),
        stat(&fs, "log.writes"),
        has_log(&image.path),
    );
    let expected = snapshot(&fs);
    let copy = crashed(&image, "crashed.img");
    let ours = crashed(&image, "ours.img");
    kernel_replays(&copy, &expected);
    we_replay(&ours, &expected);
    session.close_all();
    drop(session);
    fs.destroy().expect("close");
    drop(fs);
    oracle::assert_clean(&image.path);
    assert!(!has_log(&image.path), "a commit ends the log");
}

/// `SEED=5,6 STEPS=2000 MKFS="-n 4096"` runs those instead.
#[test]
fn everything_synced_is_there_after_the_kernel_replays() {
    testkit::require!(kernel_btrfs);
    if let Ok(seeds) = std::env::var("SEED") {
        let steps = std::env::var("STEPS").map_or(400, |steps| steps.parse().expect("a number"));
        let mkfs = std::env::var("MKFS").unwrap_or_default();
        let mkfs: Vec<&str> = mkfs.split_whitespace().collect();
        for seed in seeds.split(',') {
            random(seed.parse().expect("a number"), steps, &fitting(&mkfs), &mkfs);
        }
        return;
    }
    for seed in 1..5 {
        random(seed, 400, &Config::all(), &[]);
    }
    // A parent that belongs to the log for its own sake must not hide what it lost.
    random(47, 1500, &Config::all(), &[]);
}

#[test]
fn logs_of_other_formats() {
    testkit::require!(kernel_btrfs);
    for (seed, mkfs) in [
        (60, &["-n", "4096"][..]),
        (61, &["-n", "65536", "--csum", "xxhash"]),
        (62, &["--csum", "sha256", "-m", "single"]),
        (63, &["--csum", "blake2"]),
        (64, &["-O", "^no-holes"]),
        (65, &["--mixed"]),
    ] {
        random(seed, 600, &fitting(mkfs), mkfs);
    }
}

/// Attributes that the model takes do not fit a leaf of 4 KiB.
fn fitting(mkfs: &[&str]) -> Config {
    if mkfs.contains(&"4096") || mkfs.contains(&"--mixed") {
        Config::all().without(&[OpKind::SetXattr, OpKind::Symlink])
    } else {
        Config::all()
    }
}
