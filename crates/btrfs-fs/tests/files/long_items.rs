//! Inline items of more than one sector, as `btrfs-convert` and `mkfs.btrfs --rootdir` made them before 4.16: whatever is
//! done to such a file, nothing else of it changes.

use crate::common;
use btrfs_disk::compress::compress;
use btrfs_disk::items::{Compression, FileExtent, InodeItem};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::BtrfsFs;
use common::{CX, Image, errno, find, new_file, read};
use fuzzing::patch::Patch;
use testkit::oracle;
use vfs::{FallocateMode, FileSystem, Ino, SetAttr, WriteFlags};

const SECTOR: usize = 4096;
const SIZE: usize = 10_000;

fn content(size: usize) -> Vec<u8> {
    (0..size as u32).map(|at| (at / 40 % 251 + 1) as u8).collect()
}

/// A volume with `file`, whose item has all of its content.
fn volume(compression: Compression) -> Image {
    let stream = match compression {
        Compression::None => content(SIZE),
        kind => compress(kind, 3, SECTOR, &content(SIZE), SIZE - 1).expect("it gets smaller"),
    };
    volume_of("16384", SIZE, (compression, &stream))
}

fn volume_of(nodes: &str, size: usize, (compression, stream): (Compression, &[u8])) -> Image {
    let image = Image::new(256 << 20, &["--nodesize", nodes]);
    let fs = image.open();
    new_file(&fs, "file", b"short");
    fs.destroy().expect("close");
    drop(fs);
    let (patch, tree) = (Patch::new(&image.path), TreeId::FS);
    let ino = patch.ino(tree, "file");
    patch.edit_as::<InodeItem>(tree, Key::new(ino, kind::INODE_ITEM, 0), |item| {
        (item.size, item.nbytes) = (size as u64, size as u64);
    });
    patch.edit(tree, Key::new(ino, kind::EXTENT_DATA, 0), |item| {
        let Ok(FileExtent::Inline { generation, .. }) = FileExtent::parse(item) else {
            panic!("a short file")
        };
        let ram_bytes = size as u64;
        *item = FileExtent::Inline { generation, ram_bytes, compression, content: stream }.to_vec();
    });
    image
}

/// What is done to the file, and to what is expected of it.
type Change = fn(&BtrfsFs, Ino, &mut Vec<u8>);

fn put(fs: &BtrfsFs, ino: Ino, expected: &mut Vec<u8>, (at, len): (usize, usize), direct: bool) {
    let data = vec![0xee; len];
    let flags = WriteFlags { direct, ..WriteFlags::default() };
    assert_eq!(fs.write(&CX, ino, at as u64, &data, flags).expect("write"), len);
    expected.resize(expected.len().max(at + len), 0);
    expected[at..at + len].fill(0xee);
}

fn cut(fs: &BtrfsFs, ino: Ino, expected: &mut Vec<u8>, size: usize) {
    let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
    fs.setattr(&CX, ino, &set).expect("another size");
    expected.resize(size, 0);
}

fn allocate(fs: &BtrfsFs, ino: Ino, mode: FallocateMode, (at, len): (usize, usize)) {
    fs.fallocate(&CX, ino, mode, at as u64, len as u64).expect("fallocate");
}

const ZERO: FallocateMode = FallocateMode::ZeroRange { keep_size: false };

