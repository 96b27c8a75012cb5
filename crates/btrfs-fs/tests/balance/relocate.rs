//! Block groups that are emptied: trees and their sharing, content and quotas stay what they were.
//!
//! The kernel makes a volume with quotas, reflinks and snapshots; the engine moves all that is in it,
//! with each commit judged by our own check. Then `btrfs check --qgroup-report` and the kernel
//! say that nothing has changed, the kernel goes on changing what moved, and all are asked again.

use crate::common;
use btrfs_fs::{BtrfsFs, Options};
use common::kernel::{btrfs, kernel};
use common::{CX, Image, copies};
use testkit::ops::Rng;
use testkit::oracle::{self, KernelMount};
use vfs::{FallocateMode, FileKind, FileSystem, Ino};

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
    for i in 0..300 {
        std::fs::write(mount.join(&format!("top-{i}")), vec![7; 1500]).expect("write");
    }
    btrfs(mount, &["subvolume", "snapshot", "/", "/top"]);
    for i in (0..300).step_by(90) {
        std::fs::write(mount.join(&format!("top-{i}")), vec![8; 1500]).expect("write");
    }
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
    let report = fs.balance_groups(|_| true).expect("balance");
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

fn groups(fs: &BtrfsFs) -> Vec<u64> {
    fs.space().group_infos().iter().map(|group| group.logical.0).collect()
}

/// What quotas look at in a balance of metadata, however much moves: it changes no owner.
const FEW: u64 = 16;

fn volume(mkfs: &[&str], mount: &str, seed: u64) {
    let image = Image::new(768 << 20, mkfs);
    kernel(&image.path, mount, |mount| fill(mount, seed));
    let numbers_before = judge(&image);
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    let before = common::snapshot(&fs);
    let before_groups = groups(&fs);
    let report = balance(&fs);
    assert!(report.relocated_extents > 100, "{report:?}");
    assert_eq!(report.groups, before_groups.len() as u64);
    assert!(groups(&fs).iter().all(|group| !before_groups.contains(group)), "they are gone");
    let dirty = common::stat(&fs, "quota.extents");
    let report = fs.balance_metadata().expect("balance");
    let dirty = common::stat(&fs, "quota.extents") - dirty;
    assert!(report.relocated_extents > 100, "{report:?}");
    assert!(dirty <= FEW, "{dirty} extents for quotas to look at: {report:?}");
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
    });
    judge(&image);
    // Without quotas: of what a relocation has moved, its own as well, the kernel counts wrong when it
    // drops a subvolume ("to be deleted qgroup has non-zero numbers"), and says so.
    let copy = common::crashed(&image, "dropped.img");
    kernel(&copy, mount, |mount| {
        btrfs(mount, &["quota", "disable", "/"]);
        btrfs(mount, &["subvolume", "delete", "-c", "/s2", "/s5", "/a"]);
        btrfs(mount, &["subvolume", "sync", "/"]);
        oracle::scrub(mount).expect("scrub");
    });
    common::assert_sound(&copy);
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
    assert!(common::stat(&fs, "quota.extents") > FEW, "what changes is looked at");
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
fn snapshots_share_as_before_without_skinny_metadata() {
    testkit::require!(kernel_btrfs);
    volume(&["-n", "4096", "-O", "^skinny-metadata"], "noatime", 3);
}

#[test]
fn snapshots_share_as_before_with_large_nodes() {
    testkit::require!(kernel_btrfs);
    volume(&[], "noatime", 2);
}

