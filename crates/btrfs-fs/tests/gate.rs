//! Volumes that must not be written, or not at all: what is refused, and how it is said.

mod common;

use blockdev::{BlockDevice, FileDevice};
use btrfs_fs::{BtrfsFs, Options};
use common::Image;
use common::kernel::{btrfs, kernel};
use common::likeness::assert_like;
use std::path::Path;
use std::sync::Arc;
use testkit::compare::{Rules, TreeSnapshot};
use testkit::oracle;
use vfs::{Context, FileKind, FileSystem, FsError};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };

fn try_open(path: &Path, read_only: bool) -> vfs::Result<BtrfsFs> {
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, read_only, false).unwrap());
    let options = Options { read_only, background: false, ..Options::default() };
    BtrfsFs::open_device(device, options)
}

/// A volume of which the kernel fsynced a file and then lost its power.
fn with_pending_log() -> Image {
    let image = Image::new(256 << 20, &[]);
    let copy = image.path.with_extension("crash");
    oracle::with_kernel(&image.path, "noatime,commit=300", |mount| {
        std::fs::write(mount.join("old"), b"committed").unwrap();
        oracle::sh("sync", &["-f", mount.path().to_str().unwrap()]).unwrap();
        let file = std::fs::File::create(mount.join("new")).unwrap();
        std::io::Write::write_all(&mut &file, b"fsynced").unwrap();
        file.sync_all().unwrap();
        std::fs::copy(&image.path, &copy).unwrap();
    })
    .unwrap();
    std::fs::rename(&copy, &image.path).unwrap();
    image
}

#[test]
fn a_log_is_ignored_by_read_only_mounts_alone() {
    testkit::require!(kernel_btrfs);
    let image = with_pending_log();
    let before = std::fs::read(&image.path).unwrap();
    let ignoring = |read_only| {
        let device: Arc<dyn BlockDevice> =
            Arc::new(FileDevice::open(&image.path, read_only, false).unwrap());
        let options =
            Options { read_only, ignore_log: true, background: false, ..Options::default() };
        BtrfsFs::open_device(device, options)
    };
    match ignoring(false).map(|_| ()) {
        Err(FsError::Unsupported(why)) => assert!(why.contains("read-only"), "{why}"),
        other => panic!("opened read-write: {other:?}"),
    }
    let fs = ignoring(true).expect("read-only shows the last commit");
    fs.lookup(&CX, fs.root(), b"old").unwrap();
    assert!(fs.lookup(&CX, fs.root(), b"new").is_err(), "the log is not shown");
    fs.destroy().unwrap();
    assert!(std::fs::read(&image.path).unwrap() == before, "nothing was written");
    let fs = try_open(&image.path, true).expect("read-only shows the log, too");
    fs.lookup(&CX, fs.root(), b"new").unwrap();
    fs.destroy().unwrap();
    assert!(std::fs::read(&image.path).unwrap() == before, "nothing was written");
}

/// Filled by the kernel with a version 1 cache, which says what is free in files of the
/// root tree: all content is read, and what to do about it is said.
#[test]
fn a_volume_with_the_old_space_cache_is_read_only() {
    testkit::require!(kernel_btrfs);
    // The kernel has caches for block groups of 100 MiB and more.
    let image = Image::new(1200 << 20, &["-R", "^free-space-tree"]);
    // Not `kernel`: this one complains of the old cache whenever it sees one.
    let tree = oracle::with_kernel(&image.path, "noatime,space_cache=v1", |mount| {
        oracle::kernel_populate(mount.path(), 8).expect("populate");
        btrfs(mount, &["subvolume", "sync", "/"]);
        TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
    });
    let tree = tree.expect("the kernel mounts it");
    let path = image.path.to_string_lossy();
    let dump = oracle::sh("btrfs", &["inspect-internal", "dump-tree", "-t", "1", &*path]).unwrap();
    assert!(dump.contains("FREE_SPACE UNTYPED"), "the kernel was to write a cache");
    let before = image.path.with_extension("before").to_string_lossy().into_owned();
    oracle::sh("cp", &["--sparse=always", &*path, &before]).unwrap();
    let fs = try_open(&image.path, false).unwrap();
    let why = fs.read_only_reason().expect("no free-space tree to maintain");
    for words in ["no free-space tree", "version 1 space cache", "space_cache=v2"] {
        assert!(why.contains(words), "{words:?} is not in {why:?}");
    }
    assert_like(&tree, &common::snapshot(&fs), &Rules::default());
    let refused = fs.mknod(&CX, fs.root(), b"x", FileKind::File, 0o644, 0).map(|_| ());
    assert_eq!(refused.unwrap_err().errno(), libc::EROFS);
    assert!(fs.sync().is_ok(), "nothing to write is no error");
    fs.destroy().unwrap();
    drop(fs);
    oracle::sh("cmp", &[&*path, &before]).expect("nothing was written");

    // As told.
    kernel(&image.path, "noatime,clear_cache,space_cache=v2", |_| ());
    let fs = try_open(&image.path, false).unwrap();
    assert_eq!(fs.read_only_reason(), None);
    assert_like(&tree, &common::snapshot(&fs), &Rules::default());
    fs.mknod(&CX, fs.root(), b"new", FileKind::File, 0o644, 0).unwrap();
    let after = common::snapshot(&fs);
    fs.destroy().unwrap();
    drop(fs);
    common::assert_sound(&image.path);
    let seen = kernel(&image.path, "noatime", |mount| {
        TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
    });
    assert_like(&after, &seen, &Rules::default());
}
