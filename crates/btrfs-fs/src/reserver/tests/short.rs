//! Commits that found no room, and what is kept from making the epoch that they left larger, on small volumes in
//! memory.

use super::{CX, create, name, stat, with_files};
use crate::{BtrfsFs, Caller, Delete, VerityWish};
use btrfs_disk::ids::ORPHAN_OBJECTID;
use btrfs_disk::key::kind::ORPHAN_ITEM;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::Urgency;
use btrfs_txn::delta::{ActionCost, TreeAction};
use vfs::{FileKind, FileSystem};

/// A commit that finds no room, whatever there is.
fn run_short(fs: &BtrfsFs) {
    let (space, before) = (fs.space(), stat(fs, "commit.short"));
    space.fail_allocations(space.allocations()..u64::MAX);
    fs.sync().expect_err("there is no room");
    assert_eq!(stat(fs, "commit.short"), before + 1);
    space.fail_allocations(0..0);
}

fn has_orphans(fs: &BtrfsFs) -> bool {
    let view = fs.engine.core.view();
    let from = Key::new(ORPHAN_OBJECTID, ORPHAN_ITEM, 0);
    let first = view.scan(TreeId::FS, from).next().expect("read");
    first.is_some_and(|(key, _)| key.objectid == ORPHAN_OBJECTID)
}

/// A deleted subvolume is no work for a commit that has no room as it is.
#[test]
fn nothing_of_a_deleted_subvolume_is_dropped_by_an_epoch_without_room() {
    let (fs, inos) = with_files(10);
    let (space, engine) = (fs.space(), &fs.engine);
    let made = fs.create_subvolume(&Caller::root(), fs.root(), b"sub").expect("subvolume");
    for number in 0..500 {
        let file = fs.mknod(&CX, made.1.attr.ino, &name(number), FileKind::File, 0o644, 0);
        fs.forget(file.expect("create").attr.ino, 1);
    }
    fs.forget(made.1.attr.ino, 1);
    fs.sync().expect("sync");
    let which = Delete::Name(fs.root(), b"sub");
    fs.delete_subvolume(&Caller::root(), which).expect("delete");
    fs.sync().expect("sync");
    fs.forget(create(&fs, 100), 1);
    // The step's own commit.
    space.fail_allocations(space.allocations()..u64::MAX);
    engine.cleaner.step(Urgency::Awaited).expect_err("there is no room");
    assert_eq!(stat(&fs, "commit.short"), 1);
    let has_drops = || {
        let trees = &engine.core.layers().current.trees;
        trees.any(|action| matches!(action, TreeAction::Drop { .. }))
    };
    assert!(!has_drops() && engine.core.layers().current.trees.cost() == ActionCost::default());
    engine.cleaner.step(Urgency::Awaited).expect_err("there is no room still");
    assert!(!has_drops());
    assert_eq!(stat(&fs, "commit.short"), 1, "nothing was tried");
    space.fail_allocations(0..0);
    fs.sync().expect("there is room again");
    while engine.cleaner.step(Urgency::Awaited).expect("a step") {}
    assert!(engine.cleaner.dead().is_empty());
    inos.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.destroy().expect("close");
}

/// An inode without a name gets one behind a commit that had recorded it and found no room.
#[test]
fn what_is_no_orphan_any_more_has_no_item() {
    let (fs, inos) = with_files(10);
    let open = fs.tmpfile(&CX, fs.root(), 0o644).expect("a file without a name").attr.ino;
    run_short(&fs);
    fs.link(&CX, open, fs.root(), b"named").expect("a name");
    fs.forget(open, 1);
    fs.sync().expect("there is room again");
    assert!(!has_orphans(&fs));
    inos.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.destroy().expect("close");
}

/// What is made in steps has an item of its own, also where the inode lost the one that it had without a name.
#[test]
fn what_is_made_in_steps_is_recorded_behind_a_name() {
    let (fs, inos) = with_files(10);
    let open = fs.tmpfile(&CX, fs.root(), 0o644).expect("a file without a name").attr.ino;
    fs.write(&CX, open, 0, &vec![1; 3 << 20], Default::default()).expect("write");
    fs.sync().expect("sync");
    fs.link(&CX, open, fs.root(), b"named").expect("a name");
    let mut recorded = Vec::new();
    let wish = VerityWish::of(1, 4096, &[], &[]).expect("a wish");
    fs.enable_verity_while(None, open, &wish, &mut || {
        fs.sync()?;
        recorded.push(has_orphans(&fs));
        Ok(())
    })
    .expect("verified");
    assert!(!recorded.is_empty() && recorded.iter().all(|has| *has), "{recorded:?}");
    fs.sync().expect("sync");
    assert!(!has_orphans(&fs));
    inos.iter().chain([&open, &open]).for_each(|ino| fs.forget(*ino, 1));
    fs.destroy().expect("close");
}
