//! fallocate over what a file has already, on the medium or in memory, asks for no space a second time: not of the
//! volume, not of a quota group.

mod common;

use btrfs_fs::{BtrfsFs, LimitChange, Options};
use common::{CX, Image, close_and_judge, errno, new_file, stat};
use vfs::{FallocateMode, FileSystem, Ino};

const MIB: u64 = 1 << 20;
const MODES: [FallocateMode; 2] = [FallocateMode::Allocate, FallocateMode::KeepSize];

fn open(image: &Image) -> BtrfsFs {
    let dirty_bytes = 256 * MIB;
    let memory_bytes = 4 * dirty_bytes;
    image.open_with(Options { background: false, dirty_bytes, memory_bytes, ..Options::default() })
}

/// A file of so many bytes, all of them in memory.
fn in_memory(fs: &BtrfsFs, len: u64) -> Ino {
    let ino = new_file(fs, "in-memory", &[]);
    for at in (0..len).step_by(65536) {
        fs.write(&CX, ino, at, &[5; 65536], Default::default()).expect("room");
    }
    assert!(stat(fs, "delta.dirty_bytes") >= len, "it gathers");
    ino
}

#[test]
fn what_is_unwritten_has_its_space() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(400 * MIB, &[]);
    let fs = open(&image);
    let rest = new_file(&fs, "rest", &[]);
    let free = fs.statfs().expect("statfs").blocks_available * 4096;
    fs.fallocate(&CX, rest, FallocateMode::Allocate, 0, free - 100 * MIB).expect("room");
    let ino = in_memory(&fs, 60 * MIB);
    for mode in MODES {
        fs.fallocate(&CX, ino, mode, 0, 60 * MIB).expect("it has its space");
    }
    close_and_judge(&image, fs);
}

#[test]
fn what_is_unwritten_counts_once_against_a_limit() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(400 * MIB, &[]);
    let fs = open(&image);
    fs.enable_quotas().expect("quotas");
    fs.wait_for_rescan().expect("counted");
    let limit = LimitChange { referenced: Some(Some(100 * MIB)), ..LimitChange::default() };
    fs.limit_qgroup("0/5".parse().expect("a group"), &limit).expect("limit");
    let ino = in_memory(&fs, 60 * MIB);
    fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, 60 * MIB).expect("it counts already");
    let more = fs.fallocate(&CX, ino, FallocateMode::Allocate, 60 * MIB, 60 * MIB);
    assert_eq!(errno(more), libc::EDQUOT);
    close_and_judge(&image, fs);
}

#[test]
fn on_a_full_volume_what_is_there_can_be_allocated() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &[]);
    let fs = open(&image);
    let ino = new_file(&fs, "file", &[3; 100_000]);
    fs.sync().expect("sync");
    let (rest, mut at) = (new_file(&fs, "rest", &[]), 0);
    for len in [MIB, 65536, 4096] {
        while let Ok(written) = fs.write(&CX, rest, at, &vec![1; len as usize], Default::default())
        {
            at += written as u64;
        }
    }
    let mut last = 0;
    while fs.fallocate(&CX, rest, FallocateMode::Allocate, at + last, 4096).is_ok() {
        last += 4096;
    }
    assert_eq!(fs.space().totals().data.free, 0, "all of it can be allocated");
    for (at, len) in [(0, 98304), (0, 100_000), (77, 5000)] {
        for mode in MODES {
            fs.fallocate(&CX, ino, mode, at, len).expect("it is there");
        }
    }
    assert_eq!(fs.getattr(ino).expect("there").size, 100_000);
    assert_eq!(errno(fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, MIB)), libc::ENOSPC);
    close_and_judge(&image, fs);
}
