//! What needs no space for content is refused by no volume whose space for content is full, as by no kernel.

mod common;

use btrfs_fs::{BtrfsFs, Stored};
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
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    new_file(&fs, "file", &[7; 64 << 10]);
    std::thread::scope(|scope| {
        for sizes in [[4096, 2 * MIB], [5000, MIB], [4096, MIB + 1]] {
            let fs = &fs;
            scope.spawn(move || {
                for n in 0..400 {
                    set_size(fs, "file", sizes[n % 2]).expect("there is room");
                }
            });
        }
    });
    close_and_judge(&image, fs);
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
