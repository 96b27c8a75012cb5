//! Large files that lose their last name are erased in the background, in steps: nobody waits for it but who
//! would hear ENOSPC else, and each commit on the way is a whole volume.

use crate::common;
use btrfs_check::{CheckOptions, Report};
use btrfs_fs::{BtrfsFs, Caller, Injection, LimitChange, Options};
use btrfs_volume::{OpenOptions, Volume};
use common::{CX, Image, stat, wait_until_erased};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::{oracle, require};
use vfs::{Durable, FileKind, FileSystem};

/// More than go in three commits.
const EXTENTS: u64 = 25_000;

/// A file of so many extents of one sector each, with holes between them; nobody has it open.
fn in_pieces(fs: &BtrfsFs, name: &str, extents: u64) {
    let ino = common::new_file(fs, name, &[]);
    for extent in 0..extents {
        fs.write(&CX, ino, extent * 8192, &[7; 4096], Default::default()).expect("write");
    }
    fs.sync().expect("sync");
    fs.forget(ino, 1);
}

fn unlink(fs: &BtrfsFs, name: &str) {
    fs.unlink(&CX, fs.root(), name.as_bytes()).expect("unlink");
}

fn left(fs: &BtrfsFs) -> u64 {
    stat(fs, "inodes.to_erase")
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn checked(image: &Path) -> Report {
    let device = Arc::new(common::open_device(image, true));
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = Arc::new(Volume::open(device, options).expect("volume opens"));
    btrfs_check::check(volume, &CheckOptions::default()).expect("checked")
}

/// Of three, since other tests have the processors as well.
#[test]
fn who_unlinks_a_large_file_does_not_wait() {
    let extents = common::number("SPINNEY_EXTENTS", EXTENTS);
    let image = Image::new(2 << 30, &[]);
    let fs = image.open_with(Options::default());
    let mut times = Vec::new();
    for _ in 0..3 {
        in_pieces(&fs, "large", extents);
        let free = fs.statfs().expect("statfs").blocks_free;
        let start = Instant::now();
        unlink(&fs, "large");
        let unlinked = start.elapsed();
        let mut longest = [Duration::ZERO; 4];
        let mut beside = 0;
        while left(&fs) > 0 {
            let mut turn = 0;
            let mut note = |time: Duration| {
                longest[turn] = time.max(longest[turn]);
                turn += 1;
            };
            note(timed(|| fs.forget(common::new_file(&fs, "small", b"x"), 1)));
            note(timed(|| unlink(&fs, "small")));
            note(timed(|| _ = fs.statfs().expect("statfs")));
            beside += 1;
            if beside % 100 == 0 {
                note(timed(|| fs.sync().expect("sync")));
            }
        }
        times.push((unlinked, start.elapsed()));
        let [create, unlink, statfs, sync] = longest;
        eprintln!(
            "unlink {unlinked:?} of {:?}; beside it {beside} times: create {create:?}, unlink \
             {unlink:?}, statfs {statfs:?}, sync {sync:?}",
            start.elapsed()
        );
        fs.sync().expect("sync");
        let came = fs.statfs().expect("statfs").blocks_free - free;
        assert!(came > extents * 9 / 10, "{came} sectors came back of {extents}");
    }
    assert!(times.iter().any(|(unlinked, erased)| *unlinked * 4 < *erased), "{times:?}");
    common::close_and_judge(&image, fs);
}

/// However many it takes, and wherever a commit finds it.
#[test]
fn what_finds_no_space_waits_for_what_is_being_erased() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(Options::default());
    in_pieces(&fs, "large", EXTENTS);
    let rest = common::new_file(&fs, "rest", &[]);
    let mut end = 0;
    let mut write = |len: usize| {
        let written = fs.write(&CX, rest, end, &vec![3; len], Default::default());
        end += *written.as_ref().unwrap_or(&0) as u64;
        written.map(drop)
    };
    for len in [1 << 20, 64 << 10, 4096] {
        while write(len).is_ok() {}
    }
    let until_full = write(1 << 20).expect_err("it is full").errno();
    assert_eq!(until_full, libc::ENOSPC);
    unlink(&fs, "large");
    // Nine tenths of it, of which a commit that comes at once has a third.
    for mib in 0..(EXTENTS * 4096 * 9 / 10) >> 20 {
        write(1 << 20).unwrap_or_else(|error| panic!("MiB {mib}: {error}"));
    }
    fs.forget(rest, 1);
    wait_until_erased(&fs);
    common::close_and_judge(&image, fs);
}

