//! Many threads on many snapshots, with quotas and limits, while balances, conversions and resizes run.
//!
//! Each thread has a subvolume of its own and knows what is in it; others make snapshots of all of them, hold
//! what was read-only against itself, and delete. In the end everything is what the threads know, and
//! `btrfs check`, a rescan by the kernel and scrub find nothing.

use crate::common;
use btrfs_disk::ids::block_group::{DATA, DUP, METADATA, SYSTEM};
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_filter, balance_flags};
use btrfs_fs::{BtrfsFs, Caller, Delete, LimitChange, Options, QgroupId};
use common::kernel::kernel;
use common::{CX, Files, Image, Stop, files_of, find, read};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::ops::Rng;
use testkit::oracle::{self, newer_btrfs, newer_btrfs_check, run, sh};
use vfs::{FileKind, FileSystem, Ino, SetAttr};

const THREADS: u64 = 4;
const SNAPSHOTS: usize = 12;
const SIZE: u64 = 3 << 30;

/// One change in a thread's own subvolume.
fn change(fs: &BtrfsFs, dir: Ino, files: &mut Files, rng: &mut Rng) {
    let name = format!("f{}", rng.below(60));
    let most = [100, 3000, 20_000, 200_000][rng.below(4) as usize];
    let mut content = vec![0; 1 + rng.below(most) as usize];
    rng.fill(&mut content);
    let Some(old) = files.get_mut(&name) else {
        let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
        let ino = made.expect("create").attr.ino;
        fs.write(&CX, ino, 0, &content, Default::default()).expect("write");
        if rng.chance(30) {
            fs.fsync(ino, false).expect("fsync");
        }
        fs.forget(ino, 1);
        files.insert(name, content);
        return;
    };
    let ino = find(fs, dir, &name).expect("there");
    match rng.below(4) {
        0 => {
            fs.unlink(&CX, dir, name.as_bytes()).expect("unlink");
            files.remove(&name);
        }
        1 => {
            let len = rng.below(old.len() as u64 + 1);
            let set = SetAttr { size: Some(len), ..SetAttr::default() };
            fs.setattr(&CX, ino, &set).expect("cut");
            old.truncate(len as usize);
        }
        2 => {
            let new = format!("c{}", rng.below(20));
            let known = old.clone();
            let _there_or_not = fs.unlink(&CX, dir, new.as_bytes());
            let made = fs.mknod(&CX, dir, new.as_bytes(), FileKind::File, 0o644, 0);
            let to = made.expect("create").attr.ino;
            fs.clone_range(&CX, ino, 0, to, 0, 0).expect("clone");
            fs.forget(to, 1);
            files.insert(new, known);
        }
        _ => {
            let at = rng.below(old.len() as u64 + 1) as usize;
            fs.write(&CX, ino, at as u64, &content, Default::default()).expect("write");
            old.resize(old.len().max(at + content.len()), 0);
            old[at..at + content.len()].copy_from_slice(&content);
        }
    }
    fs.forget(ino, 1);
}

