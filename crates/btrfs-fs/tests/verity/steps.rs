//! What is left of a tree that is not made to its end: of a file that gets its first name meanwhile, and where
//! taking the tree away fails. Each commit in between has an ORPHAN_ITEM by which the next mount finds it, and none
//! outlives the file.

use super::*;
use btrfs_disk::ids::ORPHAN_OBJECTID;
use std::collections::BTreeSet;
use vfs::{Errno, Result};

/// `goes_on` is asked three times: before there is anything of the tree, and twice when a part of it is there.
const LEN: usize = 20 << 20;
/// From this on no slot of the table of orphans can have an inode's number.
const LARGE: u64 = 1 << 40;

fn small() -> VerityWish {
    wish(HashAlgorithm::Sha512, 1024, b"steps")
}

/// The next inode that is made gets a number from `LARGE` on.
fn with_large_numbers(path: &Path) {
    let fs = open(path);
    new_file(&fs, "last", b"");
    fs.destroy().expect("close");
    drop(fs);
    let patch = Patch::new(path);
    let old = patch.ino(TOP, "last");
    patch.edit_leaf(TOP, Key::new(0, 0, 0), |items| {
        for (key, data) in items.iter_mut() {
            let is_name = matches!(key.kind, kind::DIR_ITEM | kind::DIR_INDEX);
            if is_name && data[..8] == old.to_le_bytes() {
                data[..8].copy_from_slice(&LARGE.to_le_bytes());
            }
            if key.objectid == old {
                key.objectid = LARGE;
            }
        }
    });
}

fn simulated_with(large: bool) -> (TempDir, Arc<SimDevice>, BtrfsFs) {
    let (dir, path) = ours();
    if large {
        with_large_numbers(&path);
    }
    let device = Arc::new(SimDevice::new(blocksim::Image::import(&path).expect("import")));
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    (dir, device, fs)
}

fn nameless(fs: &BtrfsFs) -> Ino {
    let ino = fs.tmpfile(&CX, fs.root(), 0o600).expect("tmpfile").attr.ino;
    fs.write(&CX, ino, 0, &content(LEN), WriteFlags::default()).expect("write");
    ino
}

fn link(fs: &BtrfsFs, ino: Ino) {
    let made = fs.link(&CX, ino, fs.root(), b"file").expect("link").attr.ino;
    fs.forget(made, 1);
}

/// What a device has, as the last commit left it: items of trees, and who has an ORPHAN_ITEM.
fn kept(device: &SimDevice) -> (usize, usize) {
    let dir = TempDir::new("verity-kept").expect("a directory");
    let path = dir.join("kept.img");
    device.image().export(&path).expect("export");
    let items = Patch::new(&path).items(TOP);
    let orphans = items.iter().map(|(key, _)| key);
    let is_one = |key: &&Key| (key.objectid, key.kind) == (ORPHAN_OBJECTID, kind::ORPHAN_ITEM);
    let orphans: BTreeSet<_> = orphans.filter(is_one).map(|key| key.offset).collect();
    (verity_items(&path), orphans.len())
}

/// A crash now: behind the next mount there is nothing of a tree, and no orphan.
fn judge_crash(device: &SimDevice, ino: Ino, has_name: bool, what: &str) {
    let left = Arc::new(SimDevice::new(device.image()));
    let fs = BtrfsFs::open_device(left.clone(), options()).expect("mount");
    assert_eq!(fs.read_only_reason(), None, "{what}");
    match has_name {
        true => {
            assert_eq!(errno(fs.measure_verity(ino)), libc::ENODATA, "{what}");
            assert!(read(&fs, ino, 0, LEN + 1).expect("read") == content(LEN), "{what}");
        }
        false => assert!(fs.getattr(ino).is_err(), "{what}"),
    }
    fs.destroy().expect("close");
    drop(fs);
    assert_eq!(kept(&left), (0, 0), "{what}");
    common::check_device(left, true, btrfs_check::Severity::Note);
}