/// As of space, so of what a quota group may have.
#[test]
fn who_is_over_a_limit_waits_for_what_is_being_erased() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(Options::default());
    fs.enable_quotas().expect("quotas");
    fs.wait_for_rescan().expect("counted");
    in_pieces(&fs, "large", EXTENTS);
    let most = EXTENTS * 4096 + (8 << 20);
    let limit = LimitChange { referenced: Some(Some(most)), ..LimitChange::default() };
    fs.limit_qgroup("0/5".parse().unwrap(), &limit).expect("limit");
    let rest = common::new_file(&fs, "rest", &[]);
    let write = |mib: u64| fs.write(&CX, rest, mib << 20, &[3; 1 << 20], Default::default());
    let full = (0..64).find(|mib| write(*mib).is_err()).expect("a limit");
    unlink(&fs, "large");
    for mib in full..(EXTENTS * 4096 * 8 / 10) >> 20 {
        write(mib).unwrap_or_else(|error| panic!("MiB {mib}: {error}"));
    }
    fs.forget(rest, 1);
    wait_until_erased(&fs);
    common::close_and_judge(&image, fs);
}

/// The volume of each commit since the name went, as a crash would leave it.
fn crashes(image: &Image) -> Vec<PathBuf> {
    let copies = Arc::new(Mutex::new((false, Vec::<PathBuf>::new())));
    let (path, seen) = (image.path.clone(), copies.clone());
    let look = move || {
        let mut seen = seen.lock().expect("no panic");
        if seen.0 {
            let copy = path.with_file_name(format!("crashed-{}", seen.1.len()));
            let words = ["--sparse=always", path.to_str().unwrap(), copy.to_str().unwrap()];
            oracle::sh("cp", &words).expect("cp");
            seen.1.push(copy);
        }
    };
    let injection = Injection::after_commit(look);
    let fs = image.open_with(Options { injection, ..Options::default() });
    in_pieces(&fs, "large", EXTENTS);
    copies.lock().expect("no panic").0 = true;
    unlink(&fs, "large");
    wait_until_erased(&fs);
    common::close_and_judge(image, fs);
    std::mem::take(&mut copies.lock().expect("no panic").1)
}

fn each_commit_is_whole(options: &[&str]) {
    let image = Image::new(300 << 20, options);
    let copies = crashes(&image);
    let orphans: Vec<u64> = copies.iter().map(|copy| checked(copy).totals.orphans).collect();
    assert!(orphans.iter().sum::<u64>() >= 3, "the third commit has not all of it: {orphans:?}");
    assert_eq!(orphans.last(), Some(&0));
    for (nth, copy) in copies.iter().enumerate() {
        common::assert_sound(copy);
        match nth % 2 {
            0 => oracle::with_kernel(copy, "noatime", |_| ()).expect("the kernel mounts it"),
            _ => {
                let fs = common::open_image(copy, Options::default());
                fs.destroy().expect("close");
            }
        }
        let totals = checked(copy).totals;
        assert_eq!((totals.orphans, totals.data_bytes), (0, 0), "{nth}");
        common::assert_sound(copy);
    }
}

#[test]
fn a_crash_in_the_middle_is_cleaned_by_who_mounts_next() {
    require!(kernel_btrfs);
    each_commit_is_whole(&[]);
}

/// Without NO_HOLES what is gone is missing.
#[test]
fn a_crash_in_the_middle_where_holes_have_items() {
    require!(kernel_btrfs);
    each_commit_is_whole(&["-O", "^no-holes"]);
}

