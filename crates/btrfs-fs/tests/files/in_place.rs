//! Content is written over where it lies only if nobody else has it: no snapshot, no other file, neither
//! now nor behind a loss of power that leads back to the last durable commit and its log.

#![allow(dead_code)]

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook, SimDevice};
use btrfs_disk::Key;
use btrfs_disk::items::{InodeItem, inode_flags};
use btrfs_disk::key::kind;
use btrfs_disk::superblock::COPIES;
use btrfs_fs::{BtrfsFs, Caller, Delete, Options};
use common::places::Places;
use common::{CX, stat};
use fuzzing::patch::Patch;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{FileKind, FileSystem, Ino, SetAttr, WriteFlags};

const NOCOW: u32 = 0x0080_0000;
const LEN: usize = 16 * 4096;
const DIRECT: WriteFlags =
    WriteFlags { direct: true, cached: false, kill_priv: false, sync: false };

type Device = Hooked<SimDevice, Watch>;

#[derive(Default)]
struct Watch(Places);

impl RequestHook for Watch {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> std::io::Result<()> {
        match (request, std::thread::current().name()) {
            (Request::Read { .. }, Some("writer")) => self.0.pass("read"),
            (Request::Write { offset, .. }, Some("commit")) if offset == COPIES[0] => {
                self.0.pass("superblock")
            }
            _ => {}
        }
        go_on()
    }
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

fn a_volume() -> (Arc<Device>, BtrfsFs) {
    let sim = SimDevice::new(blocksim::Image::zeros(300 << 20));
    btrfs_image::mkfs::make(&sim, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    let device = Arc::new(Hooked { below: sim, hook: Watch::default() });
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("mount");
    (device, fs)
}

/// A file without copy-on-write, of which `content` lies in one extent.
fn nocow(fs: &BtrfsFs, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
    let ino = made.expect("create").attr.ino;
    fs.set_flags(&CX, ino, NOCOW).expect("chattr +C");
    overwrite(fs, ino, content);
    ino
}

fn overwrite(fs: &BtrfsFs, ino: Ino, content: &[u8]) {
    fs.write(&CX, ino, 0, content, DIRECT).expect("write");
}

fn share(fs: &BtrfsFs, from: Ino, to: Ino) {
    fs.clone_range(&CX, from, 0, to, 0, 0).expect("reflink");
}

fn content(fs: &BtrfsFs, ino: Ino) -> Vec<u8> {
    let mut content = vec![0; LEN];
    assert_eq!(fs.read(ino, 0, &mut content).expect("read"), LEN);
    content
}

/// What a volume has that lost its power now.
fn crashed(device: &Device) -> BtrfsFs {
    let device = Arc::new(SimDevice::new(device.below.image()));
    common::check_device(device.clone(), true, btrfs_check::Severity::Warning);
    common::judge_image(&device.image());
    BtrfsFs::open_device(device, options()).expect("mount")
}

fn assert_all(content: &[u8], byte: u8, what: &str) {
    let wrong = content.iter().position(|have| *have != byte);
    assert_eq!(wrong.map(|at| (at, content[at])), None, "{what}");
}

/// Where an extent lies, and whether a write to the file went there.
fn goes_in_place(fs: &BtrfsFs, ino: Ino, byte: u8) -> bool {
    let before = stat(fs, "data.extents_written");
    overwrite(fs, ino, &[byte; LEN]);
    stat(fs, "data.extents_written") == before
}

#[test]
fn one_who_is_alone_writes_in_place() {
    let (_device, fs) = a_volume();
    let ino = nocow(&fs, fs.root(), "file", &[1; LEN]);
    assert!(goes_in_place(&fs, ino, 2), "not committed");
    fs.sync().expect("sync");
    assert!(goes_in_place(&fs, ino, 3), "committed");
    let other = nocow(&fs, fs.root(), "other", &[]);
    share(&fs, ino, other);
    fs.sync().expect("sync");
    assert!(!goes_in_place(&fs, ino, 4), "shared");
    fs.sync().expect("sync");
    assert!(goes_in_place(&fs, ino, 5) && goes_in_place(&fs, other, 6), "no more");
    fs.destroy().expect("close");
}

/// Its commit finds no room, and a later one has it.
#[test]
fn a_snapshot_that_comes_late_ends_writing_in_place_until_it_is_there() {
    let (_device, fs) = a_volume();
    let made = fs.create_subvolume(&Caller::root(), fs.root(), b"source");
    let source = made.expect("a subvolume").1.attr.ino;
    let before = nocow(&fs, source, "before", &[1; LEN]);
    fs.sync().expect("sync");
    fs.space().fail_allocations(fs.space().allocations()..u64::MAX);
    let snapshot = fs.snapshot(&Caller::root(), source, fs.root(), b"snap", false);
    assert_eq!(common::errno(snapshot), libc::ENOSPC);
    fs.space().fail_allocations(0..0);
    assert!(!goes_in_place(&fs, before, 2), "the snapshot will have it");
    fs.sync().expect("sync");
    assert!(common::find(&fs, fs.root(), "snap").is_some());
    let behind = nocow(&fs, source, "behind", &[1; LEN]);
    fs.sync().expect("sync");
    assert!(goes_in_place(&fs, behind, 2), "nobody else has it");
    assert!(!goes_in_place(&fs, before, 3), "the snapshot has it");
    assert!(goes_in_place(&fs, before, 4), "and not that");
    fs.destroy().expect("close");
}

/// Who writes while the subvolume is being deleted is waited for, and its snapshot stays as it is.
#[test]
fn what_a_snapshot_has_stays_while_its_source_is_deleted() {
    let (device, fs) = a_volume();
    let made = fs.create_subvolume(&Caller::root(), fs.root(), b"source");
    let (source, root) = made.map(|(id, entry)| (id, entry.attr.ino)).expect("a subvolume");
    let ino = nocow(&fs, root, "file", &[1; LEN]);
    // The leaf with the extent is below the top, so a snapshot shares it.
    for n in 0..400 {
        let name = format!("other-{n}");
        let made = fs.mknod(&CX, root, name.as_bytes(), FileKind::File, 0o644, 0);
        made.expect("create");
    }
    fs.sync().expect("sync");
    let snapshot = fs.snapshot(&Caller::root(), root, fs.root(), b"snapshot", false);
    let snapshot = snapshot.expect("a snapshot").1.attr.ino;
    let places = &device.hook.0;
    places.arm("read");
    std::thread::scope(|scope| {
        let fs = &fs;
        // Not whole sectors: what is around them is read, with the file locked.
        let write = || fs.write(&CX, ino, 100, &[9; LEN - 200], DIRECT);
        let writer = std::thread::Builder::new().name("writer".into()).spawn_scoped(scope, write);
        places.wait_until_there("read");
        let root = fs.root();
        let deletes = scope
            .spawn(move || fs.delete_subvolume(&Caller::root(), Delete::Name(root, b"source")));
        let end = Instant::now() + Duration::from_secs(20);
        let dies = || fs.subvolume_info(source).map_or(true, |info| info.deleted);
        while !dies() {
            assert!(Instant::now() < end, "nobody deletes it");
            std::thread::yield_now();
        }
        places.release("read");
        writer.expect("a thread").join().expect("no panic").expect("written");
        deletes.join().expect("no panic").expect("deleted");
    });
    let copy = fs.lookup(&CX, snapshot, b"file").expect("there").attr.ino;
    assert_all(&content(&fs, copy), 1, "the snapshot's");
    fs.destroy().expect("close");
}

/// Until a superblock leads to the commit in which one is alone, a crash leads to the one before.
#[test]
fn who_is_alone_only_in_what_is_not_durable_is_not_alone() {
    let (device, fs) = a_volume();
    let ino = nocow(&fs, fs.root(), "file", &[1; LEN]);
    let other = nocow(&fs, fs.root(), "other", &[]);
    share(&fs, ino, other);
    fs.sync().expect("sync");
    overwrite(&fs, other, &[2; LEN]);
    let places = &device.hook.0;
    places.arm("superblock");
    let seen = std::thread::scope(|scope| {
        let fs = &fs;
        let commit = || fs.sync().expect("commit");
        let commit = std::thread::Builder::new().name("commit".into()).spawn_scoped(scope, commit);
        places.wait_until_there("superblock");
        overwrite(fs, ino, &[3; LEN]);
        let after = crashed(&device);
        let other = after.lookup(&CX, after.root(), b"other").expect("there").attr.ino;
        let seen = content(&after, other);
        places.release("superblock");
        commit.expect("a thread").join().expect("no panic");
        seen
    });
    assert_all(&seen, 1, "the other's, as of the last durable commit");
    assert!(!goes_in_place(&fs, other, 4) || content(&fs, ino) == [3; LEN]);
    fs.destroy().expect("close");
}

type Ends = fn(&BtrfsFs, Ino);

fn removed(fs: &BtrfsFs, _: Ino) {
    fs.unlink(&CX, fs.root(), b"other").expect("unlink");
}

fn cut(fs: &BtrfsFs, other: Ino) {
    fs.setattr(&CX, other, &SetAttr { size: Some(0), ..SetAttr::default() }).expect("truncate");
}

fn replaced(fs: &BtrfsFs, other: Ino) {
    overwrite(fs, other, &[5; LEN]);
}

const ENDS: [(&str, Ends); 3] = [("removed", removed), ("cut", cut), ("replaced", replaced)];

/// A log says that the other has it, whatever became of that since.
#[test]
fn what_a_log_gives_to_another_stays_as_it_was_synced() {
    for (how, end) in ENDS {
        for committed in [true, false] {
            let (device, fs) = a_volume();
            let ino = nocow(&fs, fs.root(), "file", &[1; LEN]);
            fs.sync().expect("sync");
            if !committed {
                // Another extent, of which the commit knows nothing.
                cut(&fs, ino);
                overwrite(&fs, ino, &[1; LEN]);
            }
            let other = nocow(&fs, fs.root(), "other", &[]);
            share(&fs, ino, other);
            let commits = stat(&fs, "commit.count");
            fs.fsync(other, false).expect("fsync");
            assert_eq!(stat(&fs, "commit.count"), commits, "it is logged");
            end(&fs, other);
            overwrite(&fs, ino, &[3; LEN]);
            let after = crashed(&device);
            let other = after.lookup(&CX, after.root(), b"other").expect("there").attr.ino;
            let what = format!("{how}, committed before: {committed}");
            assert_all(&content(&after, other), 1, &what);
        }
    }
}

/// As the one before, where it is the first who is in the log.
#[test]
fn what_a_log_gives_to_the_first_stays_as_it_was_synced() {
    let (device, fs) = a_volume();
    nocow(&fs, fs.root(), "before", &[]);
    fs.sync().expect("sync");
    let first = nocow(&fs, fs.root(), "other", &[1; LEN]);
    fs.fsync(first, false).expect("fsync");
    let second = nocow(&fs, fs.root(), "file", &[]);
    share(&fs, first, second);
    removed(&fs, first);
    fs.forget(first, 1);
    overwrite(&fs, second, &[3; LEN]);
    let after = crashed(&device);
    let first = after.lookup(&CX, after.root(), b"other").expect("there").attr.ino;
    assert_all(&content(&after, first), 1, "the first one's");
}

/// Kernels of 2011 made files that are not copied on write and have checksums.
#[test]
fn what_has_checksums_is_copied_on_write() {
    let image = common::Image::new(256 << 20, &[]);
    let fs = image.open();
    common::new_file(&fs, "file", &[1; LEN]);
    fs.destroy().expect("close");
    drop(fs);
    let patch = Patch::new(&image.path);
    let tree = btrfs_disk::TreeId::FS;
    let key = Key::new(patch.ino(tree, "file"), kind::INODE_ITEM, 0);
    patch.edit_as::<InodeItem>(tree, key, |item| item.flags |= inode_flags::NODATACOW);
    let sim = SimDevice::new(blocksim::Image::import(&image.path).expect("import"));
    let device = Arc::new(Hooked { below: sim, hook: Watch::default() });
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("mount");
    let ino = common::find(&fs, fs.root(), "file").expect("there");
    assert!(!goes_in_place(&fs, ino, 2));
    let after = crashed(&device);
    let ino = common::find(&after, after.root(), "file").expect("there");
    assert_all(&content(&after, ino), 1, "what was committed");
}
