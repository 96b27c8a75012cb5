//! Volumes of which a node is lost, for tests of what becomes of those that need it.
#![allow(dead_code)]

use super::common::{self, CX, find, new_file, read};
use blockdev::{BlockDevice, MemDevice};
use btrfs_disk::checksum::ChecksumType;
use btrfs_disk::{Key, Logical, TreeId};
use btrfs_fs::BtrfsFs;
use btrfs_image::mkfs::{MkfsOptions, make};
use fuzzing::hostile::base::{Base, options};
use fuzzing::hostile::leaf::Leaf;
use std::sync::Arc;
use vfs::{FileSystem, WriteFlags};

pub fn volume(fill: impl FnOnce(&BtrfsFs)) -> Base {
    volume_with(ChecksumType::Crc32c, fill)
}

pub fn volume_with(csum: ChecksumType, fill: impl FnOnce(&BtrfsFs)) -> Base {
    let device = Arc::new(MemDevice::new(256 << 20));
    let mkfs = MkfsOptions { node_size: Some(4096), csum, ..MkfsOptions::default() };
    make(&*device, &mkfs).expect("mkfs");
    let fs = open(&device);
    fill(&fs);
    fs.destroy().expect("close");
    drop(fs);
    Base::of(device)
}

pub fn open(device: &Arc<MemDevice>) -> BtrfsFs {
    BtrfsFs::open_device(device.clone(), options()).expect("open")
}

pub fn told<T>(result: vfs::Result<T>, what: &str) {
    let errno = result.err().map_or(0, |error| error.errno());
    assert!([libc::EIO, libc::EUCLEAN].contains(&errno), "{what}: errno {errno}");
}

pub type Items = Vec<(Key, Vec<u8>)>;

/// Leaves of subvolumes that are as wanted, in the order of their keys.
pub fn leaves(base: &Base, wanted: impl Fn(&Items) -> bool) -> Vec<(Items, u64)> {
    leaves_of(base, TreeId::is_subvolume, wanted)
}

/// The same of other trees.
pub fn leaves_of(
    base: &Base,
    tree: impl Fn(TreeId) -> bool,
    wanted: impl Fn(&Items) -> bool,
) -> Vec<(Items, u64)> {
    let all = base.nodes.iter().filter(|node| node.level == 0 && tree(node.tree));
    let items = |at| Leaf::of(&base.node_bytes(&*base.device, at)).items;
    let mut found: Vec<_> = all.map(|node| (items(node.logical), node.logical.0)).collect();
    found.retain(|(items, _)| !items.is_empty() && wanted(items));
    found.sort_by_key(|(items, _)| items[0].0);
    found
}

/// What is at `logical` is lost; or there again, if it was.
pub fn flip(base: &Base, logical: u64) {
    for at in base.copies(Logical(logical)) {
        let mut byte = [0];
        base.device.read_at(at + 200, &mut byte).expect("in range");
        base.device.write_at(at + 200, &[!byte[0]]).expect("in range");
    }
}

/// What the node at `logical` says of the tree that it is a node of.
pub fn set_owner(base: &Base, logical: u64, tree: TreeId) {
    let mut bytes = base.node_bytes(&*base.device, Logical(logical));
    bytes[88..96].copy_from_slice(&tree.0.to_le_bytes());
    base.geometry.csum.seal(&mut bytes);
    for at in base.copies(Logical(logical)) {
        base.device.write_at(at, &bytes).expect("in range");
    }
}

pub fn is_sound(base: &Base) {
    common::judge_device(base.device.clone(), btrfs_check::Severity::Warning);
}

/// Content of the file at `at` cannot be written until its leaf is there again, by `mend`.
pub fn content_stays(device: Arc<dyn BlockDevice>, at: u64, mend: impl FnOnce()) {
    content_stays_of(device, at, (8192, WriteFlags::default()), mend);
}

/// The same of so much content that comes in some way.
pub fn content_stays_of(
    device: Arc<dyn BlockDevice>,
    at: u64,
    (len, flags): (usize, WriteFlags),
    mend: impl FnOnce(),
) {
    let content = vec![9; len];
    let open = || BtrfsFs::open_device(device.clone(), options()).expect("open");
    let fs = open();
    let pieces = find(&fs, fs.root(), "pieces").expect("there");
    fs.write(&CX, pieces, at, &content, flags).expect("write");
    let other = find(&fs, fs.root(), "other").expect("there");
    fs.write(&CX, other, 0, &[2; 5000], Default::default()).expect("write");
    new_file(&fs, "new", &[3; 700]);
    for _ in 0..2 {
        told(fs.sync(), "not all is durable");
        assert_eq!(fs.read_only_reason(), None);
        told(fs.fsync(pieces, false), "it cannot be written");
        fs.fsync(other, false).expect("that can");
    }
    let mut back = vec![0; len];
    fs.read(pieces, at, &mut back).expect("it is in memory");
    assert!(back == content);
    mend();
    fs.sync().expect("all of it");
    fs.destroy().expect("close");
    drop(fs);
    let fs = open();
    assert!(read(&fs, fs.root(), "pieces")[at as usize..][..len] == content);
    assert!(read(&fs, fs.root(), "other") == [2; 5000] && read(&fs, fs.root(), "new") == [3; 700]);
    fs.destroy().expect("close");
    drop(fs);
    common::judge_device(device, btrfs_check::Severity::Warning);
}