#[test]
fn the_device_grows_and_shrinks() {
    testkit::require!(kernel_btrfs);
    const MIB: u64 = 1 << 20;
    let image = Image::new(512 * MIB, &[]);
    kernel(&image.path, "noatime", |mount| {
        std::fs::write(mount.join("f"), vec![3; 5_000_000]).expect("write");
    });
    let size = |image: &Image| {
        let open = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
        let device = std::sync::Arc::new(common::open_device(&image.path, true));
        let sb = btrfs_volume::Volume::open(device, open).expect("open").superblock();
        (sb.fields.total_bytes, sb.fields.dev_item.total_bytes)
    };
    let cut = |len: u64| {
        let file = std::fs::File::options().write(true).open(&image.path).expect("open");
        file.set_len(len).expect("resize the file");
    };
    let resize = |total: u64| {
        let fs = image.open_checked(Options { background: false, ..Options::default() });
        let before = common::snapshot(&fs);
        let report = fs.resize(total).expect("resize");
        common::assert_same(&before, &common::snapshot(&fs));
        common::close_and_judge(&image, fs);
        report
    };
    let errno = |total: u64| {
        let fs = image.open_checked(Options { background: false, ..Options::default() });
        let error = fs.resize(total).expect_err("it cannot");
        common::close_and_judge(&image, fs);
        error.errno()
    };
    assert_eq!(errno(1024 * MIB), libc::EFBIG);
    assert_eq!(errno(255 * MIB), libc::EINVAL);
    cut(1024 * MIB);
    resize(1024 * MIB);
    resize(1024 * MIB);
    assert_eq!(size(&image), (1024 * MIB, 1024 * MIB));
    // Metadata comes to lie behind the old end, and goes again.
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    while fs.space().behind(600 * MIB).is_empty() {
        fs.space().new_chunk(btrfs_space::Kind::Metadata).expect("a chunk");
    }
    fs.balance_metadata().expect("balance");
    fs.destroy().expect("close");
    drop(fs);
    let report = resize(600 * MIB + 1000);
    println!("{report:?}");
    assert_eq!(size(&image), (600 * MIB, 600 * MIB));
    cut(600 * MIB);
    common::assert_sound(&image.path);
    kernel(&image.path, "noatime", |mount| oracle::scrub(mount).expect("scrub"));
}

/// Creates, changes, syncs and removes files until told to stop.
fn work(fs: &BtrfsFs, thread: u64, stop: &std::sync::atomic::AtomicBool) -> u64 {
    let mut rng = Rng::new(thread);
    let mut done = 0;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) || done < 50 {
        let name = format!("w{thread}-{}", rng.below(200));
        let made = fs.mknod(&CX, fs.root(), name.as_bytes(), FileKind::File, 0o644, 0);
        match made {
            Ok(entry) => {
                let content = vec![thread as u8; 1 + rng.below(20_000) as usize];
                let written = fs.write(&CX, entry.attr.ino, 0, &content, Default::default());
                written.unwrap_or_else(|error| panic!("{error}: {:#?}", fs.space().totals()));
                if rng.below(4) == 0 {
                    fs.fsync(entry.attr.ino, false).expect("fsync");
                }
            }
            Err(_) => fs.unlink(&CX, fs.root(), name.as_bytes()).expect("unlink"),
        }
        done += 1;
        // What snapshots keep must not fill the volume.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    done
}

#[test]
fn operations_go_on_meanwhile() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(3 << 30, &["-n", "4096"]);
    let fs = image.open_with(Options::default());
    let stop = std::sync::atomic::AtomicBool::new(false);
    for n in 0..2000 {
        common::new_file(&fs, &format!("file-{n}"), &[7; 1000]);
    }
    let caller = btrfs_fs::Caller::root();
    let snap = |name: &str| fs.snapshot(&caller, fs.root(), fs.root(), name.as_bytes(), false);
    snap("before").expect("snapshot");
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (fs, stop) = (&fs, &stop);
            scope.spawn(move || println!("{} operations", work(fs, thread, stop)));
        }
        for turn in 0..4 {
            balance(&fs);
            snap(&format!("s{turn}")).expect("snapshot");
        }
        fs.delete_subvolume(&caller, btrfs_fs::Delete::Name(fs.root(), b"s1")).expect("delete");
        balance(&fs);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    fs.sync().expect("commit");
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
    kernel(&image.path, "noatime", |mount| oracle::scrub(mount).expect("scrub"));
}

fn damage(image: &Image, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(&image.path).expect("open");
    file.write_all_at(&[0x5a; 4096], at).expect("damage");
}

#[test]
fn a_bad_copy_is_mended_and_without_a_good_one_the_group_stays() {
    testkit::require!(kernel_btrfs);
    for (profile, good) in [("dup", true), ("single", false)] {
        let image = Image::new(512 << 20, &["-d", profile]);
        let fs = image.open();
        let ino = new_content(&fs, "victim");
        fs.sync().expect("commit");
        let at = fs.stored(ino).expect("extents")[0].extent;
        fs.destroy().expect("close");
        drop(fs);
        damage(&image, copies(&image, at)[0]);
        let fs = image.open();
        let data = fs.space().group_infos().iter().filter(|group| group.flags & 1 != 0).count();
        let balanced = fs.balance_groups(|flags| flags & 1 != 0);
        match good {
            true => assert_eq!(balanced.expect("mended").groups, data as u64),
            false => {
                assert_eq!(balanced.expect_err("no good copy").errno(), libc::EIO);
                assert_eq!(fs.stored(ino).expect("extents")[0].extent, at, "it stays");
                assert_eq!(fs.read_only_reason(), None);
            }
        }
        let metadata = fs.balance_metadata().expect("the others move");
        assert!(metadata.groups > 0);
        fs.destroy().expect("close");
        drop(fs);
        if good {
            kernel(&image.path, "noatime", |mount| oracle::scrub(mount).expect("scrub"));
        }
    }
}

