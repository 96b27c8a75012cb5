//! A file that grows shows zeros where nothing was written, also where a crash left content behind its
//! end: what lands behind content that is in memory still is on the volume before the size covers it.

#![allow(dead_code)]

use crate::common;
use blocksim::{Image, SimDevice};
use btrfs_disk::items::{FileExtent, InodeItem};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::{BtrfsFs, Options};
use btrfs_image::mkfs::MkfsOptions;
use common::{CX, find};
use fuzzing::patch::Patch;
use std::sync::Arc;
use testkit::oracle::TempDir;
use vfs::{FallocateMode, FileSystem, Ino, SetAttr, WriteFlags};

const MIB: u64 = 1 << 20;
/// Where it is preallocated, behind all.
const KEPT: u64 = 512 << 10;
/// How much is written, behind the first sector.
const WRITTEN: u64 = 256 << 10;

/// Both kinds of volume: with items for holes, and without.
fn volumes() -> impl Iterator<Item = (bool, Arc<SimDevice>)> {
    [true, false].into_iter().map(|no_holes| {
        let device = Arc::new(SimDevice::new(Image::zeros(300 << 20)));
        let mut options = MkfsOptions::default();
        options.features.no_holes = no_holes;
        btrfs_image::mkfs::make(&*device, &options).expect("mkfs");
        (no_holes, device)
    })
}

fn mount(device: &Arc<SimDevice>) -> BtrfsFs {
    let options = Options { background: false, ..Options::default() };
    BtrfsFs::open_device(device.clone(), options).expect("mount")
}

/// The volume as a crash left it that came when the body of the file was committed, and what is in front of it
/// was not: older Spinneys and kernels do that, this one does not. So its size is taken away here, with the items for
/// the hole in front.
fn without_front(fs: BtrfsFs, device: &SimDevice) -> Arc<SimDevice> {
    fs.destroy().expect("close");
    drop(fs);
    let dir = TempDir::new("grows").expect("temp dir");
    let path = dir.join("disk.img");
    device.image().export(&path).expect("export");
    let (patch, tree) = (Patch::new(&path), TreeId::FS);
    let ino = patch.ino(tree, "file");
    patch.edit_as::<InodeItem>(tree, Key::new(ino, kind::INODE_ITEM, 0), |item| item.size = 0);
    for (key, data) in patch.items(tree) {
        if (key.objectid, key.kind) == (ino, kind::EXTENT_DATA) && is_hole(&data) {
            patch.remove(tree, key);
        }
    }
    Arc::new(SimDevice::new(Image::import(&path).expect("import")))
}

fn is_hole(item: &[u8]) -> bool {
    let extent = FileExtent::parse(item).expect("an extent of a file");
    matches!(extent, FileExtent::Extent { fields, .. } if fields.disk_bytenr.0 == 0)
}

/// How much of each part [from, to) of the file is in extents of its own, as the volume has them.
fn stored(device: &SimDevice, parts: [(u64, u64); 3]) -> [u64; 3] {
    let dir = TempDir::new("grows-stored").expect("temp dir");
    let path = dir.join("disk.img");
    device.image().export(&path).expect("export");
    let patch = Patch::new(&path);
    let (ino, items) = (patch.ino(TreeId::FS, "file"), patch.items(TreeId::FS));
    let is_one = |key: &Key, data: &[u8]| {
        (key.objectid, key.kind) == (ino, kind::EXTENT_DATA) && !is_hole(data)
    };
    let extents = items.iter().filter(|(key, data)| is_one(key, data));
    let ends = extents.map(|(key, data)| match FileExtent::parse(data).expect("an extent") {
        FileExtent::Extent { fields, .. } => (key.offset, key.offset + fields.num_bytes),
        FileExtent::Inline { .. } => panic!("it is in an item"),
    });
    let ends: Vec<_> = ends.collect();
    parts.map(|(from, to)| ends.iter().map(|e| e.1.min(to).saturating_sub(e.0.max(from))).sum())
}

