//! Logs that the engine wrote, replayed by the kernel: what was synced is there, and the
//! volume is sound.

mod common;

use btrfs_fs::Options;
use common::{Image, assert_same, snapshot};
use std::path::{Path, PathBuf};
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::ops::{Config, OpKind, Session, generate};
use testkit::oracle;
use vfs::{Context, FileKind, FileSystem, Ino, RenameMode, WriteFlags};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };

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

fn sync_everything(fs: &dyn FileSystem, tree: &TreeSnapshot) {
    for node in tree.nodes.values() {
        fs.fsync(node.attr.ino, false).expect("fsync");
    }
}

fn random(seed: u64, steps: usize, config: &Config, mkfs: &[&str]) {
    println!("seed {seed}, {steps} steps, mkfs {mkfs:?}");
    let image = Image::new(256 << 20, mkfs);
    let fs = image.open_with(Options { background: false, ..Options::default() });
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
    kernel_replays(&copy, &expected);
    session.close_all();
    drop(session);
    fs.destroy().expect("close");
    drop(fs);
    oracle::assert_clean(&image.path);
    assert!(!has_log(&image.path), "a commit ends the log");
}

#[test]
fn everything_synced_is_there_after_the_kernel_replays() {
    testkit::require!(kernel_btrfs);
    let seeds: Vec<u64> = match std::env::var("SEED") {
        Ok(text) => text.split(',').map(|s| s.parse().unwrap()).collect(),
        Err(_) => (1..6).collect(),
    };
    for seed in seeds {
        random(seed, 400, &Config::all(), &[]);
    }
}
