//! What needs no space for content is refused by no volume whose space for content is full, as by no kernel.

use crate::common;
use btrfs_fs::{BtrfsFs, LimitChange, Stored};
use common::kernel::kernel;
use common::{CX, Image, close_and_judge, errno, find, new_file};
use std::path::Path;
use testkit::oracle::sh;
use vfs::{FallocateMode, FileSystem, Ino, SetAttr};

const MIB: u64 = 1 << 20;

/// A volume with the files that `make` makes, on which no sector of content is free any more, and the same for the
/// kernel.
fn full(make: impl FnOnce(&BtrfsFs)) -> [Image; 2] {
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    make(&fs);
    fs.sync().expect("sync");
    let (rest, mut end) = (new_file(&fs, "rest", &[]), 0);
    for len in [16 * MIB, MIB, 4096] {
        while fs.fallocate(&CX, rest, FallocateMode::Allocate, end, len).is_ok() {
            end += len;
        }
    }
    fs.destroy().expect("close");
    let copy = image.copy("kernel.img");
    [image, copy]
}

/// It is as full when it is mounted again.
fn open_full(image: &Image) -> BtrfsFs {
    let fs = image.open();
    let probe = new_file(&fs, "probe", &[]);
    let more = fs.fallocate(&CX, probe, FallocateMode::Allocate, 0, 4096);
    assert_eq!(errno(more), libc::ENOSPC, "there is no room");
    fs
}

/// The kernel does what these words say, below its mount of the full volume.
fn kernel_does(image: &Image, commands: &[&str]) {
    kernel(&image.path, "noatime", |mount| {
        let within = |command: &str| run(mount.path(), command);
        within("fallocate -l 4096 probe").expect_err("there is no room");
        for command in commands {
            within(command).unwrap_or_else(|error| panic!("the kernel: {command}: {error}"));
        }
    });
}

fn run(dir: &Path, command: &str) -> Result<String, String> {
    sh("sh", &["-c", &format!("cd '{}' && exec {command}", dir.display())])
}

