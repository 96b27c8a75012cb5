//! Volumes that must not be written, or not at all: what is refused, and how it is said.

use crate::common;
use blockdev::{BlockDevice, FileDevice};
use btrfs_disk::ids::DEV_ITEMS_OBJECTID;
use btrfs_disk::items::{BlockGroupItem, DevItem, DevReplace};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_fs::{BtrfsFs, Options, unfinished_replacement};
use btrfs_volume::{OpenOptions, Volume};
use common::Image;
use fuzzing::patch::Patch;
use std::path::Path;
use std::sync::Arc;
use testkit::oracle;
use vfs::{Context, FileSystem, FsError};

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

/// What is free in a block group that no chunk has would be anybody's.
#[test]
fn a_block_group_outside_of_every_chunk_is_refused() {
    let image = Image::new(256 << 20, &[]);
    let patch = Patch::new(&image.path);
    let groups = patch.items(TreeId::EXTENT);
    let mut groups = groups.iter().filter(|(key, _)| key.kind == kind::BLOCK_GROUP_ITEM);
    let (first, _) = groups.next().expect("a block group");
    let item = BlockGroupItem { used: 0, chunk_objectid: 256, flags: 1 };
    let before = Key::new(first.objectid - (1 << 20), kind::BLOCK_GROUP_ITEM, 1 << 20);
    patch.insert(TreeId::EXTENT, before, &item.to_vec());
    drop(patch);
    let refusal = try_open(&image.path, false).map(drop).expect_err("refused");
    assert!(refusal.to_string().contains("outside of every chunk"), "{refusal}");
}

/// The device tree says that a replacement of the device is at `state`.
fn tell_replacement(image: &Path, state: u64, len: usize) {
    let (patch, key) = (Patch::new(image), Key::new(0, kind::DEV_REPLACE, 0));
    if patch.items(TreeId::DEV).iter().any(|(other, _)| *other == key) {
        patch.remove(TreeId::DEV, key);
    }
    let item = DevReplace { source: 1, state, ..DevReplace::default() };
    let mut bytes = item.to_vec();
    bytes.resize(len, 0);
    patch.insert(TreeId::DEV, key, &bytes);
}

fn kernel_takes(image: &Path) -> bool {
    oracle::with_kernel(image, "noatime", |_| ()).is_ok()
}

/// The kernel goes on with it on a device that does not get what is written here.
#[test]
fn a_volume_whose_device_is_being_replaced_is_not_written() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let len = DevReplace::SIZE;
    let volume = || {
        let device = Arc::new(FileDevice::open(&image.path, true, false).unwrap());
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        Arc::new(Volume::open(device, options).unwrap())
    };
    for (state, len, unfinished) in [
        (0, len, false),
        (1, len, true),
        (2, len, false),
        (3, len, false),
        (4, len, true),
        (4, len + 8, false),
    ] {
        tell_replacement(&image.path, state, len);
        let before = std::fs::read(&image.path).unwrap();
        let fs = try_open(&image.path, false).expect("it can be read");
        let why = fs.read_only_reason();
        fs.destroy().unwrap();
        let told = unfinished_replacement(&volume());
        assert_eq!(told.is_some(), unfinished, "state {state}, {len} bytes: {told:?}");
        assert_eq!(why, told, "state {state}, {len} bytes");
        if unfinished {
            assert!(std::fs::read(&image.path).unwrap() == before, "nothing was written");
        }
        assert_eq!(kernel_takes(&image.path), !unfinished, "state {state}, {len} bytes");
    }
}

/// A device that ends within a chunk by its item, less than a sector in front of where the superblock has its end.
#[test]
fn an_item_of_the_device_that_cuts_a_chunk_is_told() {
    let image = Image::new(256 << 20, &[]);
    let device = Arc::new(FileDevice::open(&image.path, true, false).unwrap());
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = Volume::open(device, options).unwrap();
    let ends = volume
        .chunks()
        .into_iter()
        .flat_map(|chunk| chunk.stripes.iter().map(|(_, at)| at.0 + chunk.len).collect::<Vec<_>>());
    let end = ends.max().expect("a chunk");
    drop(volume);
    let patch = Patch::new(&image.path);
    patch.edit_super(|sb| {
        (sb.fields.total_bytes, sb.fields.dev_item.total_bytes) = (end, end);
    });
    let key = Key::new(DEV_ITEMS_OBJECTID, kind::DEV_ITEM, 1);
    patch.edit_as::<DevItem>(TreeId::CHUNK, key, |item| item.total_bytes = end - 512);
    drop(patch);
    let fs = try_open(&image.path, false).expect("it can be read");
    let why = fs.read_only_reason().expect("a reason");
    assert!(why.contains("by its item"), "{why}");
    fs.destroy().unwrap();
}

/// The superblock and the root of the root tree are of this generation.
fn tell_generation(image: &Path, generation: u64) {
    let patch = Patch::new(image);
    patch.edit_root(TreeId::ROOT, |node| node[80..88].copy_from_slice(&generation.to_le_bytes()));
    patch.edit_super(|sb| sb.fields.generation = btrfs_disk::Generation(generation));
}

/// The kernel reads what is of the last but one, and would write it once. It refuses what is of the last.
#[test]
fn generations_that_nothing_can_come_behind() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    tell_generation(&image.path, u64::MAX - 1);
    oracle::with_kernel(&image.path, "ro", |_| ()).expect("the kernel reads it");
    let fs = try_open(&image.path, false).expect("it can be read");
    fs.getattr(fs.root()).expect("the top directory");
    let why = fs.read_only_reason().expect("a reason");
    assert!(why.contains("generation"), "{why}");
    fs.destroy().unwrap();
    drop(fs);
    common::check_ourselves(&image.path);
    tell_generation(&image.path, u64::MAX);
    assert!(oracle::with_kernel(&image.path, "ro", |_| ()).is_err(), "the kernel refuses it");
    for read_only in [true, false] {
        match try_open(&image.path, read_only).map(drop) {
            Err(FsError::Corrupt(why)) => assert!(why.text.contains("generation"), "{why:?}"),
            other => panic!("opened: {other:?}"),
        }
    }
}
