//! Files of any number of items for holes, which volumes without NO_HOLES have, and of space behind the end: what
//! goes through all of it has a few of the items in memory, and in one operation.

#![allow(dead_code)]

use crate::common;
use blocksim::{Image, SimDevice};
use btrfs_fs::{BtrfsFs, Options, compared_with_gaps, most_mapped};
use btrfs_image::mkfs::MkfsOptions;
use common::CX;
use std::sync::Arc;
use vfs::{FallocateMode, FileSystem, Ino, SetAttr, WriteFlags};

const SECTOR: u64 = 4096;
const ITEMS: u64 = 3000;
const END: u64 = ITEMS * SECTOR;
/// At once, with what comes beside.
const FEW: usize = 1100;

fn a_volume(no_holes: bool) -> (Arc<SimDevice>, BtrfsFs) {
    let device = Arc::new(SimDevice::new(Image::zeros(300 << 20)));
    let mut options = MkfsOptions::default();
    options.features.no_holes = no_holes;
    btrfs_image::mkfs::make(&*device, &options).expect("mkfs");
    (device.clone(), mount(device))
}

fn mount(device: Arc<SimDevice>) -> BtrfsFs {
    let options = Options { background: false, ..Options::default() };
    BtrfsFs::open_device(device, options).expect("mount")
}

fn resize(fs: &BtrfsFs, ino: Ino, size: u64) {
    fs.setattr(&CX, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("resize");
}

/// One hole after the other, and content behind.
fn of_many_holes(fs: &BtrfsFs) -> Ino {
    let ino = common::new_file(fs, "file", &[]);
    (1..=ITEMS).for_each(|n| resize(fs, ino, n * SECTOR));
    fs.write(&CX, ino, END, &[7; SECTOR as usize], Default::default()).expect("write");
    fs.sync().expect("sync");
    ino
}

fn fallocate(fs: &BtrfsFs, ino: Ino, mode: FallocateMode) {
    fs.fallocate(&CX, ino, mode, 0, END + SECTOR).expect("fallocate");
}

/// What lies over them in memory goes with them.
fn punch_unwritten(fs: &BtrfsFs, ino: Ino) {
    for n in 0..ITEMS / 2 {
        let at = n * 2 * SECTOR;
        fs.write(&CX, ino, at, &[8; SECTOR as usize], Default::default()).expect("write");
    }
    fallocate(fs, ino, FallocateMode::PunchHole);
}

#[test]
fn few_items_for_holes_go_in_one_operation() {
    type Change = fn(&BtrfsFs, Ino);
    let changes: [(&str, Change); 4] = [
        ("punch", |fs, ino| fallocate(fs, ino, FallocateMode::PunchHole)),
        ("punch what is unwritten", punch_unwritten),
        ("allocate", |fs, ino| {
            fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, END).expect("allocate");
        }),
        ("zero", |fs, ino| fallocate(fs, ino, FallocateMode::ZeroRange { keep_size: true })),
    ];
    for (what, change) in changes {
        let (device, fs) = a_volume(false);
        let ino = of_many_holes(&fs);
        let _before = most_mapped();
        change(&fs, ino);
        let most = most_mapped();
        assert!((1..FEW).contains(&most), "{what}: {most} at once");
        let mut content = vec![1; END as usize];
        assert_eq!(fs.read(ino, 0, &mut content).expect("read"), content.len());
        assert_eq!(content.iter().position(|byte| *byte != 0), None, "{what}");
        fs.destroy().expect("close");
        common::judge_image(&device.image());
        common::check_device(device, true, btrfs_check::Severity::Note);
    }
}

