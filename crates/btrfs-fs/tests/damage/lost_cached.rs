//! Content that comes out of the kernel's cache, which drops what is refused, to a file of which a leaf of extents
//! is lost: it is kept in memory where its place is not known, and lands where that is.

use crate::{common, lost};
use btrfs_disk::key::kind::EXTENT_DATA;
use common::{CX, find, new_file};
use fuzzing::hostile::base::Base;
use lost::{content_stays_of, flip, is_sound, leaves, open, volume};
use vfs::{FallocateMode, FileSystem, WriteFlags, XattrMode};

const SECTOR: u64 = 4096;
const PIECES: u64 = 400;
/// Longer than what gathers in memory.
const LONG: usize = 256 << 10;
const CACHED: WriteFlags =
    WriteFlags { cached: true, direct: false, kill_priv: false, sync: false };

/// A volume with a file "pieces" in so many extents, and of its leaves that have these alone where each is, and of
/// which part of the file.
fn in_pieces() -> (Base, Vec<(u64, u64)>) {
    let mut number = 0;
    let base = volume(|fs| {
        let ino = new_file(fs, "pieces", &[]);
        // Between the inode and its extents.
        for name in ["user.a", "user.b", "user.c"] {
            let value = [7; 3880];
            fs.setxattr(&CX, ino, name.as_bytes(), &value, XattrMode::Set).expect("room");
        }
        for piece in 0..PIECES {
            fs.write(&CX, ino, piece * 2 * SECTOR, &[5; SECTOR as usize], Default::default())
                .expect("write");
        }
        new_file(fs, "other", &[1; 5000]);
        number = ino.0;
    });
    let of_pieces = |items: &lost::Items| {
        items.iter().all(|(key, _)| (key.objectid, key.kind) == (number, EXTENT_DATA))
    };
    let found = leaves(&base, of_pieces);
    let places = found.iter().map(|(items, at)| (*at, items[0].0.offset)).collect();
    (base, places)
}

#[test]
fn what_has_no_place_stays_in_memory() {
    let (base, leaves) = in_pieces();
    let (lost, at) = leaves[leaves.len() / 2];
    flip(&base, lost);
    content_stays_of(base.device.clone(), at, (LONG, CACHED), || flip(&base, lost));
}

/// What covers it needs nothing of the beginning.
#[test]
fn the_beginning_stays_in_memory() {
    for len in [LONG, 2 * SECTOR as usize, SECTOR as usize] {
        let (base, leaves) = in_pieces();
        let (lost, at) = leaves[0];
        assert_eq!(at, 0);
        flip(&base, lost);
        content_stays_of(base.device.clone(), 0, (len, CACHED), || flip(&base, lost));
    }
}

#[test]
fn what_has_a_place_lands_though_the_beginning_is_lost() {
    let (base, leaves) = in_pieces();
    let (lost, begins) = leaves[0];
    assert_eq!(begins, 0);
    flip(&base, lost);
    let (last, fs) = (leaves[leaves.len() - 1].1 + 2 * SECTOR, open(&base.device));
    let pieces = find(&fs, fs.root(), "pieces").expect("there");
    let told = fs.write(&CX, pieces, last, &[8; LONG], Default::default());
    assert!(told.is_err_and(|error| error.is_of_medium()), "who writes is told");
    for len in [LONG, SECTOR as usize] {
        fs.write(&CX, pieces, last, &vec![9; len], CACHED).expect("it has a place");
    }
    fs.sync().expect("sync");
    fs.destroy().expect("close");
    drop(fs);
    flip(&base, lost);
    let fs = open(&base.device);
    let pieces = find(&fs, fs.root(), "pieces").expect("there");
    let mut back = vec![0; LONG];
    fs.read(pieces, last, &mut back).expect("read");
    assert!(back == [9; LONG]);
    fs.destroy().expect("close");
    drop(fs);
    is_sound(&base);
}

/// That the file's own space cannot be looked for is not why a write finds no room.
#[test]
fn a_full_volume_says_so() {
    let (base, leaves) = in_pieces();
    let (lost, at) = leaves[leaves.len() / 2];
    let fs = open(&base.device);
    let pieces = find(&fs, fs.root(), "pieces").expect("there");
    let end = (PIECES + 100) * 2 * SECTOR;
    fs.fallocate(&CX, pieces, FallocateMode::KeepSize, end, SECTOR).expect("room");
    let (rest, mut end) = (new_file(&fs, "rest", &[]), 0);
    for len in [LONG, SECTOR as usize] {
        while let Ok(written) = fs.write(&CX, rest, end, &vec![1; len], Default::default()) {
            end += written as u64;
        }
    }
    fs.destroy().expect("close");
    drop(fs);
    flip(&base, lost);
    let fs = open(&base.device);
    let pieces = find(&fs, fs.root(), "pieces").expect("there");
    for flags in [WriteFlags::default(), CACHED] {
        let written = fs.write(&CX, pieces, at, &[9; LONG], flags);
        assert_eq!(common::errno(written), libc::ENOSPC);
    }
    fs.destroy().expect("close");
}
