//! A leaf of the extent tree is lost that says who has the extents of a file: whether others have them is not
//! known, so nothing is written into them, and what was acknowledged stays in memory.

use crate::{common, lost};
use btrfs_disk::TreeId;
use btrfs_disk::items::FileExtent;
use btrfs_disk::key::kind::{EXTENT_DATA, EXTENT_ITEM};
use btrfs_fs::BtrfsFs;
use common::{CX, find, new_file};
use fuzzing::hostile::base::Base;
use lost::{
    content_stays, content_stays_of, flip, is_sound, leaves, leaves_of, open, told, volume,
};
use vfs::{FallocateMode, FileSystem, Ino, WriteFlags};

const NOCOW: u32 = 0x0080_0000;
const SECTOR: u64 = 4096;
const PIECES: u64 = 400;
const DIRECT: WriteFlags =
    WriteFlags { direct: true, cached: false, kill_priv: false, sync: false };

/// A volume with a file "pieces" whose every second sector is an extent that `put` makes, a leaf in the midst of
/// the items of these extents, and where in the file one of them is.
fn in_extents(flags: u32, put: impl Fn(&BtrfsFs, Ino, u64)) -> (Base, u64, u64) {
    let base = volume(|fs| {
        let ino = new_file(fs, "pieces", &[]);
        fs.set_flags(&CX, ino, flags).expect("chattr");
        (0..PIECES).for_each(|piece| put(fs, ino, piece * 2 * SECTOR));
        new_file(fs, "other", &[1; 5000]);
    });
    let of_data = |items: &lost::Items| items.iter().all(|(key, _)| key.kind == EXTENT_ITEM);
    let found = leaves_of(&base, |tree| tree == TreeId::EXTENT, of_data);
    assert!(found.len() >= 3, "{} leaves", found.len());
    let (items, lost) = &found[found.len() / 2];
    let extent = items[items.len() / 2].0.objectid;
    let files = leaves(&base, |_| true).into_iter().flat_map(|(items, _)| items);
    let names = |data: &[u8]| match FileExtent::parse(data) {
        Ok(FileExtent::Extent { fields, .. }) => fields.disk_bytenr.0 == extent,
        _ => false,
    };
    let mut places = files.filter(|(key, data)| key.kind == EXTENT_DATA && names(data));
    let (key, _) = places.next().expect("a file has it");
    (base, *lost, key.offset)
}

fn nocow() -> (Base, u64, u64) {
    in_extents(NOCOW, |fs, ino, at| {
        fs.write(&CX, ino, at, &[5; SECTOR as usize], DIRECT).expect("write");
    })
}

fn preallocated() -> (Base, u64, u64) {
    in_extents(0, |fs, ino, at| {
        fs.fallocate(&CX, ino, FallocateMode::Allocate, at, SECTOR).expect("fallocate");
    })
}

#[test]
fn content_for_extents_that_others_may_have_stays_in_memory() {
    // The second time what is in front of the extent finds a place before.
    for in_front in [0, SECTOR] {
        for (base, lost, at) in [nocow(), preallocated()] {
            flip(&base, lost);
            content_stays(base.device.clone(), at - in_front, || flip(&base, lost));
        }
    }
}

/// What comes out of the kernel's cache the kernel drops where it is refused.
#[test]
fn long_content_out_of_the_cache_stays_in_memory() {
    let cached = WriteFlags { cached: true, ..WriteFlags::default() };
    for (base, lost, at) in [nocow(), preallocated()] {
        flip(&base, lost);
        content_stays_of(base.device.clone(), at, (256 << 10, cached), || flip(&base, lost));
    }
}

/// Who writes directly is told at once, and nothing of what he wanted is there.
#[test]
fn direct_writes_to_extents_that_others_may_have_are_refused() {
    for (base, lost, at) in [nocow(), preallocated()] {
        flip(&base, lost);
        let fs = open(&base.device);
        let pieces = find(&fs, fs.root(), "pieces").expect("there");
        let free = || fs.space().totals().data.free;
        let before = free();
        told(fs.write(&CX, pieces, at - SECTOR, &[9; 8192], DIRECT), "a write");
        assert_eq!((fs.read_only_reason(), free()), (None, before));
        flip(&base, lost);
        fs.write(&CX, pieces, at - SECTOR, &[9; 8192], DIRECT).expect("it is there again");
        fs.destroy().expect("close");
        drop(fs);
        is_sound(&base);
    }
}
