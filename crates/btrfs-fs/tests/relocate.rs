//! Block groups that are emptied: trees and their sharing, content and quotas stay what they were.
//!
//! The kernel makes a volume with quotas, reflinks and snapshots; the engine moves all of its nodes,
//! with each commit judged by our own check. Then `btrfs check --qgroup-report` and the kernel
//! say that nothing has changed, the kernel goes on changing what moved, and all are asked again.

mod common;

use btrfs_fs::{BtrfsFs, Options};
use common::kernel::{btrfs, kernel};
use common::{CX, Image};
use testkit::ops::Rng;
use testkit::oracle::{self, KernelMount};
use vfs::{FileKind, FileSystem, Ino};

const SNAPSHOTS: u64 = 12;

/// What the kernel says of all groups.
fn numbers(mount: &KernelMount) -> String {
    let path = mount.path().to_string_lossy();
    oracle::sh("btrfs", &["qgroup", "show", "--raw", "--sync", "-rep", &path]).expect("numbers")
}

/// Files, small ones most of them; each snapshot has three of its own versions.
fn fill(mount: &KernelMount, seed: u64) {
    let mut rng = Rng::new(seed);
    btrfs(mount, &["quota", "enable", "/"]);
    btrfs(mount, &["subvolume", "create", "/a"]);
    for i in 0..2500 {
        let dir = mount.join(&format!("a/d{}", i % 40));
        std::fs::create_dir_all(&dir).expect("mkdir");
        let mut content = vec![0; [60, 900, 1900, 9000][rng.below(4) as usize]];
        rng.fill(&mut content);
        std::fs::write(dir.join(format!("file-{i}")), content).expect("write");
    }
    for i in 0..60 {
        let from = mount.join(&format!("a/d{}/file-{i}", i % 40));
        let to = mount.join(&format!("a/d{}/clone-{i}", (i + 1) % 40));
        let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
        oracle::sh("cp", &["--reflink=always", &from, &to]).expect("reflink");
    }
    for s in 0..SNAPSHOTS {
        let source = if s % 3 == 2 { format!("/s{}", s - 1) } else { "/a".into() };
        btrfs(mount, &["subvolume", "snapshot", &source, &format!("/s{s}")]);
        change(mount, &mut rng, &format!("s{s}"), 3);
        change(mount, &mut rng, "a", 3);
    }
    btrfs(mount, &["subvolume", "snapshot", "-r", "/s1", "/ro"]);
    for i in 0..300 {
        std::fs::write(mount.join(&format!("top-{i}")), vec![7; 1500]).expect("write");
    }
    btrfs(mount, &["subvolume", "snapshot", "/", "/top"]);
    for i in (0..300).step_by(90) {
        std::fs::write(mount.join(&format!("top-{i}")), vec![8; 1500]).expect("write");
    }
    btrfs(mount, &["filesystem", "sync", "/"]);
    btrfs(mount, &["quota", "rescan", "-w", "/"]);
}

fn change(mount: &KernelMount, rng: &mut Rng, tree: &str, files: u64) {
    for _ in 0..files {
        let i = rng.below(2500);
        let mut content = vec![0; 3000];
        rng.fill(&mut content);
        std::fs::write(mount.join(tree).join(format!("d{}/file-{i}", i % 40)), content)
            .expect("write");
    }
}

fn balance(fs: &BtrfsFs) -> btrfs_fs::BalanceReport {
    let report = fs.balance_metadata().expect("balance");
    println!("{report:?}");
    assert_eq!(common::stat(fs, "commit.over_promise"), 0);
    report
}

/// All judges, and what the quotas are.
fn judge(image: &Image) -> String {
    common::assert_sound(&image.path);
    let path = image.path.to_string_lossy();
    oracle::sh("btrfs", &["check", "--mode=lowmem", &path]).expect("lowmem check");
    let report = oracle::sh("btrfs", &["check", "-Q", &path]).expect("a report");
    assert!(!report.contains("different"), "btrfs check counts otherwise: {report}");
    kernel(&image.path, "noatime", |mount| {
        let before = numbers(mount);
        btrfs(mount, &["quota", "rescan", "-w", "/"]);
        assert_eq!(before, numbers(mount), "a rescan was to change nothing");
        oracle::scrub(mount).expect("scrub");
        before
    })
}

fn metadata_groups(fs: &BtrfsFs) -> Vec<u64> {
    let groups = fs.space().group_infos();
    let metadata = groups.iter().filter(|group| group.flags & 7 == 4);
    metadata.map(|group| group.logical.0).collect()
}

fn volume(mkfs: &[&str], mount: &str, seed: u64) {
    let image = Image::new(768 << 20, mkfs);
    kernel(&image.path, mount, |mount| fill(mount, seed));
    let numbers_before = judge(&image);
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    let before = common::snapshot(&fs);
    let groups = metadata_groups(&fs);
    let report = balance(&fs);
    assert!(report.relocated_extents > 100, "{report:?}");
    assert_eq!(report.groups, groups.len() as u64);
    assert!(metadata_groups(&fs).iter().all(|group| !groups.contains(group)), "they are gone");
    common::assert_same(&before, &common::snapshot(&fs));
    fs.destroy().expect("close");
    drop(fs);
    assert_eq!(numbers_before, judge(&image), "moving nodes changes no number");
    // The kernel copies what moved, and drops what shares it.
    kernel(&image.path, mount, |mount| {
        let mut rng = Rng::new(seed + 1);
        for s in 0..SNAPSHOTS {
            change(mount, &mut rng, &format!("s{s}"), 20);
        }
        btrfs(mount, &["subvolume", "snapshot", "/s3", "/again"]);
        change(mount, &mut rng, "s3", 20);
        btrfs(mount, &["subvolume", "delete", "-c", "/s2", "/s5", "/a"]);
        btrfs(mount, &["subvolume", "sync", "/"]);
    });
    judge(&image);
    // So do we.
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    for s in [0, 1, 3, 4] {
        let dir = find(&fs, &format!("s{s}/d{s}"));
        for n in 0..30 {
            let name = format!("new-{n}");
            let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
            let ino = made.expect("create").attr.ino;
            fs.write(&CX, ino, 0, &vec![n; 5000], Default::default()).expect("write");
        }
    }
    fs.sync().expect("commit");
    balance(&fs);
    let caller = btrfs_fs::Caller::root();
    let top = fs.root();
    fs.delete_subvolume(&caller, btrfs_fs::Delete::Name(top, b"s4")).expect("delete");
    fs.sync_deleted(&[], None).expect("drop");
    fs.destroy().expect("close");
    drop(fs);
    judge(&image);
}

fn find(fs: &dyn FileSystem, path: &str) -> Ino {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(fs.root(), |at, name| fs.lookup(&CX, at, name.as_bytes()).expect("there").attr.ino)
}

#[test]
fn snapshots_share_as_before_with_small_nodes() {
    testkit::require!(kernel_btrfs);
    volume(&["-n", "4096"], "noatime", 1);
}

#[test]
fn snapshots_share_as_before_with_large_nodes() {
    testkit::require!(kernel_btrfs);
    volume(&[], "noatime", 2);
}
