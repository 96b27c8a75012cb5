//! A flush of the superblock that fails: the machine's cache shows then what the medium does not have. Whatever a
//! later mount believes and writes, the first copy on the medium leads to a whole volume at any moment: the
//! kernel reads no other.

#![allow(dead_code)]

use crate::harness;
use base::base;
use blockdev::BlockDevice;
use blocksim::{Cached, GoOn, Hooked, Image, Request, RequestHook, SimDevice, Uncaching};
use btrfs_disk::Superblock;
use btrfs_disk::superblock::SUPER_SIZE;
use btrfs_fs::BtrfsFs;
use btrfs_image::mkfs::MkfsOptions;
use harness::{base, ops, state};
use ops::CX;
use std::io;
use std::sync::{Arc, Mutex};
use testkit::compare::TreeSnapshot;
use vfs::{FileKind, FileSystem, XattrMode};

const FIRST: u64 = 64 << 10;
const SECOND: u64 = 64 << 20;
/// As many as a replay writes nodes for that go beyond what is free in front of a log.
const MANY: usize = 100;

fn mount(device: Arc<dyn BlockDevice>) -> BtrfsFs {
    BtrfsFs::open_device(device, base::options()).expect("mount")
}

fn make(fs: &BtrfsFs, name: &str) {
    let entry = fs.mknod(&CX, fs.root(), name.as_bytes(), FileKind::File, 0o644, 0).expect(name);
    fs.forget(entry.attr.ino, 1);
}

/// A file with so many attributes is in a log.
fn make_synced(fs: &BtrfsFs, name: &str, attributes: usize) -> vfs::Result<()> {
    let entry = fs.mknod(&CX, fs.root(), name.as_bytes(), FileKind::File, 0o644, 0).expect(name);
    let ino = entry.attr.ino;
    for number in 0..attributes {
        let name = format!("user.{number}");
        fs.setxattr(&CX, ino, name.as_bytes(), &[7; 3000], XattrMode::Create).expect(&name);
    }
    let synced = fs.fsync(ino, false);
    fs.forget(ino, 1);
    synced
}

fn has_log(device: &dyn BlockDevice) -> bool {
    let mut bytes = [0; SUPER_SIZE];
    device.read_at(FIRST, &mut bytes).expect("read");
    Superblock::parse(&bytes, FIRST).expect("valid").fields.log_root.0 != 0
}

/// Notes what a power cut would leave behind each write.
struct Cuts {
    device: Arc<Cached>,
    left: Mutex<Vec<Image>>,
}

impl RequestHook for Cuts {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        go_on()?;
        if request.changes() {
            self.left.lock().expect("no panic").push(self.device.written_back());
        }
        Ok(())
    }
}

fn names(fs: &dyn FileSystem) -> Vec<String> {
    let tree = TreeSnapshot::of(fs).expect("every file");
    tree.nodes.keys().map(|path| format!("{path:?}")).collect()
}

/// What the volume holds by its first copy alone, and whole.
fn by_first_copy(medium: &Image) -> Vec<String> {
    let device = Arc::new(SimDevice::new(medium.clone()));
    if device.len() > SECOND {
        device.write_at(SECOND, &[0; 4096]).expect("written");
    }
    state::check(&device.image()).expect("a whole volume");
    names(&mount(device))
}

/// A commit fails as its first copy is to be durable; then another mount comes to just that in its next commit.
fn cut_at_next_first_copy(medium: Image, uncaching: Uncaching) {
    let device = Arc::new(Cached::new(medium, uncaching));
    let fs = mount(device.clone());
    for number in 0..4 {
        make(&fs, &format!("before-{number}"));
        fs.sync().expect("a commit");
    }
    make(&fs, "lost?");
    device.fail_flush_of(FIRST);
    fs.sync().expect_err("its first copy could not be written");
    drop(fs);
    let fs = mount(device.clone());
    let seen = names(&fs);
    make(&fs, "later");
    device.fail_flush_of(FIRST);
    fs.sync().expect_err("its first copy could not be written");
    assert!(device.has_failed());
    assert_eq!(by_first_copy(&device.medium()), seen, "what the mount has gone on from");
}

#[test]
fn what_a_cache_alone_has_of_a_superblock_is_written_again() {
    for number in 0..2 {
        cut_at_next_first_copy(base(number).image.clone(), Uncaching::DoesNothing);
    }
}

#[test]
fn a_mount_goes_on_from_what_the_medium_has() {
    for number in 0..2 {
        cut_at_next_first_copy(base(number).image.clone(), Uncaching::Works);
    }
}

/// It has one superblock: nothing tells that the medium has another.
#[test]
fn a_small_mount_goes_on_from_what_the_medium_has() {
    let device = SimDevice::new(Image::zeros(60 << 20));
    let options = MkfsOptions { mixed: true, ..MkfsOptions::default() };
    btrfs_image::mkfs::make(&device, &options).expect("mkfs");
    cut_at_next_first_copy(device.image(), Uncaching::Works);
}

/// The mount sees a log that is in a cache alone, and replays it: until the medium leads to it, nothing is written
/// over the log that the medium leads to.
#[test]
fn a_mount_writes_over_nothing_that_the_medium_leads_to() {
    for number in 0..2 {
        let device = Arc::new(Cached::new(base(number).image.clone(), Uncaching::DoesNothing));
        let fs = mount(device.clone());
        make_synced(&fs, "synced", 0).expect("a log");
        device.fail_flush_of(FIRST);
        make_synced(&fs, "lost?", MANY).expect_err("the first copy could not be written");
        drop(fs);
        assert!(has_log(&*device), "no commit");
        let before = by_first_copy(&device.medium());
        let hook = Cuts { device: device.clone(), left: Mutex::default() };
        let device = Arc::new(Hooked { below: device, hook });
        let seen = names(&mount(device.clone()));
        assert_ne!(seen, before, "it has replayed another log");
        let left = device.hook.left.lock().expect("no panic").clone();
        assert!(left.len() > 3, "{} writes", left.len());
        for (write, image) in left.iter().enumerate() {
            let found = by_first_copy(image);
            assert!(found == before || found == seen, "behind write {write}: {found:?}");
        }
    }
}
