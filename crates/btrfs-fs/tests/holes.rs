//! Files of any number of items for holes, which volumes without NO_HOLES have, and of space behind the end: what
//! goes through all of it has a few of the items in memory, and in one operation.

#![allow(dead_code)]

mod common;

use blocksim::{Image, SimDevice};
use btrfs_fs::{BtrfsFs, Options, most_mapped};
use btrfs_image::mkfs::MkfsOptions;
use common::CX;
use std::sync::Arc;
use vfs::{FallocateMode, FileSystem, Ino, SetAttr};

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
