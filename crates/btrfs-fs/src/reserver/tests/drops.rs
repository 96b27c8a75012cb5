//! Deleted subvolumes on volumes without room for anything else, in memory.

use super::{CX, assert_kept, create, name, volume};
use crate::reserve::{Cost, cost};
use crate::{BtrfsFs, Caller, Delete};
use vfs::{FileKind, FileSystem, Ino};

const SNAPSHOTS: u64 = 256;
const FILES: u64 = 2000;

fn snapshot_name(number: u64) -> Vec<u8> {
    format!("snapshot-{number}").into_bytes()
}

/// A subvolume of files with an extent each, and snapshots that differ from each other in some of them.
fn with_snapshots(fs: &BtrfsFs) {
    let (root, top) = (Caller::root(), fs.root());
    let made = fs.create_subvolume(&root, top, b"source").expect("create");
    let source = made.1.attr.ino;
    let files: Vec<Ino> = (0..FILES)
        .map(|number| {
            let made = fs.mknod(&CX, source, &name(number), FileKind::File, 0o644, 0);
            made.expect("create").attr.ino
        })
        .collect();
    let write = |ino, byte| {
        fs.write(&CX, ino, 0, &[byte; 4096], Default::default()).expect("write");
    };
    files.iter().for_each(|ino| write(*ino, 1));
    for number in 0..SNAPSHOTS {
        // Some that lie apart.
        (0..4).for_each(|n| write(files[((number * 31 + n * 511) % FILES) as usize], 2));
        let made = fs.snapshot(&root, source, top, &snapshot_name(number), true).expect("snapshot");
        fs.forget(made.1.attr.ino, 1);
    }
    files.iter().chain([&source]).for_each(|ino| fs.forget(*ino, 1));
}

/// Until nothing more can be made.
fn fill(fs: &BtrfsFs) {
    let rest = create(fs, 1 << 40);
    for len in [1 << 20, 4096] {
        let mut at = fs.getattr(rest).expect("there").size;
        while let Ok(written) = fs.write(&CX, rest, at, &vec![7; len], Default::default()) {
            at += written as u64;
        }
    }
    fs.forget(rest, 1);
    let mut number = 1 << 41;
    while let Ok(made) = fs.mknod(&CX, fs.root(), &name(number), FileKind::File, 0o644, 0) {
        fs.forget(made.attr.ino, 1);
        number += 1;
    }
}

#[test]
fn many_deleted_subvolumes_go_from_a_full_volume() {
    let fs = volume(256, 4096);
    with_snapshots(&fs);
    fill(&fs);
    for number in 0..SNAPSHOTS {
        let which = Delete::Name(fs.root(), &snapshot_name(number));
        fs.delete_subvolume(&Caller::root(), which).expect("a name may go");
    }
    let whole = cost::with(Cost::default(), cost::drop_nodes(&fs.engine.core.geometry, 1, 256));
    let room = fs.space().totals().metadata.free;
    assert!(fs.engine.reservations.nodes_for(&whole) > room, "a step of all of them has no room");
    assert!(fs.sync_deleted(&[], None).expect("they go"));
    assert!(fs.engine.cleaner.dead().is_empty());
    assert_kept(&fs);
    fs.destroy().expect("close");
}

/// One leaf goes, and all its extents with it, whose checksums lie anywhere.
#[test]
fn the_smallest_step_of_a_drop_is_that_of_a_leaf() {
    let fs = volume(128, 16384);
    let geometry = &fs.engine.core.geometry;
    let sums = cost::drop_nodes(geometry, 1, 1).sums;
    assert!(sums <= 2 * geometry.leaf_space() as u64 / 78, "{sums} places");
    fs.destroy().expect("close");
}