/// What a thread does until it is told to stop; what is in its subvolume then.
fn work(fs: &BtrfsFs, thread: u64, stop: &AtomicBool) -> Files {
    let (mut rng, mut files, mut done) = (Rng::new(thread), Files::new(), 0);
    let dir = find(fs, fs.root(), &format!("own{thread}")).expect("there");
    while !stop.load(Ordering::Relaxed) || done < 50 {
        change(fs, dir, &mut files, &mut rng);
        done += 1;
        if rng.chance(20) {
            let names: Vec<&String> = files.keys().collect();
            if !names.is_empty() {
                let name = *rng.pick(&names);
                assert!(read(fs, dir, name) == files[name], "own{thread}/{name} reads otherwise");
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("thread {thread}: {done} changes");
    files
}

/// Snapshots come, are read and read again later, and go; those that are left.
fn snapshots(fs: &BtrfsFs, stop: &AtomicBool) -> BTreeMap<String, Files> {
    let (mut rng, caller, mut kept) = (Rng::new(99), Caller::root(), BTreeMap::new());
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) || number < 8 {
        number += 1;
        let (source, name) = (format!("own{}", rng.below(THREADS)), format!("snap{number}"));
        let source = find(fs, fs.root(), &source).expect("there");
        fs.snapshot(&caller, source, fs.root(), name.as_bytes(), true).expect("snapshot");
        kept.insert(name.clone(), files_of(fs, &name));
        let all: Vec<String> = kept.keys().cloned().collect();
        let one = rng.pick(&all).clone();
        assert!(files_of(fs, &one) == kept[&one], "{one} has changed");
        if kept.len() > SNAPSHOTS {
            let which = Delete::Name(fs.root(), one.as_bytes());
            fs.delete_subvolume(&caller, which).expect("delete");
            kept.remove(&one);
        }
    }
    println!("{number} snapshots");
    kept
}

/// Limits come and go, none of which is reached.
fn limits(fs: &BtrfsFs, stop: &AtomicBool) {
    let (mut rng, high) = (Rng::new(7), "1/1".parse().expect("a group"));
    fs.create_qgroup(high).expect("a group");
    while !stop.load(Ordering::Relaxed) {
        let groups = fs.qgroups_from(QgroupId(0), 100).expect("groups");
        let group = rng.pick(&groups).id;
        let most = rng.chance(50).then_some(1 << 40);
        let change = LimitChange { referenced: Some(most), ..LimitChange::default() };
        // Its subvolume may be gone by now.
        let _any = fs.limit_qgroup(group, &change);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn balance(fs: &BtrfsFs, turn: usize) {
    let convert =
        |target| BalanceFilter { flags: balance_filter::CONVERT, target, ..Default::default() };
    let (flags, filter) = match turn % 4 {
        0 => (DATA | METADATA | SYSTEM, BalanceFilter::default()),
        1 => (METADATA | SYSTEM | balance_flags::FORCE, convert(balance_filter::SINGLE)),
        2 => (METADATA | SYSTEM, convert(DUP)),
        _ => (DATA, BalanceFilter::default()),
    };
    let item =
        BalanceItem { flags, data: filter, metadata: filter, system: filter, ..Default::default() };
    fs.start_balance(item).expect("begin");
    let status = common::end_of_balance(fs, Duration::from_secs(120));
    assert_eq!((status.errno, status.failed), (0, 0), "{status:?}");
}

fn judge(image: &Image, simple: bool) {
    if simple {
        newer_btrfs_check(&image.path).expect("sound, with the right numbers");
    } else {
        oracle::assert_clean(&image.path);
    }
    // A snapshot in the midst of a write may have what landed behind the size: a note, and no more.
    let device = Arc::new(common::open_device(&image.path, true));
    common::check_device(device, true, btrfs_check::Severity::Warning);
    if simple {
        kernel(&image.path, "noatime", |mount| oracle::scrub(mount).expect("scrub"));
        return;
    }
    let report = run("btrfs", &["check", "-Q", &image.path.to_string_lossy()]);
    let counted = report.stdout.contains("Counts for qgroup id: 0/5");
    assert!(counted && !report.stdout.contains("different"), "{}", report.text());
    kernel(&image.path, "noatime", |mount| {
        let path = mount.path().to_string_lossy();
        let show =
            || sh("btrfs", &["qgroup", "show", "--raw", "--sync", "-rep", &path]).expect("numbers");
        let before = show();
        sh("btrfs", &["quota", "rescan", "-w", &path]).expect("rescan");
        assert_eq!(before, show(), "a rescan was to change nothing");
        oracle::scrub(mount).expect("scrub");
    });
}

#[test]
fn snapshots_and_quotas_stay_right_in_a_crowd() {
    testkit::require!(kernel_btrfs);
    crowd(false);
}

#[test]
fn simple_quotas_stay_right_in_a_crowd() {
    testkit::require!(kernel_btrfs);
    testkit::require!(newer_btrfs().is_ok(), "no newer btrfs-progs in target/tools");
    crowd(true);
}

fn crowd(simple: bool) {
    let image = Image::new(SIZE, &["-n", "16384"]);
    let fs = image.open_with(Options::default());
    let enabled = if simple { fs.enable_simple_quotas() } else { fs.enable_quotas() };
    enabled.expect("enable");
    for thread in 0..THREADS {
        let name = format!("own{thread}");
        fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes()).expect("create");
    }
    let (stop, turns) = (AtomicBool::new(false), common::number("SPINNEY_ROUNDS", 4) as usize);
    let (own, kept) = std::thread::scope(|scope| {
        let (fs, stop) = (&fs, &stop);
        let workers: Vec<_> =
            (0..THREADS).map(|t| scope.spawn(move || work(fs, t, stop))).collect();
        let kept = scope.spawn(move || snapshots(fs, stop));
        scope.spawn(move || limits(fs, stop));
        let told = Stop(stop);
        for turn in 0..turns {
            balance(fs, turn);
            fs.resize(SIZE - ((turn as u64 % 4 + 1) << 28)).expect("shrink");
            balance(fs, turn + 1);
            fs.resize(SIZE).expect("grow");
        }
        drop(told);
        let own: Vec<Files> = workers.into_iter().map(|w| w.join().expect("a worker")).collect();
        (own, kept.join().expect("snapshots"))
    });
    for (thread, files) in own.iter().enumerate() {
        assert!(files_of(&fs, &format!("own{thread}")) == *files, "own{thread} differs");
    }
    for (name, files) in &kept {
        assert!(files_of(&fs, name) == *files, "{name} has changed");
    }
    assert!(fs.sync_deleted(&[], None).expect("dropped"));
    assert_eq!((fs.read_only_reason(), common::stat(&fs, "commit.over_promise")), (None, 0));
    fs.destroy().expect("close");
    drop(fs);
    judge(&image, simple);
}