/// With the item that the kernel's btrfs has for each tree that is begun, also of who has no name.
#[test]
fn a_file_that_gets_its_first_name_meanwhile_is_known_by_its_item() {
    for (large, told, named_at) in [
        (false, false, 1),
        (false, false, 2),
        (false, true, 1),
        (false, true, 2),
        (true, false, 2),
        (true, true, 3),
    ] {
        let what = format!("large: {large}, committed before: {told}, named at {named_at}");
        let (_dir, device, fs) = simulated_with(large);
        let ino = nameless(&fs);
        if told {
            fs.sync().expect("sync");
        }
        let mut asked = 0;
        let made = fs.enable_verity_while(None, ino, &small(), &mut || {
            asked += 1;
            if asked == named_at {
                link(&fs, ino);
            }
            fs.sync().expect("sync");
            let (items, orphans) = kept(&device);
            assert_eq!((items > 0, orphans), (asked > 1, 1), "{what}: asked {asked} times");
            judge_crash(&device, ino, asked >= named_at, &what);
            Ok(())
        });
        made.expect("enable");
        assert_eq!(asked, 3);
        fs.sync().expect("sync");
        let (items, orphans) = kept(&device);
        assert!(items > 0 && orphans == 0, "{what}: {items}, {orphans}");
        fs.measure_verity(ino).expect("measure");
        fs.forget(ino, 1);
        fs.destroy().expect("close");
        drop(fs);
        common::check_device(device, true, btrfs_check::Severity::Note);
    }
}

/// Nothing may be changed any more when it ends, so a part of the tree stays.
fn half_made(fs: &BtrfsFs, device: &SimDevice, ino: Ino) {
    let mut asked = 0;
    let made = fs.enable_verity_while(None, ino, &small(), &mut || -> Result<()> {
        asked += 1;
        match asked {
            1 => Ok(()),
            _ => {
                fs.still()?;
                Err(Errno::EINTR.into())
            }
        }
    });
    assert_eq!(errno(made), libc::EINTR);
    fs.writable_again().expect("writable");
    fs.sync().expect("sync");
    let (items, orphans) = kept(device);
    assert!(items > 0 && orphans == 1, "{items} items, {orphans} orphans");
}

/// What the item stood for goes with the file. Before that who enables it again makes the tree whole.
#[test]
fn no_item_outlives_a_file_whose_tree_could_not_be_taken_away() {
    for (large, has_name, again) in [
        (false, true, false),
        (false, true, true),
        (false, false, false),
        (false, false, true),
        (true, true, false),
        (true, false, false),
        (true, false, true),
    ] {
        let what = format!("large: {large}, named: {has_name}, again: {again}");
        let (_dir, device, fs) = simulated_with(large);
        let ino = nameless(&fs);
        if has_name {
            link(&fs, ino);
        }
        half_made(&fs, &device, ino);
        judge_crash(&device, ino, has_name, &what);
        if again {
            fs.enable_verity(None, ino, &small()).expect("enable");
            fs.sync().expect("sync");
            assert_eq!(kept(&device).1, usize::from(!has_name), "{what}");
            fs.measure_verity(ino).expect("measure");
        }
        if has_name {
            // It leaves memory, and comes again.
            fs.forget(ino, 1);
            let there = fs.lookup(&CX, fs.root(), b"file").expect("there").attr.ino;
            assert_eq!(there, ino);
            fs.unlink(&CX, fs.root(), b"file").expect("unlink");
        }
        fs.forget(ino, 1);
        fs.sync().expect("sync");
        assert_eq!(kept(&device), (0, 0), "{what}: it is gone");
        fs.destroy().expect("close");
        drop(fs);
        common::check_device(device, true, btrfs_check::Severity::Note);
    }
}

/// Named when its tree could not be taken away: the item stays by which the next mount finds it.
#[test]
fn who_is_named_behind_a_failure_keeps_the_item() {
    for large in [false, true] {
        let (_dir, device, fs) = simulated_with(large);
        let ino = nameless(&fs);
        half_made(&fs, &device, ino);
        link(&fs, ino);
        fs.sync().expect("sync");
        assert_eq!(kept(&device).1, 1);
        judge_crash(&device, ino, true, &format!("large: {large}"));
        fs.forget(ino, 1);
        fs.destroy().expect("close");
    }
}
