//! A change of many extents that takes several steps, with commits between: a reader in between sees what
//! was written last, or that it is gone, and no older content; and each step goes on where the one before ended.

#![allow(dead_code)]

use crate::common;
use blocksim::{Hooked, Image, SimDevice};
use btrfs_fs::{BtrfsFs, Defect, Injection, Options};
use common::CX;
use common::places::{Flushes, volume_with_flushes_of};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use testkit::oracle::{TempDir, with_kernel};
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

/// Images of commits that came between two steps of a cut at `size`, of a file in so many pieces.
fn cut_with_commits_between(pieces: u64, size: u64) -> Vec<Image> {
    let device = Arc::new(SimDevice::new(Image::zeros(300 << 20)));
    btrfs_image::mkfs::make(&*device, &Default::default()).expect("mkfs");
    let volume: Arc<OnceLock<Weak<BtrfsFs>>> = Arc::default();
    let images = Arc::new(Mutex::new(Vec::new()));
    let (opened, seen, below) = (volume.clone(), images.clone(), device.clone());
    let commits = move || {
        let fs = opened.get().and_then(Weak::upgrade).expect("it is open");
        let commit = move || fs.fsync(fs.root(), false).expect("commit");
        std::thread::spawn(commit).join().expect("no panic");
        seen.lock().expect("no panic").push(below.image());
    };
    let injection = Injection::between_steps(commits);
    let options = Options { background: false, tree_log: false, injection, ..Options::default() };
    let fs = Arc::new(BtrfsFs::open_device(device.clone(), options).expect("mount"));
    volume.set(Arc::downgrade(&fs)).expect("once");
    let ino = common::new_file(&*fs, "file", &[]);
    for piece in 0..pieces {
        fs.write(&CX, ino, piece * 8192, &[7; SECTOR], Default::default()).expect("write");
    }
    fs.sync().expect("sync");
    let commits = common::stat(&*fs, "commit.count");
    fs.setattr(&CX, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("cut");
    assert!(common::stat(&*fs, "commit.count") >= commits + 2, "commits in between");
    fs.destroy().expect("close");
    common::check_device(device.clone(), true, btrfs_check::Severity::Note);
    std::mem::take(&mut images.lock().expect("no panic"))
}

/// Each is one that a crash may lead to: the kernel takes nothing away behind the end of a file that grows.
#[test]
fn a_commit_between_two_steps_has_nothing_behind_the_end() {
    const GROWN: usize = 64 << 20;
    for image in cut_with_commits_between(3000, 100) {
        let device = Arc::new(SimDevice::new(image.clone()));
        common::check_device(device, true, btrfs_check::Severity::Note);
        testkit::require!(kernel_btrfs);
        let dir = TempDir::new("cut").expect("temp dir");
        let path = dir.join("disk.img");
        image.export(&path).expect("export");
        let grow = |mount: &testkit::oracle::KernelMount| {
            let file = std::fs::File::options().write(true).open(mount.path().join("file"));
            let file = file.expect("open");
            let size = file.metadata().expect("stat").len() as usize;
            file.set_len(GROWN as u64).expect("grow");
            size
        };
        let size = with_kernel(&path, "noatime", grow).expect("the kernel mounts it");
        let read = |mount: &testkit::oracle::KernelMount| std::fs::read(mount.path().join("file"));
        let content = with_kernel(&path, "noatime", read).expect("again").expect("read");
        assert_eq!(content.len(), GROWN);
        assert_eq!(content[size..].iter().position(|byte| *byte != 0), None, "behind {size}");
    }
}

const PIECES: u64 = 20_000;
/// Where the last of them ends.
const PIECES_END: u64 = PIECES * 8192;

fn mount(image: &Image) -> (Arc<SimDevice>, BtrfsFs) {
    let device = Arc::new(SimDevice::new(image.clone()));
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("mount");
    (device, fs)
}

/// A volume with a file of so many extents, and a hole behind each of them.
fn of_many_extents() -> Image {
    let device = SimDevice::new(Image::zeros(400 << 20));
    btrfs_image::mkfs::make(&device, &Default::default()).expect("mkfs");
    let (device, fs) = mount(&device.image());
    let ino = common::new_file(&fs, "file", &[]);
    for piece in 0..PIECES {
        fs.write(&CX, ino, piece * 8192, &[7; SECTOR], Default::default()).expect("write");
    }
    fs.destroy().expect("close");
    device.image()
}

fn resize(fs: &BtrfsFs, ino: Ino, size: u64) -> vfs::Result<()> {
    fs.setattr(&CX, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

fn allocate_all(fs: &BtrfsFs, ino: Ino, mode: FallocateMode) -> vfs::Result<()> {
    fs.fallocate(&CX, ino, mode, 0, PIECES_END)
}

fn clone_it(fs: &BtrfsFs, ino: Ino) -> vfs::Result<()> {
    fs.clone_range(&CX, ino, 0, common::new_file(fs, "other", &[]), 0, 0)
}

fn clone_a_hole_over_it(fs: &BtrfsFs, ino: Ino) -> vfs::Result<()> {
    let hole = common::new_file(fs, "hole", &[]);
    resize(fs, hole, PIECES_END)?;
    fs.clone_range(&CX, hole, 0, ino, 0, 0)
}

/// Over a clone of it.
fn clone_it_punched(fs: &BtrfsFs, ino: Ino) -> vfs::Result<()> {
    let other = common::new_file(fs, "other", &[]);
    fs.clone_range(&CX, ino, 0, other, 0, 0)?;
    fs.sync()?;
    allocate_all(fs, ino, FallocateMode::PunchHole)?;
    fs.clone_range(&CX, ino, 0, other, 0, 0)
}

/// What goes through all of a file has a few of its extents in memory at a time, however many there are, and goes over
/// what it deleted a few times, however many steps it takes.
#[test]
fn few_extents_are_looked_at_together_and_deleted_ones_no_more() {
    let changes: [(&str, Change); 8] = [
        ("punch", |fs, ino| allocate_all(fs, ino, FallocateMode::PunchHole)),
        ("zero", |fs, ino| allocate_all(fs, ino, FallocateMode::ZeroRange { keep_size: true })),
        ("allocate", |fs, ino| allocate_all(fs, ino, FallocateMode::Allocate)),
        ("cut", |fs, ino| resize(fs, ino, 100)),
        ("empty", |fs, ino| resize(fs, ino, 0)),
        ("clone", clone_it),
        ("clone over it", clone_a_hole_over_it),
        ("clone what is punched", clone_it_punched),
    ];
    let image = of_many_extents();
    for (what, change) in changes {
        let (device, fs) = mount(&image);
        let ino = common::find(&fs, fs.root(), "file").expect("there");
        let _before = (btrfs_fs::most_mapped(), btrfs_fs::passed_over());
        change(&fs, ino).expect(what);
        let (most, passed) = (btrfs_fs::most_mapped(), btrfs_fs::passed_over());
        assert!((1..1100).contains(&most), "{what}: {most} at once");
        assert!(passed <= 4 * PIECES, "{what}: {passed} deleted ones were on the way");
        fs.destroy().expect("close");
        common::check_device(device, true, btrfs_check::Severity::Note);
    }
}

/// What `each` does with each piece of the file, one after the other, goes over each deleted one a few times.
fn passes_few(what: &str, mut each: impl FnMut(u64)) {
    btrfs_fs::passed_over();
    let mut passed = 0;
    for piece in 0..PIECES {
        each(piece * 8192);
        passed += btrfs_fs::passed_over();
        assert!(passed <= 12 * PIECES, "{what}: {passed} deleted ones were on the way at {piece}");
    }
}

fn read(fs: &BtrfsFs, ino: Ino, at: u64) {
    let mut content = [1; SECTOR];
    let len = fs.read(ino, at, &mut content).expect("read");
    assert_eq!(content[..len].iter().position(|byte| *byte != 0), None, "behind {at}");
}

fn punch_one(fs: &BtrfsFs, ino: Ino, at: u64) {
    fs.fallocate(&CX, ino, FallocateMode::PunchHole, at, SECTOR as u64).expect("punch");
}

fn write_one(fs: &BtrfsFs, ino: Ino, at: u64) {
    let direct = WriteFlags { direct: true, ..WriteFlags::default() };
    fs.write(&CX, ino, at, &[7; SECTOR], direct).expect("write");
}

/// Who goes through a file sector by sector, of which many extents were deleted since the last commit.
#[test]
fn what_was_deleted_is_not_passed_over_again_and_again() {
    let image = of_many_extents();
    let (device, fs) = mount(&image);
    let ino = common::find(&fs, fs.root(), "file").expect("there");
    passes_few("punch what is there", |at| {
        punch_one(&fs, ino, at);
        read(&fs, ino, at + SECTOR as u64);
    });
    passes_few("read", |at| read(&fs, ino, at));
    passes_few("punch", |at| punch_one(&fs, ino, at));
    passes_few("seek", |at| {
        let data = fs.seek(ino, at, vfs::SeekWhence::Data);
        assert_eq!(data.expect_err("no data").errno(), libc::ENXIO);
    });
    passes_few("write", |at| {
        write_one(&fs, ino, at);
        read(&fs, ino, at + SECTOR as u64);
    });
    let mut all = vec![0; PIECES_END as usize];
    let len = fs.read(ino, 0, &mut all).expect("read");
    assert_eq!(len, PIECES_END as usize - SECTOR);
    let pieces = all.chunks(2 * SECTOR).map(|piece| (piece[0], piece[SECTOR]));
    assert!(pieces.eq(std::iter::repeat_n((7, 0), PIECES as usize)));
    fs.destroy().expect("close");
    common::check_device(device, true, btrfs_check::Severity::Note);
}

/// The same, while the commit is at work that has it.
#[test]
fn what_a_commit_at_work_deletes_is_not_passed_over_again_and_again() {
    let device = volume_with_flushes_of("commits", 400 << 20);
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("mount");
    let ino = common::new_file(&fs, "file", &[]);
    (0..PIECES).for_each(|piece| write_one(&fs, ino, piece * 8192));
    fs.sync().expect("sync");
    allocate_all(&fs, ino, FallocateMode::PunchHole).expect("punch");
    let places = &device.hook.places;
    places.arm("flush");
    std::thread::scope(|scope| {
        let commits = std::thread::Builder::new().name("commits".into());
        let commits = commits.spawn_scoped(scope, || fs.sync()).expect("a thread");
        places.wait_until_there("flush");
        passes_few("read", |at| read(&fs, ino, at));
        passes_few("write", |at| {
            write_one(&fs, ino, at);
            read(&fs, ino, at + SECTOR as u64);
        });
        places.release("flush");
        commits.join().expect("no panic").expect("committed");
    });
    fs.destroy().expect("close");
    common::check_device(device, true, btrfs_check::Severity::Note);
}

/// Who removes the first name of a directory, as long as there is one.
#[test]
fn names_that_went_are_not_passed_over_again_and_again() {
    const NAMES: u64 = 3000;
    let (device, fs) = mount(&of_many_extents());
    (0..NAMES).for_each(|n| _ = common::new_file(&fs, &format!("{n}"), &[]));
    fs.sync().expect("sync");
    btrfs_fs::passed_over();
    let (mut passed, mut removed) = (0, 0);
    loop {
        let mut first = None;
        let mut take = |entry: &vfs::DirEntry<'_>| {
            first = Some(entry.name.to_vec());
            false
        };
        fs.readdir(fs.root(), 2, &mut take).expect("list");
        let Some(first) = first else { break };
        fs.unlink(&CX, fs.root(), &first).expect("remove");
        (passed, removed) = (passed + btrfs_fs::passed_over(), removed + 1);
        assert!(passed <= 12 * NAMES, "{passed} deleted ones were on the way at {removed}");
    }
    assert_eq!(removed, NAMES + 1);
    fs.destroy().expect("close");
    common::check_device(device, true, btrfs_check::Severity::Note);
}