const CHANGES: [(&str, Change); 15] = [
    ("write into the first sector", |fs, ino, all| put(fs, ino, all, (100, 10), false)),
    ("write over the end", |fs, ino, all| put(fs, ino, all, (9_990, 100), false)),
    ("append", |fs, ino, all| put(fs, ino, all, (SIZE, 5), false)),
    ("write behind a gap", |fs, ino, all| put(fs, ino, all, (50_000, 5), false)),
    ("write directly", |fs, ino, all| put(fs, ino, all, (SECTOR, SECTOR), true)),
    ("write much", |fs, ino, all| put(fs, ino, all, (2 * SECTOR, 400 << 10), false)),
    ("cut", |fs, ino, all| cut(fs, ino, all, 9_000)),
    ("cut at a sector", |fs, ino, all| cut(fs, ino, all, 2 * SECTOR)),
    ("empty", |fs, ino, all| cut(fs, ino, all, 0)),
    ("grow", |fs, ino, all| cut(fs, ino, all, 20_000)),
    ("allocate behind the end", |fs, ino, all| {
        allocate(fs, ino, FallocateMode::Allocate, (4 * SECTOR, SECTOR));
        all.resize(all.len().max(5 * SECTOR), 0);
    }),
    ("preallocate", |fs, ino, _| allocate(fs, ino, FallocateMode::KeepSize, (0, 8 * SECTOR))),
    ("punch", |fs, ino, all| {
        allocate(fs, ino, FallocateMode::PunchHole, (SECTOR, SECTOR));
        all[SECTOR..2 * SECTOR].fill(0);
    }),
    ("zero", |fs, ino, all| {
        allocate(fs, ino, ZERO, (SECTOR + 9, 10_000));
        all.resize(all.len().max(SECTOR + 9 + 10_000), 0);
        all[SECTOR + 9..][..10_000].fill(0);
    }),
    ("clone into it", |fs, ino, all| {
        let other = new_file(fs, "other", &[0xcc; 2 * SECTOR]);
        fs.clone_range(&CX, other, 0, ino, SECTOR as u64, SECTOR as u64).expect("clone");
        all[SECTOR..2 * SECTOR].fill(0xcc);
    }),
];

#[test]
fn nothing_else_of_the_file_changes() {
    testkit::require!(kernel_btrfs);
    // As much as fits into an item of the largest nodes.
    let long = content(60_000);
    for (kind, size, made) in [
        ("plain", SIZE, volume(Compression::None)),
        ("compressed", SIZE, volume(Compression::Zlib)),
        ("long", long.len(), volume_of("65536", long.len(), (Compression::None, &long))),
    ] {
        for (name, change) in CHANGES {
            println!("{kind}: {name}");
            let (image, mut expected) = (made.copy("changed.img"), content(size));
            let fs = image.open();
            let ino = find(&fs, fs.root(), "file").expect("there");
            assert!(read(&fs, fs.root(), "file") == expected, "before");
            change(&fs, ino, &mut expected);
            assert!(read(&fs, fs.root(), "file") == expected, "in memory");
            fs.destroy().expect("close");
            drop(fs);
            common::assert_sound(&image.path);
            let fs = image.open();
            assert!(read(&fs, fs.root(), "file") == expected, "on the volume");
        }
    }
}

/// The kernel replays no log that cuts such an item.
#[test]
fn what_is_synced_the_kernel_finds_after_a_crash() {
    testkit::require!(kernel_btrfs);
    for (name, change) in [CHANGES[0], CHANGES[8]] {
        let (image, mut expected) = (volume(Compression::None), content(SIZE));
        let fs = image.open();
        let ino = find(&fs, fs.root(), "file").expect("there");
        change(&fs, ino, &mut expected);
        put(&fs, ino, &mut expected, (0, 20), false);
        fs.fsync(ino, false).expect("fsync");
        let crashed = common::crashed(&image, "crashed.img");
        let read = |mount: &oracle::KernelMount| std::fs::read(mount.path().join("file"));
        let found = oracle::with_kernel(&crashed, "", read).expect("the kernel mounts it");
        assert!(found.expect("read") == expected, "{name}");
        fs.destroy().expect("close");
    }
}

/// An item that cannot be read goes where all of the file is written over, whenever that lands.
#[test]
fn what_is_synced_in_place_of_one_that_cannot_be_read_the_kernel_finds_after_a_crash() {
    testkit::require!(kernel_btrfs);
    let image = volume_of("16384", SIZE, (Compression::Zlib, &[0xff; 900]));
    let fs = image.open();
    let ino = find(&fs, fs.root(), "file").expect("there");
    let cached = WriteFlags { cached: true, ..WriteFlags::default() };
    fs.write(&CX, ino, 0, &[2; 3 * SECTOR], cached).expect("write");
    let direct = WriteFlags { direct: true, ..WriteFlags::default() };
    fs.write(&CX, ino, 0, &[3; SECTOR], direct).expect("write");
    fs.fsync(ino, false).expect("fsync");
    let crashed = common::crashed(&image, "crashed.img");
    let read = |mount: &oracle::KernelMount| std::fs::read(mount.path().join("file"));
    let found =
        oracle::with_kernel(&crashed, "", read).expect("the kernel mounts it").expect("read");
    assert!(found == [[3; SECTOR], [2; SECTOR], [2; SECTOR]].concat());
    fs.destroy().expect("close");
}

