//! A change of many extents that takes several steps, with commits between: a reader in between sees what
//! was written last, or that it is gone, and no older content; and each step goes on where the one before ended.

#![allow(dead_code)]

mod common;

use blocksim::{Hooked, SimDevice};
use btrfs_fs::{BtrfsFs, Defect, Injection, Options};
use common::CX;
use common::places::{Flushes, volume_with_flushes_of};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use vfs::{FallocateMode, FileSystem, Ino, SetAttr, WriteFlags};

const SECTOR: usize = 4096;
const EXTENTS: usize = 24;
const LEN: u64 = (SECTOR * EXTENTS) as u64;

type Device = Hooked<SimDevice, Flushes>;

fn a_volume(len: u64) -> (Arc<Device>, Arc<BtrfsFs>) {
    let device = volume_with_flushes_of("changes", len);
    let injection = Injection::of(Some(Defect::RoomForOneStep));
    let options = Options { background: false, injection, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("mount");
    (device, Arc::new(fs))
}

/// A file of many extents, all of them overwritten in memory.
fn a_file(fs: &BtrfsFs) -> Ino {
    let ino = common::new_file(fs, "file", &[]);
    let direct = WriteFlags { direct: true, ..WriteFlags::default() };
    for n in 0..EXTENTS {
        fs.write(&CX, ino, (n * SECTOR) as u64, &[1; SECTOR], direct).expect("write");
        fs.sync().expect("sync");
    }
    fs.write(&CX, ino, 0, &[2; LEN as usize], Default::default()).expect("write");
    ino
}

type Change = fn(&BtrfsFs, Ino) -> vfs::Result<()>;

fn punch(fs: &BtrfsFs, ino: Ino) -> vfs::Result<()> {
    fs.fallocate(&CX, ino, FallocateMode::PunchHole, 0, LEN)
}

fn cut(fs: &BtrfsFs, ino: Ino) -> vfs::Result<()> {
    fs.setattr(&CX, ino, &SetAttr { size: Some(100), ..SetAttr::default() }).map(drop)
}

fn zero(fs: &BtrfsFs, ino: Ino) -> vfs::Result<()> {
    fs.fallocate(&CX, ino, FallocateMode::ZeroRange { keep_size: true }, 0, LEN)
}

#[test]
fn what_was_written_last_is_there_until_it_goes() {
    let changes: [(&str, Change, bool); 2] = [("punch", punch, true), ("cut", cut, false)];
    for (what, change, leaves_zeros) in changes {
        let (device, fs) = a_volume(300 << 20);
        let ino = a_file(&fs);
        let places = &device.hook.places;
        places.arm("flush");
        let seen = std::thread::scope(|scope| {
            let fs = &fs;
            let changes = std::thread::Builder::new().name("changes".into());
            let changes = changes.spawn_scoped(scope, move || change(fs, ino));
            places.wait_until_there("flush");
            let mut seen = vec![0; fs.getattr(ino).expect("there").size as usize];
            fs.read(ino, 0, &mut seen).expect("read");
            places.release("flush");
            changes.expect("a thread").join().expect("no panic").expect("changed");
            seen
        });
        assert!(seen.contains(&2), "{what}: it is not done");
        let gone = if leaves_zeros { seen.contains(&0) } else { seen.len() < LEN as usize };
        assert!(gone, "{what}: it has begun");
        assert_eq!(seen.iter().position(|byte| *byte == 1), None, "{what}: older content");
        let mut after = vec![9; 200];
        let read = fs.read(ino, 0, &mut after).expect("read");
        let expected = if leaves_zeros { [0; 200].as_slice() } else { &[2; 100] };
        assert_eq!(&after[..read], expected, "{what}");
        fs.destroy().expect("close");
        common::judge_image(&device.below.image());
        common::check_device(device, true, btrfs_check::Severity::Note);
    }
}

#[test]
fn zeroing_goes_on_where_it_was() {
    // More than one extent.
    const RANGE: u64 = 600 << 20;
    let (device, fs) = a_volume(1 << 30);
    let ino = a_file(&fs);
    zero(&fs, ino).expect("zero");
    let (done, is_done) = channel();
    let other = fs.clone();
    std::thread::spawn(move || {
        let mode = FallocateMode::ZeroRange { keep_size: false };
        done.send(other.fallocate(&CX, ino, mode, 0, RANGE)).expect("somebody waits");
    });
    is_done.recv_timeout(Duration::from_secs(120)).expect("it ends").expect("zeroed");
    let attr = fs.getattr(ino).expect("there");
    assert_eq!((attr.size, attr.blocks), (RANGE, RANGE / 512));
    fs.destroy().expect("close");
    common::judge_image(&device.below.image());
    common::check_device(device, true, btrfs_check::Severity::Note);
}