fn new_content(fs: &BtrfsFs, name: &str) -> Ino {
    let mut content = vec![0; 300_000];
    Rng::new(5).fill(&mut content);
    common::new_file(fs, name, &content)
}

/// Nobody asks for what moves: it stays out of memory, as it was before.
#[test]
fn what_nobody_had_in_memory_is_not_there_behind_a_balance() {
    let image = Image::new(256 << 20, &["-n", "4096"]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    for n in 0..3000 {
        common::new_file(&fs, &format!("file-{n}"), &[7; 900]);
    }
    fs.destroy().expect("close");
    drop(fs);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let before = ["memory.cache", "device.reads"].map(|name| common::stat(&fs, name));
    let report = fs.balance_metadata().expect("balance");
    let after = ["memory.cache", "device.reads"].map(|name| common::stat(&fs, name));
    let (more, reads) = ((after[0] - before[0]) / 4096, after[1] - before[1]);
    assert!(report.relocated_extents > 800, "{report:?}");
    assert!(reads < report.relocated_extents / 4, "{reads} reads: {report:?}");
    assert!(more < report.relocated_extents / 4, "{more} nodes stay in memory: {report:?}");
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
}

/// All of the device is in chunks, and those of content are empty: they make room for nodes that move.
#[test]
fn empty_groups_of_content_are_in_the_way_of_no_node() {
    testkit::require!(btrfs_progs);
    let image = Image::new(300 << 20, &["-n", "4096"]);
    let fs = image.open();
    common::new_file(&fs, "file", &[7; 100]);
    while fs.space().new_chunk(btrfs_space::Kind::Data).is_ok() {}
    fs.sync().expect("commit");
    let before = groups(&fs);
    fs.balance_groups(|flags| flags & 1 == 0).expect("there is room");
    assert!(groups(&fs).len() < before.len(), "some made room");
    common::close_and_judge(&image, fs);
}

/// An extent of 512 sectors, of which a file in `a` names every other one; `s` is a snapshot. Where `a` was changed
/// afterwards the leaves of before are those of `s` alone, and name the extent by their own address; one that `s` changed
/// names it by the file. Who looks for the latter comes to the others first. There is no other content.
fn named_both_ways(fs: &BtrfsFs) -> Ino {
    let caller = btrfs_fs::Caller::root();
    let a = fs.create_subvolume(&caller, fs.root(), b"a").unwrap().1.attr.ino;
    let file = fs.mknod(&CX, a, b"f", FileKind::File, 0o644, 0).unwrap().attr.ino;
    let punch = |ino, sector: u64| {
        fs.fallocate(&CX, ino, FallocateMode::PunchHole, sector * 4096, 4096).unwrap();
    };
    fs.write(&CX, file, 0, &vec![1; 512 * 4096], Default::default()).unwrap();
    fs.sync().unwrap();
    (0..256).for_each(|n| punch(file, 2 * n + 1));
    fs.sync().unwrap();
    fs.snapshot(&caller, a, fs.root(), b"s", false).unwrap();
    fs.sync().unwrap();
    (0..20).for_each(|n| punch(file, n * 20));
    punch(find(fs, "s/f"), 500);
    fs.sync().unwrap();
    find(fs, "s")
}

#[test]
fn content_moves_that_leaves_name_by_file_and_by_address() {
    let image = Image::new(1 << 30, &["-n", "4096"]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    named_both_ways(&fs);
    let before = common::snapshot(&fs);
    assert!(balance(&fs).relocated_extents > 0);
    common::likeness::assert_like(&before, &common::snapshot(&fs), &Default::default());
    fs.destroy().unwrap();
    drop(fs);
    common::assert_sound(&image.path);
}

#[test]
fn quotas_count_whom_such_leaves_reach() {
    let image = Image::new(1 << 30, &["-n", "4096"]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    fs.enable_quotas().unwrap();
    fs.wait_for_rescan().unwrap();
    let s = named_both_ways(&fs);
    fs.snapshot(&btrfs_fs::Caller::root(), s, fs.root(), b"c", false).unwrap();
    fs.sync().unwrap();
    let file = find(&fs, "c/f");
    // Of what lies in the first leaves it keeps nothing.
    fs.fallocate(&CX, file, FallocateMode::PunchHole, 0, 400 * 4096).unwrap();
    fs.sync().unwrap();
    fs.destroy().unwrap();
    drop(fs);
    common::assert_sound(&image.path);
}