/// A file grows over what was allocated behind its end, piece by piece.
#[test]
fn few_gaps_become_holes_at_once() {
    let (device, fs) = a_volume(false);
    let ino = common::new_file(&fs, "file", &[]);
    for n in 0..ITEMS {
        fs.fallocate(&CX, ino, FallocateMode::KeepSize, (2 * n + 1) * SECTOR, SECTOR)
            .expect("keep");
    }
    fs.sync().expect("sync");
    let _before = most_mapped();
    resize(&fs, ino, 2 * END + SECTOR);
    let most = most_mapped();
    assert!((1..FEW).contains(&most), "{most} at once");
    let blocks = fs.getattr(ino).expect("there").blocks;
    assert_eq!(blocks, END / 512);
    fs.destroy().expect("close");
    common::judge_image(&device.image());
    common::check_device(device, true, btrfs_check::Severity::Note);
}

/// A file of many extents that lie apart.
fn of_many_extents(fs: &BtrfsFs) -> Ino {
    let ino = common::new_file(fs, "file", &[]);
    for n in 0..ITEMS {
        fs.write(&CX, ino, n * 2 * SECTOR, &[7; SECTOR as usize], Default::default())
            .expect("write");
    }
    fs.sync().expect("sync");
    ino
}

#[test]
fn few_extents_are_looked_at_together_after_a_crash() {
    type Change = fn(&BtrfsFs, Ino);
    let changes: [(&str, Change, u64); 2] = [
        ("cut", |fs, ino| resize(fs, ino, 100), 100),
        (
            "punch",
            |fs, ino| {
                let end = 2 * END - SECTOR;
                fs.fallocate(&CX, ino, FallocateMode::PunchHole, SECTOR, end).expect("punch");
            },
            2 * END - SECTOR,
        ),
    ];
    for (what, change, size) in changes {
        let (device, fs) = a_volume(true);
        let ino = of_many_extents(&fs);
        change(&fs, ino);
        let commits = common::stat(&fs, "commit.count");
        fs.fsync(ino, false).expect("fsync");
        assert_eq!(common::stat(&fs, "commit.count"), commits, "{what}: the log has it");
        let crashed = Arc::new(SimDevice::new(device.image()));
        let _before = most_mapped();
        let fs = mount(crashed.clone());
        let most = most_mapped();
        assert!((1..FEW).contains(&most), "{what}: {most} at once");
        let attr = fs.getattr(ino).expect("there");
        assert_eq!((attr.size, attr.blocks), (size, SECTOR / 512), "{what}");
        fs.destroy().expect("close");
        common::check_device(crashed, true, btrfs_check::Severity::Note);
    }
}

/// What a reader of the sharing asks for is told of all of them.
#[test]
fn stored_ranges_are_told_of_a_few_at_a_time() {
    let (_device, fs) = a_volume(true);
    let ino = of_many_extents(&fs);
    let _before = most_mapped();
    assert_eq!(fs.stored(ino).expect("told").len() as u64, ITEMS);
    let most = most_mapped();
    assert!((1..FEW).contains(&most), "{most} at once");
}

fn punch(fs: &BtrfsFs, ino: Ino, n: u64) {
    fs.fallocate(&CX, ino, FallocateMode::PunchHole, n * 2 * SECTOR, SECTOR).expect("punch");
}

/// A log says of each hole what lies in it now: not by a look at all that changed of the file.
#[test]
fn a_hole_is_compared_with_what_lies_there() {
    let (device, fs) = a_volume(true);
    let ino = of_many_extents(&fs);
    let direct = WriteFlags { direct: true, ..WriteFlags::default() };
    for n in 0..ITEMS / 2 {
        punch(&fs, ino, 2 * n);
        let at = (2 * n + 1) * 2 * SECTOR;
        fs.write(&CX, ino, at, &[8; SECTOR as usize], direct).expect("write");
    }
    let _before = compared_with_gaps();
    fs.fsync(ino, false).expect("fsync");
    let compared = compared_with_gaps() as u64;
    assert!(compared <= 4 * ITEMS, "{compared} extents were compared with holes");
    fs.destroy().expect("close");
    common::check_device(device, true, btrfs_check::Severity::Note);
}
