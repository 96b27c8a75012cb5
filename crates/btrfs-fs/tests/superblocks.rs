//! What a mount makes of superblock copies that a killed server left unequal: one that
//! writes makes them equal even if it has nothing to commit, any other touches nothing.

mod common;

use blockdev::BlockDevice;
use btrfs_fs::{BtrfsFs, Options, Subvol};
use common::{CX, Image, judge, open_device, snapshot, stat};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use testkit::oracle;
use vfs::{FileKind, FileSystem};

const FIRST: u64 = 64 << 10;
const SECOND: u64 = 64 << 20;
const SIZE: usize = 4096;

fn copy_at(path: &Path, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    std::fs::File::open(path).and_then(|f| f.read_exact_at(&mut bytes, at)).unwrap();
    bytes
}

/// Behind the checksum and without what a copy says of its own place.
fn said(path: &Path, at: u64) -> Vec<u8> {
    let mut bytes = copy_at(path, at).split_off(32);
    bytes[16..24].fill(0);
    bytes
}

/// A volume whose second superblock copy is of the commit before the last.
fn killed_between_the_copies() -> Image {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let older = copy_at(&image.path, SECOND);
    fs.mknod(&CX, fs.root(), b"new", FileKind::File, 0o644, 0).unwrap();
    fs.destroy().unwrap();
    drop(fs);
    assert!(said(&image.path, FIRST) == said(&image.path, SECOND), "a commit writes both");
    let file = std::fs::OpenOptions::new().write(true).open(&image.path).unwrap();
    file.write_all_at(&older, SECOND).unwrap();
    assert!(said(&image.path, FIRST) != said(&image.path, SECOND));
    image
}

fn scrub(image: &Path) -> Result<(), String> {
    oracle::with_kernel(image, "noatime", oracle::scrub).unwrap()
}

#[test]
fn a_mount_that_has_nothing_to_commit_makes_the_copies_equal() {
    testkit::require!(kernel_btrfs);
    let image = killed_between_the_copies();
    let before = copy_at(&image.path, FIRST);
    let copy = image.path.with_extension("before");
    std::fs::copy(&image.path, &copy).unwrap();
    let why = scrub(&copy).expect_err("the kernel minds the older copy");
    assert!(why.contains("super_errors"), "{why}");

    let fs = image.open();
    assert_eq!(stat(&fs, "device.superblock_repairs"), 1);
    let tree = snapshot(&fs);
    fs.destroy().unwrap();
    assert_eq!(stat(&fs, "commit.count"), 0, "another test than its name says");
    drop(fs);
    assert!(copy_at(&image.path, FIRST) == before, "the first copy was right");
    assert!(said(&image.path, FIRST) == said(&image.path, SECOND));
    judge(&image.path, &tree);
}

#[test]
fn a_mount_that_does_not_write_or_is_refused_changes_nothing() {
    testkit::require!(kernel_btrfs);
    let image = killed_between_the_copies();
    let before = std::fs::read(&image.path).unwrap();
    let unchanged = || std::fs::read(&image.path).unwrap() == before;
    let base = || Options { background: false, ..Options::default() };

    let fs = image.open_with(Options { read_only: true, ..base() });
    snapshot(&fs);
    fs.destroy().unwrap();
    drop(fs);
    assert!(unchanged(), "read-only");

    let none = Options { subvol: Subvol::Path(b"none".to_vec()), ..base() };
    let device: Arc<dyn BlockDevice> = Arc::new(open_device(&image.path, false));
    let refused = BtrfsFs::open_device(device, none).map(|_| ());
    assert!(refused.is_err(), "there is no such subvolume");
    assert!(unchanged(), "refused");
}

/// The copy that is put right leads to the log of what was fsynced since the last commit, as the others do.
#[test]
fn a_scrub_that_mends_a_copy_keeps_what_was_fsynced() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    common::new_file(&fs, "committed", b"one");
    fs.sync().unwrap();
    let logged = common::new_file(&fs, "logged", b"two");
    fs.fsync(logged, false).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image.path).unwrap();
    file.write_all_at(&[0x5a; 8], FIRST + 1000).unwrap();
    fs.start_scrub(false).unwrap();
    while fs.scrub_status().unwrap().state == btrfs_fs::ScrubState::Running {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(fs.scrub_status().unwrap().done.super_errors, 1);
    assert!(said(&image.path, FIRST) == said(&image.path, SECOND), "it is put right");
    let crashed = common::crashed(&image, "crashed.img");
    let again = BtrfsFs::open_device(Arc::new(open_device(&crashed, false)), Options::default());
    let again = again.unwrap();
    for (name, content) in [("committed", b"one"), ("logged", b"two")] {
        let entry = again.lookup(&CX, again.root(), name.as_bytes()).expect(name);
        let mut found = [0; 3];
        again.read(entry.attr.ino, 0, &mut found).unwrap();
        assert_eq!(&found, content, "{name}");
    }
    again.destroy().unwrap();
}