fn set_size(fs: &BtrfsFs, name: &str, size: u64) -> vfs::Result<()> {
    let ino = find(fs, fs.root(), name).expect("there");
    fs.setattr(&CX, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

#[test]
fn a_file_grows() {
    testkit::require!(kernel_btrfs);
    let [image, copy] = full(|fs| {
        new_file(fs, "empty", &[]);
        let kept = new_file(fs, "kept", &[]);
        fs.fallocate(&CX, kept, FallocateMode::KeepSize, 0, MIB).expect("room");
        new_file(fs, "content", &[7; 64 << 10]);
    });
    kernel_does(&copy, &["truncate -s 1M empty kept content"]);
    let fs = open_full(&image);
    for name in ["empty", "kept", "content"] {
        set_size(&fs, name, MIB).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    close_and_judge(&image, fs);
}

/// Who looks before a file is locked what it needs finds it otherwise then.
#[test]
fn two_set_the_size_of_one_file() {
    for held in [false, true] {
        let image = Image::new(256 * MIB, &[]);
        let fs = image.open();
        new_file(&fs, "file", &[7; 64 << 10]);
        if held {
            // As a transaction does: a commit would have to be refused.
            fs.hold_commits().expect("hold");
        }
        std::thread::scope(|scope| {
            for sizes in [[4096, 2 * MIB], [5000, MIB], [4096, MIB + 1]] {
                let fs = &fs;
                scope.spawn(move || {
                    for n in 0..4000 {
                        set_size(fs, "file", sizes[n % 2]).expect("there is room");
                    }
                });
            }
        });
        assert_eq!(commits_for_space(&fs), 0, "there is room");
        if held {
            fs.commit_held().expect("commit");
        }
        close_and_judge(&image, fs);
    }
}

/// A hole needs room for content only where parts of sectors become zeros, or the file is inline by then.
#[test]
fn a_file_is_punched_while_another_replaces_it() {
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    let file = new_file(&fs, "file", &[7; 100]);
    std::thread::scope(|scope| {
        let fs = &fs;
        scope.spawn(move || {
            for n in 0..2000 {
                set_size(fs, "file", 0).expect("cut");
                let content = &[5; 6000][..[100, 6000][n % 2]];
                fs.write(&CX, file, 0, content, Default::default()).expect("room");
                fs.fsync(file, false).expect("fsync");
            }
        });
        scope.spawn(move || {
            for _ in 0..2000 {
                let punch = FallocateMode::PunchHole;
                fs.fallocate(&CX, file, punch, 0, 4096).expect("there is room");
            }
        });
    });
    assert_eq!(commits_for_space(&fs), 0, "there is room");
    close_and_judge(&image, fs);
}

fn commits_for_space(fs: &BtrfsFs) -> u64 {
    fs.stats().iter().find(|stat| stat.name == "commit.for_space").expect("a counter").value
}

fn has(fs: &BtrfsFs, name: &str) -> (Ino, Vec<Stored>) {
    let ino = find(fs, fs.root(), name).expect("there");
    (ino, fs.stored(ino).expect("a file"))
}

#[test]
fn a_copy_shares() {
    testkit::require!(kernel_btrfs);
    let [image, copy] = full(|fs| _ = new_file(fs, "big", &[7; MIB as usize]));
    kernel_does(&copy, &["cp --reflink=always big copied"]);
    let fs = open_full(&image);
    let (big, extents) = has(&fs, "big");
    let used = fs.space().totals().data.used;
    let copied = new_file(&fs, "copied", &[]);
    assert_eq!(fs.copy_range(&CX, big, 0, copied, 0, MIB).expect("it takes nothing"), MIB);
    let cloned = new_file(&fs, "cloned", &[]);
    for at in [0, 2 * MIB] {
        fs.clone_range(&CX, big, 0, cloned, at, 0).expect("it takes nothing");
    }
    fs.sync().expect("sync");
    assert_eq!(has(&fs, "copied").1, extents);
    assert_eq!(has(&fs, "cloned").1, [&extents[..], &extents[..]].concat());
    assert_eq!(fs.space().totals().data.used, used);
    close_and_judge(&image, fs);
}

/// Who looks before a file is locked what sharing needs finds it otherwise then.
#[test]
fn the_target_of_a_copy_is_replaced_meanwhile() {
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    let big = new_file(&fs, "big", &[7; 64 << 10]);
    let target = new_file(&fs, "target", &[]);
    std::thread::scope(|scope| {
        let fs = &fs;
        scope.spawn(move || {
            for n in 0..400 {
                set_size(fs, "target", 0).expect("cut");
                let content = &[5; 6000][..[100, 6000][n % 2]];
                fs.write(&CX, target, 0, content, Default::default()).expect("room");
                fs.fsync(target, false).expect("fsync");
            }
        });
        scope.spawn(move || {
            for _ in 0..400 {
                fs.clone_range(&CX, big, 0, target, MIB, 0).expect("room");
            }
        });
    });
    close_and_judge(&image, fs);
}

const ZERO: FallocateMode = FallocateMode::ZeroRange { keep_size: false };
const ZERO_KEPT: FallocateMode = FallocateMode::ZeroRange { keep_size: true };

#[test]
fn what_is_preallocated_is_zeroed_again() {
    testkit::require!(kernel_btrfs);
    let [image, copy] = full(|fs| {
        let modes = [("whole", FallocateMode::Allocate), ("kept", FallocateMode::KeepSize)];
        for (name, mode) in modes {
            let ino = new_file(fs, name, &[]);
            fs.fallocate(&CX, ino, mode, 0, 2 * MIB).expect("room");
        }
        for (name, at) in [("pieces", 0), ("between", 0), ("pieces", MIB)] {
            let ino = find(fs, fs.root(), name).unwrap_or_else(|| new_file(fs, name, &[]));
            fs.fallocate(&CX, ino, FallocateMode::Allocate, at, MIB).expect("room");
        }
    });
    let commands = [
        "fallocate -z -l 2M whole",
        "fallocate -n -z -l 2M whole",
        "fallocate -z -o 77 -l 5000 whole",
        "fallocate -n -z -l 2M kept",
        "fallocate -z -l 2M kept",
    ];
    kernel_does(&copy, &commands);
    let fs = open_full(&image);
    let before = ["whole", "kept", "pieces"].map(|name| has(&fs, name));
    let [whole, kept, pieces] = [0, 1, 2].map(|n: usize| before[n].0);
    assert_eq!(before[2].1.len(), 2, "the kernel goes no further than the first");
    let calls = [
        (whole, ZERO, 0, 2 * MIB),
        (whole, ZERO_KEPT, 0, 2 * MIB),
        (whole, ZERO, 77, 5000),
        (kept, ZERO_KEPT, 0, 2 * MIB),
        (kept, ZERO, 0, 2 * MIB),
        (pieces, ZERO, 0, 2 * MIB),
    ];
    for (n, (ino, mode, at, len)) in calls.into_iter().enumerate() {
        fs.fallocate(&CX, ino, mode, at, len).unwrap_or_else(|error| panic!("{n}: {error}"));
        assert_eq!(fs.getattr(ino).expect("there").blocks, 2 * MIB / 512);
    }
    for (name, (ino, extents)) in ["whole", "kept", "pieces"].into_iter().zip(before) {
        assert_eq!(fs.getattr(ino).expect("there").size, 2 * MIB);
        assert_eq!(has(&fs, name).1, extents);
        let seen = copy.open();
        assert_eq!(has(&seen, name).1, extents, "the kernel's");
    }
    close_and_judge(&image, fs);
}

#[test]
fn what_is_preallocated_counts_once_against_a_limit() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(400 * MIB, &[]);
    let fs = image.open();
    fs.enable_quotas().expect("quotas");
    fs.wait_for_rescan().expect("counted");
    let ino = new_file(&fs, "file", &[]);
    fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, 60 * MIB).expect("room");
    let limit = LimitChange { referenced: Some(Some(100 * MIB)), ..LimitChange::default() };
    fs.limit_qgroup("0/5".parse().expect("a group"), &limit).expect("limit");
    fs.destroy().expect("close");
    drop(fs);
    let copy = image.copy("kernel.img");
    kernel(&copy.path, "noatime", |mount| {
        run(mount.path(), "fallocate -z -l 60M file").expect("the kernel does it");
        run(mount.path(), "fallocate -z -o 60M -l 60M file").expect_err("that is too much");
    });
    let fs = image.open();
    let ino = has(&fs, "file").0;
    fs.fallocate(&CX, ino, ZERO, 0, 60 * MIB).expect("it counts already");
    assert_eq!(errno(fs.fallocate(&CX, ino, ZERO, 60 * MIB, 60 * MIB)), libc::EDQUOT);
    close_and_judge(&image, fs);
}

/// A limit can be set below what is there. Then the kernel refuses what allocates also where all is allocated already: the
/// inode that changes counts, too.
#[test]
fn in_a_group_beyond_its_limit_nothing_is_allocated_again() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    fs.enable_quotas().expect("quotas");
    fs.wait_for_rescan().expect("counted");
    let ino = new_file(&fs, "file", &[]);
    fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, 8 * MIB).expect("room");
    let limit = LimitChange { referenced: Some(Some(3 * MIB)), ..LimitChange::default() };
    fs.limit_qgroup("0/5".parse().expect("a group"), &limit).expect("limit");
    fs.destroy().expect("close");
    drop(fs);
    let copy = image.copy("kernel.img");
    kernel(&copy.path, "noatime", |mount| {
        for options in ["-z", "-n -z", "-n", ""] {
            // Times that are as they should be already change nothing: each is a moment behind the last.
            std::thread::sleep(std::time::Duration::from_millis(50));
            let done = run(mount.path(), &format!("fallocate {options} -l 8M file"));
            let why = done.expect_err("beyond the limit");
            assert!(why.contains("quota exceeded"), "{options}: {why}");
        }
    });
    let fs = image.open();
    let ino = has(&fs, "file").0;
    for mode in [ZERO, ZERO_KEPT, FallocateMode::KeepSize, FallocateMode::Allocate] {
        assert_eq!(errno(fs.fallocate(&CX, ino, mode, 0, 8 * MIB)), libc::EDQUOT);
    }
    close_and_judge(&image, fs);
}