/// A volume whose file has content behind its end.
fn crashed(device: &SimDevice) -> Arc<SimDevice> {
    let before = Arc::new(SimDevice::new(device.image()));
    let fs = mount(&before);
    let ino = common::new_file(&fs, "file", &[]);
    fs.fallocate(&CX, ino, FallocateMode::KeepSize, KEPT, MIB / 4).expect("preallocate");
    fs.write(&CX, ino, 4096, &[7; WRITTEN as usize], Default::default()).expect("write");
    let crashed = without_front(fs, &before);
    // Else nothing could come back.
    let parts = [(0, 4096), (4096, 4096 + WRITTEN), (KEPT, KEPT + MIB / 4)];
    assert_eq!(stored(&crashed, parts), [0, WRITTEN, MIB / 4]);
    crashed
}

type Grows = fn(&BtrfsFs, Ino);

fn set_size(fs: &BtrfsFs, ino: Ino) {
    fs.setattr(&CX, ino, &SetAttr { size: Some(MIB), ..SetAttr::default() }).expect("grow");
}

fn write_short(fs: &BtrfsFs, ino: Ino) {
    fs.write(&CX, ino, MIB - 3, b"end", Default::default()).expect("write");
}

fn write_long(fs: &BtrfsFs, ino: Ino) {
    fs.write(&CX, ino, MIB, &[0; 256 << 10], Default::default()).expect("write");
}

fn append_first(fs: &BtrfsFs, ino: Ino) {
    fs.write(&CX, ino, 0, &[0; 10], Default::default()).expect("write");
    write_short(fs, ino);
}

fn allocate(fs: &BtrfsFs, ino: Ino) {
    fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, MIB).expect("allocate");
}

fn zero(fs: &BtrfsFs, ino: Ino) {
    let mode = FallocateMode::ZeroRange { keep_size: false };
    fs.fallocate(&CX, ino, mode, 100 << 10, MIB).expect("zero");
}

fn keep_size(fs: &BtrfsFs, ino: Ino) {
    fs.fallocate(&CX, ino, FallocateMode::KeepSize, 0, MIB).expect("allocate");
    set_size(fs, ino);
}

fn share(fs: &BtrfsFs, ino: Ino) {
    let from = common::new_file(fs, "from", &[0; 16 << 10]);
    fs.clone_range(&CX, from, 0, ino, MIB, 0).expect("reflink");
}

/// Of a write on a full volume only what is preallocated has its place.
fn keep_a_part(fs: &BtrfsFs, ino: Ino) {
    let (rest, mut end) = (common::new_file(fs, "rest", &[]), 0);
    for len in [16 * MIB, MIB, 4096] {
        while fs.fallocate(&CX, rest, FallocateMode::Allocate, end, len).is_ok() {
            end += len;
        }
    }
    let cached = WriteFlags { cached: true, ..WriteFlags::default() };
    let written = fs.write(&CX, ino, 0, &[0; KEPT as usize + 4096], cached);
    assert_eq!(common::errno(written), libc::ENOSPC);
    assert_eq!(fs.getattr(ino).expect("there").size, KEPT + 4096);
    set_size(fs, ino);
}

const ALL: [(&str, Grows); 9] = [
    ("set size", set_size),
    ("short write", write_short),
    ("long write", write_long),
    ("append first", append_first),
    ("allocate", allocate),
    ("zero", zero),
    ("keep size", keep_size),
    ("share", share),
    ("keep a part", keep_a_part),
];

fn assert_zeros(fs: &BtrfsFs, ino: Ino, what: &str) {
    let mut content = vec![0; (MIB - 4096) as usize];
    assert_eq!(fs.read(ino, 0, &mut content).expect("read"), content.len(), "{what}");
    let wrong = content.iter().position(|byte| *byte != 0);
    assert_eq!(wrong.map(|at| (at, content[at])), None, "{what}");
}

