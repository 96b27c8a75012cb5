//! Version 1 caches beside a valid free-space tree, and what is not to be lost for their sake: the log of fsyncs that a
//! crash left, chunks, the mount itself. Their entries are made here.

use crate::cache::{open_path, superblock, with_both};
use crate::common::{self, CX, Image, new_file, read};
use btrfs_disk::ids::FREE_SPACE_OBJECTID;
use btrfs_disk::items::FileExtent;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::BtrfsFs;
use fuzzing::patch::Patch;
use std::sync::Arc;
use vfs::{FileKind, FileSystem};

const MIB: u64 = 1 << 20;
/// So many headers in the root tree that their erasing is held more for than `packed` leaves.
const HEADERS: u64 = 150;

/// Content until no chunk can come, small files until metadata has little room; the content goes.
fn fill(fs: &BtrfsFs) {
    let make = |name: &str, content: &[u8]| {
        let made = fs.mknod(&CX, fs.root(), name.as_bytes(), FileKind::File, 0o644, 0)?;
        let written = fs.write(&CX, made.attr.ino, 0, content, Default::default());
        fs.forget(made.attr.ino, 1);
        written
    };
    let large = |n: u64| format!("large{n}");
    let made = (0..).take_while(|n| make(&large(*n), &[7; 1 << 20]).is_ok()).count() as u64;
    let gone = |n: u64| fs.unlink(&CX, fs.root(), large(n).as_bytes());
    // What is small is promised room for content as well; no group becomes empty.
    (0..16).step_by(2).for_each(|n| gone(n).expect("unlink"));
    fs.sync().expect("sync");
    let room = || {
        let totals = fs.space().totals();
        totals.metadata.free.saturating_sub(totals.global_reserve)
    };
    for n in 0.. {
        make(&format!("small{n}"), &[n as u8; 1900]).expect("a small file");
        if n % 250 == 0 {
            fs.sync().expect("sync");
            if room() < 9 * MIB {
                break;
            }
        }
    }
    // Some went before, and there may be one without content.
    (0..=made).for_each(|n| drop(gone(n)));
}

/// All of the device is in chunks, metadata has little room, and groups of data are empty by the last commit; what was
/// fsynced behind that lies in more than one of them.
fn packed() -> (Image, Vec<u8>) {
    let image = Image::new(128 * MIB, &[]);
    let fs = open_path(&image.path).expect("open");
    fill(&fs);
    fs.destroy().expect("close");
    drop(fs);
    let fs = open_path(&image.path).expect("open");
    let totals = fs.space().totals();
    assert!(totals.unallocated < 8 * MIB && totals.data.used < MIB, "{totals:?}");
    assert!(totals.data.total > 30 * MIB, "{totals:?}");
    let part = |n: u64| vec![n as u8 + 1; 2 << 20];
    let ino = new_file(&fs, "logged", b"");
    for n in 0..10 {
        fs.write(&CX, ino, n * (2 * MIB), &part(n), Default::default()).expect("write");
        fs.fsync(ino, false).expect("fsync");
    }
    let content = (0..10).flat_map(part).collect();
    let crash = image.copy("crash.img");
    fs.destroy().expect("close");
    assert_ne!(log_of(&crash), 0, "a crash was to leave a log");
    (crash, content)
}

fn log_of(image: &Image) -> u64 {
    superblock(Arc::new(common::open_device(&image.path, true))).fields.log_root.0
}

/// Headers that lead to no inode.
fn with_headers(image: &Image, count: u64) {
    Patch::new(&image.path).edit_leaf(TreeId::ROOT, Key::new(FREE_SPACE_OBJECTID, 0, 0), |items| {
        let at = items.partition_point(|(key, _)| *key < Key::new(FREE_SPACE_OBJECTID, 0, 0));
        let header = |n| (Key::new(FREE_SPACE_OBJECTID, 0, n), vec![0; 41]);
        items.splice(at..at, (1..=count).map(header));
    });
}

/// Chunks that are empty by the last commit may have what was fsynced since.
#[test]
fn no_chunk_is_given_away_before_the_log_that_lies_in_it_is_replayed() {
    testkit::require!(kernel_btrfs);
    let (image, content) = packed();
    with_headers(&image, HEADERS);
    let fs = open_path(&image.path).expect("the log is replayed");
    assert_eq!(fs.read_only_reason(), None);
    assert!(read(&fs, fs.root(), "logged") == content, "what was fsynced");
    fs.destroy().expect("close");
    drop(fs);
    // Their erasing needs little.
    let items = Patch::new(&image.path).items(TreeId::ROOT);
    assert_eq!(items.iter().filter(|(key, _)| key.objectid == FREE_SPACE_OBJECTID).count(), 0);
    common::assert_sound(&image.path);
}

/// The item of a cache's first extent.
fn content_of(patch: &Patch, ino: u64) -> Key {
    let (at, data) =
        patch.find(TreeId::ROOT, Key::new(ino, kind::EXTENT_DATA, 0)).expect("content");
    assert_eq!((at.objectid, at.kind), (ino, kind::EXTENT_DATA));
    let Ok(FileExtent::Extent { fields, .. }) = FileExtent::parse(&data) else {
        panic!("the kernel's caches are extents");
    };
    Key::new(fields.disk_bytenr.0, kind::EXTENT_ITEM, fields.disk_num_bytes)
}

/// Each way in which a cache and the extent tree may differ, by what it does to the extent's item.
const DAMAGES: [fn(&Patch, Key); 3] = [
    // Somebody else's.
    |patch, extent| patch.edit(TreeId::EXTENT, extent, |item| item[33] ^= 1),
    // Held twice.
    |patch, extent| {
        patch.edit(TreeId::EXTENT, extent, |item| (item[0], item[49]) = (2, 2));
    },
    // A count that is not the sum.
    |patch, extent| patch.edit(TreeId::EXTENT, extent, |item| item[0] = 2),
];

/// It is of no use to anybody, and the commit that drops it would end the mount.
#[test]
fn a_cache_that_is_damaged_stays_alone() {
    testkit::require!(kernel_btrfs);
    let (base, caches) = with_both(false);
    assert!(caches.len() > 1, "one that is sound was to be there as well");
    for (n, damage) in DAMAGES.into_iter().enumerate() {
        let image = base.copy("damaged.img");
        let patch = Patch::new(&image.path);
        let extent = content_of(&patch, caches[0]);
        damage(&patch, extent);
        drop(patch);
        let fs = open_path(&image.path).expect("open");
        fs.mknod(&CX, fs.root(), b"new", FileKind::File, 0o644, 0).expect("create");
        fs.sync().expect("a commit");
        assert_eq!(fs.read_only_reason(), None, "damage {n}");
        fs.destroy().expect("close");
        drop(fs);
        let patch = Patch::new(&image.path);
        let left: Vec<u64> =
            patch.items(TreeId::ROOT).iter().map(|(key, _)| key.objectid).collect();
        let left: Vec<bool> = caches.iter().map(|ino| left.contains(ino)).collect();
        assert!(left[0] && !left[1..].contains(&true), "damage {n}: {left:?} of {caches:?}");
        assert!(open_path(&image.path).is_ok(), "the next mount");
    }
}
