//! Steps of erasing, one by one, on a small volume in memory.

use super::data_reloc;
use crate::BtrfsFs;
use crate::erasures::Steps;
use crate::ino::{InodeId, id_of};
use crate::reserve::tests::{new_file, volume};
use btrfs_disk::ids::ORPHAN_OBJECTID;
use btrfs_disk::items::{FileExtent, InodeItem};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_txn::ObjectId;
use vfs::{Context, FileSystem, Ino};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };

/// A step hears that the mount is read-only, and what becomes of the inode is decided when that is over: who ended it
/// has looked before at what waits.
#[test]
fn what_heard_of_a_remount_is_not_left_to_the_next_mount() {
    let fs = volume(128, 16384);
    let engine = &fs.engine;
    let open = new_file(&fs);
    fs.unlink(&CX, fs.root(), b"file").expect("unlink");
    fs.sync().expect("sync");
    engine.core.health.refuse_changes(true);
    fs.forget(open, 1);
    let mut waiting = engine.orphans.erasures.take_set_aside();
    let mut erasure = waiting.pop().expect("it waits to be writable");
    let heard = engine.orphans.step_behind(&mut erasure);
    assert_eq!(heard.as_ref().expect_err("read-only").errno(), libc::EROFS);
    engine.core.health.refuse_changes(false);
    engine.orphans.settle(erasure, heard);
    assert_eq!(engine.orphans.erasures.count(), 1, "it waits still");
    // With something to commit.
    new_file(&fs);
    fs.sync().expect("sync");
    assert!(engine.inodes.get(open).is_err(), "erased behind the commit");
    fs.destroy().expect("close");
}

/// As at a mount that erased an orphan of the one before, and committed that: the last number of the tree is that of
/// an inode which is in memory still.
#[test]
fn a_number_of_what_was_erased_is_passed_over_while_that_is_in_memory() {
    let fs = volume(128, 16384);
    let engine = &fs.engine;
    let first = new_file(&fs);
    let held = engine.inodes.get(first).expect("it is there");
    fs.unlink(&CX, fs.root(), b"file").expect("unlink");
    fs.forget(first, 1);
    fs.sync().expect("sync");
    assert!(held.read().is_err(), "erased by who let it go");
    fs.sync().expect("its end is committed");
    // Numbers are looked up anew.
    engine.subvols.add(TreeId::FS, [0; 16]);
    let second = new_file(&fs);
    assert_eq!(id_of(second).objectid, id_of(first).objectid + 1);
    drop(held);
    fs.forget(second, 1);
    fs.destroy().expect("close");
}

/// A file of so many extents, and the inode that holds them too in the tree for moving content.
fn moved(fs: &BtrfsFs, extents: u64) -> (Ino, InodeId) {
    let file = new_file(fs);
    for extent in 0..extents {
        fs.write(&CX, file, extent * 8192, &[7; 4096], Default::default()).expect("write");
    }
    fs.sync().expect("sync");
    let (core, theirs) = (&fs.engine.core, id_of(file));
    let copy = ObjectId::new(TreeId::DATA_RELOC, 300);
    let op = core.begin();
    let mut scan = op.view.scan(theirs.tree, Key::new(theirs.objectid, kind::EXTENT_DATA, 0));
    while let Some((key, data)) = scan.next().expect("read") {
        op.put(copy, key.kind, key.offset, data.to_vec().into());
        let FileExtent::Extent { fields, .. } = FileExtent::parse(&data).expect("extent") else {
            panic!("{key}: inline")
        };
        let who = (copy.tree, copy.objectid, key.offset - fields.offset);
        op.reference(fields.disk_bytenr, fields.disk_num_bytes, who, 1).expect("reference");
    }
    let item = Key::new(theirs.objectid, kind::INODE_ITEM, 0);
    let item = core.view().get(theirs.tree, &item).expect("read").expect("an inode");
    let item = InodeItem { nlink: 0, ..InodeItem::read(&item).expect("an inode") };
    op.put(copy, kind::INODE_ITEM, 0, item.to_vec().into());
    let list = ObjectId::new(copy.tree, ORPHAN_OBJECTID);
    op.put(list, kind::ORPHAN_ITEM, copy.objectid, Vec::new().into());
    drop(op);
    (file, copy)
}

/// What an interrupted relocation left goes in steps that pass over nothing that is gone.
#[test]
fn each_step_begins_where_the_one_before_ended() {
    const EXTENTS: u64 = 100;
    const STEP: usize = 16;
    let fs = volume(256, 16384);
    let (file, copy) = moved(&fs, EXTENTS);
    fs.sync().expect("commit");
    let used = fs.engine.core.space.used();
    fs.unlink(&CX, fs.root(), b"file").expect("unlink");
    fs.forget(file, 1);
    fs.sync().expect("commit");
    assert!(used - fs.engine.core.space.used() < 4096 * EXTENTS / 2, "the copies hold them");
    let (core, reserver) = (&fs.engine.core, &fs.engine.reserver);
    let mut steps = Steps::of(copy.objectid, STEP);
    for taken in 1.. {
        if data_reloc::step(core, reserver, copy, &mut steps).expect("a step") {
            assert_eq!(taken, EXTENTS as usize / STEP + 1);
            break;
        }
        let first = Key::new(copy.objectid, kind::INODE_ITEM + 1, 0);
        let left = core.view().scan(copy.tree, first).next().expect("read").expect("more").0;
        let gone = Key::new(copy.objectid, kind::EXTENT_DATA, (taken * STEP) as u64 * 8192 - 8192);
        assert!(gone < steps.from && steps.from <= left, "{gone} {} {left}", steps.from);
    }
    assert_eq!(super::list(core, copy.tree).expect("read"), [] as [u64; 0]);
    fs.sync().expect("commit");
    assert!(used - fs.engine.core.space.used() >= 4096 * EXTENTS, "all of them are free");
    fs.destroy().expect("close");
}