/// What is closed in the middle leaves nothing; what stops in the middle leaves it to the next.
#[test]
fn a_volume_may_close_stop_or_be_still_in_the_middle() {
    let image = Image::new(300 << 20, &[]);
    let fs = image.open_with(Options::default());
    in_pieces(&fs, "large", EXTENTS);
    unlink(&fs, "large");
    fs.destroy().expect("close");
    drop(fs);
    assert_eq!(checked(&image.path).totals.orphans, 0);
    common::assert_sound(&image.path);

    let fs = image.open_with(Options::default());
    in_pieces(&fs, "large", EXTENTS);
    unlink(&fs, "large");
    fs.still().expect("still");
    let before = std::fs::read(&image.path).expect("read");
    let waits = left(&fs);
    std::thread::sleep(Duration::from_millis(100));
    assert!(std::fs::read(&image.path).expect("read") == before, "nothing is written");
    assert_eq!(left(&fs), waits, "and no step taken");
    drop(before);
    common::assert_sound(&image.path);
    fs.writable_again().expect("it is open");
    wait_until_erased(&fs);

    in_pieces(&fs, "large", EXTENTS);
    unlink(&fs, "large");
    fs.shut_down(Durable::Changes).expect("shut down");
    drop(fs);
    common::assert_sound(&image.path);
    let fs = image.open_with(Options::default());
    common::close_and_judge(&image, fs);
    assert_eq!(checked(&image.path).totals.orphans, 0);
}

/// A snapshot has what is being erased as well, and does not wait for it.
#[test]
fn a_snapshot_in_the_middle_goes_on_in_the_background() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(Options::default());
    let snapshot = |name: &str| {
        fs.snapshot(&Caller::root(), fs.root(), fs.root(), name.as_bytes(), false)
            .expect("snapshot")
    };
    let alone = timed(|| _ = snapshot("before"));
    in_pieces(&fs, "large", EXTENTS);
    unlink(&fs, "large");
    let beside = timed(|| _ = snapshot("beside"));
    let waits = left(&fs);
    eprintln!("a snapshot takes {alone:?}, and {beside:?} beside {waits} that are erased");
    assert!(waits > 0, "what was removed is not erased before the snapshot returns");
    wait_until_erased(&fs);
    fs.destroy().expect("close");
    drop(fs);
    assert_eq!(checked(&image.path).totals.orphans, 0);
    common::assert_sound(&image.path);
}

/// Others remove large files without an end, of another subvolume: who is over his own limit hears it.
#[test]
fn who_is_over_a_limit_does_not_wait_for_ever() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(Options::default());
    fs.enable_quotas().expect("quotas");
    fs.wait_for_rescan().expect("counted");
    let small = fs.create_subvolume(&Caller::root(), fs.root(), b"small").expect("subvolume");
    let limit = LimitChange { referenced: Some(Some(1 << 20)), ..LimitChange::default() };
    fs.limit_qgroup(format!("0/{}", small.0.0).parse().unwrap(), &limit).expect("limit");
    let over = std::sync::atomic::AtomicBool::new(false);
    let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over() {
                in_pieces(&fs, "large", 500);
                unlink(&fs, "large");
            }
        });
        let made = fs.mknod(&CX, small.1.attr.ino, b"file", FileKind::File, 0o644, 0);
        let file = made.expect("create").attr.ino;
        let start = Instant::now();
        let written = fs.write(&CX, file, 0, &[3; 4 << 20], Default::default());
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(written.expect_err("over its limit").errno(), libc::EDQUOT);
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
        fs.forget(file, 1);
    });
    wait_until_erased(&fs);
    common::close_and_judge(&image, fs);
}

/// A transaction commits the name's going; the rest goes behind it.
#[test]
fn while_commits_are_held_it_waits() {
    let image = Image::new(300 << 20, &[]);
    let fs = image.open_with(Options::default());
    in_pieces(&fs, "large", EXTENTS);
    let free = fs.statfs().expect("statfs").blocks_free;
    fs.hold_commits().expect("held");
    unlink(&fs, "large");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(left(&fs), 1);
    fs.commit_held().expect("committed");
    wait_until_erased(&fs);
    fs.sync().expect("sync");
    assert!(fs.statfs().expect("statfs").blocks_free > free + EXTENTS / 2);
    common::close_and_judge(&image, fs);
}