#[test]
fn a_copy_of_it_has_all_and_leaves_it_as_it_was() {
    testkit::require!(kernel_btrfs);
    for (share, longer) in [(true, false), (true, true), (false, false), (false, true)] {
        let (image, mut expected) = (volume(Compression::None), content(SIZE));
        let fs = image.open();
        let ino = find(&fs, fs.root(), "file").expect("there");
        if longer {
            put(&fs, ino, &mut expected, (40_000, 5000), false);
        }
        let copy = new_file(&fs, "copy", &[]);
        if share {
            fs.clone_range(&CX, ino, 0, copy, 0, 0).expect("clone");
        } else {
            let copied = fs.copy_range(&CX, ino, 0, copy, 0, 1 << 20).expect("copy");
            assert_eq!(copied, expected.len() as u64);
        }
        fs.destroy().expect("close");
        drop(fs);
        common::check_ourselves(&image.path);
        let patch = Patch::new(&image.path);
        let item = Key::new(patch.ino(TreeId::FS, "file"), kind::EXTENT_DATA, 0);
        let (_, item) = patch.find(TreeId::FS, item).expect("an item");
        let inline = matches!(FileExtent::parse(&item), Ok(FileExtent::Inline { .. }));
        assert_eq!(inline, !longer, "the source of a copy is not changed");
        let fs = image.open();
        for name in ["file", "copy"] {
            assert!(read(&fs, fs.root(), name) == expected, "{name}, {share} {longer}");
        }
    }
}

/// Nothing of it is known, so nothing of it is changed; and it can go.
#[test]
fn what_cannot_be_read_stays_as_it_is() {
    testkit::require!(btrfs_progs);
    let image = volume_of("16384", SIZE, (Compression::Zlib, &[0xff; 900]));
    let item = || {
        let patch = Patch::new(&image.path);
        let key = Key::new(patch.ino(TreeId::FS, "file"), kind::EXTENT_DATA, 0);
        patch.find(TreeId::FS, key).expect("an item").1
    };
    let (before, fs) = (item(), image.open());
    let ino = find(&fs, fs.root(), "file").expect("there");
    let cached = WriteFlags { cached: true, ..WriteFlags::default() };
    for flags in [WriteFlags::default(), cached] {
        for at in [0, 100, SECTOR, SIZE] {
            let written = fs.write(&CX, ino, at as u64, &[1; 100], flags);
            assert_eq!(errno(written), libc::EIO, "{at}");
        }
    }
    let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(errno(fs.setattr(&CX, ino, &set(9_000))), libc::EIO);
    assert_eq!(errno(fs.fallocate(&CX, ino, FallocateMode::PunchHole, 0, 4096)), libc::EIO);
    let copy = new_file(&fs, "copy", &[]);
    assert_eq!(errno(fs.clone_range(&CX, ino, 0, copy, 0, 0)), libc::EIO);
    let mode = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    fs.setattr(&CX, ino, &mode).expect("chmod");
    fs.sync().expect("sync");
    assert!(item() == before);
    // What is written over wholly needs nothing of it.
    fs.write(&CX, ino, 0, &[2; 3 * SECTOR], cached).expect("write");
    assert!(read(&fs, fs.root(), "file") == [2; 3 * SECTOR]);
    fs.setattr(&CX, ino, &set(0)).expect("it is emptied");
    fs.unlink(&CX, fs.root(), b"file").expect("unlink");
    fs.forget(ino, 1);
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
}