fn judge(device: &Arc<SimDevice>, name: &str, grow: Grows, what: &str) {
    let fs = mount(device);
    let ino = find(&fs, fs.root(), name).expect("there");
    let attr = fs.getattr(ino).expect("there");
    let blocks = (WRITTEN + MIB / 4) / 512;
    assert_eq!((attr.size, attr.blocks), (0, blocks), "{what}: it is as it was committed");
    grow(&fs, ino);
    assert_zeros(&fs, ino, what);
    fs.fsync(ino, false).expect("fsync");
    let logged = Arc::new(SimDevice::new(device.image()));
    fs.sync().expect("sync");
    let kept = fs.getattr(ino).expect("there").blocks * 512;
    assert!(kept >= MIB / 4, "{what}: what is preallocated stays, {kept}");
    fs.destroy().expect("close");
    drop(fs);
    for device in [device, &logged] {
        let fs = mount(device);
        let ino = find(&fs, fs.root(), name).expect("there");
        assert_zeros(&fs, ino, what);
        fs.destroy().expect("close");
        drop(fs);
        common::check_device(device.clone(), true, btrfs_check::Severity::Note);
        common::judge_image(&device.image());
    }
}

#[test]
fn what_a_crash_left_behind_the_end_does_not_come_back() {
    for (no_holes, device) in volumes() {
        let crashed = crashed(&device);
        for (how, grow) in ALL {
            let crashed = Arc::new(SimDevice::new(crashed.image()));
            judge(&crashed, "file", grow, &format!("{how}, NO_HOLES {no_holes}"));
        }
    }
}

const NOCOW: u32 = 0x0080_0000;

/// A volume whose file has content behind its end, with checksums or without, and nothing in front.
fn crashed_with(flags: u32, device: &SimDevice) -> Arc<SimDevice> {
    let before = Arc::new(SimDevice::new(device.image()));
    let fs = mount(&before);
    let ino = common::new_file(&fs, "file", &[]);
    fs.set_flags(&CX, ino, flags).expect("chattr");
    let direct = WriteFlags { direct: true, ..WriteFlags::default() };
    fs.write(&CX, ino, MIB, &[7; 64 << 10], direct).expect("write");
    without_front(fs, &before)
}

/// What lies behind the end of an empty file does not outlive a change of what its flags say of checksums.
#[test]
fn what_a_crash_left_behind_the_end_has_the_checksums_of_the_flags() {
    for (no_holes, device) in volumes() {
        for (old, new) in [(0, NOCOW), (NOCOW, 0), (0, 0), (NOCOW, NOCOW)] {
            let what = format!("{old:x} to {new:x}, NO_HOLES {no_holes}");
            let device = crashed_with(old, &device);
            let fs = mount(&device);
            let ino = find(&fs, fs.root(), "file").expect("there");
            let attr = fs.getattr(ino).expect("there");
            assert!(attr.size == 0 && attr.blocks == 128, "{what}: {} blocks", attr.blocks);
            fs.set_flags(&CX, ino, new).expect("chattr");
            let left = fs.getattr(ino).expect("there").blocks;
            assert_eq!(left, if old == new { 128 } else { 0 }, "{what}");
            fs.fsync(ino, false).expect("fsync");
            let logged = Arc::new(SimDevice::new(device.image()));
            fs.sync().expect("sync");
            for device in [&device, &logged] {
                let device = Arc::new(SimDevice::new(device.image()));
                let fs = mount(&device);
                let ino = find(&fs, fs.root(), "file").expect("there");
                // Its end comes behind that without a gap.
                fs.write(&CX, ino, 0, &vec![3; MIB as usize], Default::default()).expect("write");
                fs.write(&CX, ino, MIB, &[4; 64 << 10], Default::default()).expect("write");
                fs.destroy().expect("close");
                drop(fs);
                common::check_device(device.clone(), true, btrfs_check::Severity::Note);
                common::judge_image(&device.image());
            }
        }
    }
}

#[test]
fn no_copy_ends_behind_the_largest_offset() {
    for (_, device) in volumes() {
        let fs = mount(&device);
        let from = common::new_file(&fs, "from", &[1; 16 << 10]);
        let to = common::new_file(&fs, "to", &[2; 4096]);
        for at in [(1 << 63) - 4096, (1 << 63) - 1, 1 << 63, u64::MAX - 4095] {
            let copied = fs.copy_range(&CX, from, 0, to, at, 16 << 10);
            assert_eq!(common::errno(copied), libc::EFBIG, "at {at}");
        }
        assert_eq!(fs.getattr(to).expect("there").size, 4096);
        fs.destroy().expect("close");
        drop(fs);
        common::check_device(device, true, btrfs_check::Severity::Note);
    }
}