/// What is preallocated stays up to there, and is there behind that as well.
#[test]
fn what_is_written_over_it_becomes_zeros() {
    testkit::require!(kernel_btrfs);
    let (image, written) = (Image::new(256 * MIB, &[]), MIB / 2);
    let fs = image.open();
    for (name, synced) in [("memory", false), ("medium", true)] {
        for from in [0, 77, written - 100, written, written + 100] {
            let ino = new_file(&fs, &format!("{name}-{from}"), &[]);
            fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, MIB).expect("room");
            fs.write(&CX, ino, written, &[7; 64 << 10], Default::default()).expect("room");
            if synced {
                fs.sync().expect("sync");
            }
            let before = fs.stored(ino).expect("a file")[0];
            fs.fallocate(&CX, ino, ZERO, from, MIB - from).expect("room");
            let mut content = vec![1; MIB as usize];
            assert_eq!(fs.read(ino, 0, &mut content).expect("read"), content.len());
            let kept = written..from.max(written);
            let is_right = |(n, byte): (u64, u8)| byte == 7 * u8::from(kept.contains(&n));
            let what = format!("{name}, from {from} on");
            assert!((0..).zip(content.iter().copied()).all(is_right), "{what}");
            let after = fs.stored(ino).expect("a file")[0];
            let first = Stored { len: written, ..before };
            assert_eq!(after, first, "{what}");
            assert_eq!(fs.getattr(ino).expect("there").blocks, MIB / 512, "{what}");
        }
    }
    close_and_judge(&image, fs);
}
