//! fallocate over what a file has already, on the medium or in memory, asks for no space a second time: not of the
//! volume, not of a quota group.

use crate::common;
use blocksim::Hooked;
use btrfs_disk::ids::block_group::DATA;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::{BtrfsFs, LimitChange, Options};
use btrfs_space::{GroupInfo, Moment, Space};
use common::unreadable::Unreadable;
use common::{
    CX, Cached, Image, close_and_judge, copies, errno, find, new_file, open_device, stat,
};
use fuzzing::patch::Patch;
use std::sync::Arc;
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

/// Behind the allocation nothing is read any more: what fails does so before there is an extent that nobody has.
#[test]
fn where_nothing_can_be_read_nothing_is_allocated_in_vain() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &[]);
    let fs = open(&image);
    new_file(&fs, "file", &[3; 100_000]);
    fs.destroy().expect("close");
    drop(fs);
    let leaf = Patch::new(&image.path).leaf(TreeId::FS, Key::MIN).logical();
    let leaf: Vec<_> = copies(&image, leaf.0).iter().map(|at| *at..at + 16384).collect();
    let below = Cached(open_device(&image.path, false));
    let device = Arc::new(Hooked { below, hook: Unreadable::new(Vec::new()) });
    // Nodes are read whenever they are looked at.
    let options = Options { background: false, cache_bytes: 0, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("open");
    let ino = find(&fs, fs.root(), "file").expect("there");
    // What is neither in use nor free: nobody has it.
    let nobodys = || {
        let groups = fs.space().group_infos().into_iter().filter(|group| group.flags & DATA != 0);
        let free = |group: &GroupInfo| group.free.iter().map(|(_, len)| len).sum::<u64>();
        groups.map(|group| group.len - group.used - free(&group)).sum::<u64>()
    };
    assert_eq!(nobodys(), 0);
    let lost = device.clone();
    let lose = move |_: &Space| lost.hook.lose(leaf.clone());
    fs.space().meanwhile(Moment::Allocate, lose);
    let done = fs.fallocate(&CX, ino, FallocateMode::KeepSize, MIB, MIB);
    device.hook.mend();
    fs.sync().expect("commit");
    assert_eq!(nobodys(), 0, "{done:?}");
    drop(device);
    close_and_judge(&image, fs);
}
