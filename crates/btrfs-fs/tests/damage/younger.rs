//! Items that say they are younger than their volume, as a flipped bit makes them: who changes something beside one
//! loses nothing of what was done since the last commit, and the volume can be written.

use crate::common;
use btrfs_disk::items::InodeItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use common::{CX, Image, check_ourselves, find, new_file, read};
use fuzzing::patch::Patch;
use vfs::{FileSystem, Ino, SetAttr};

const FAR: u64 = 1 << 50;

/// A volume that mkfs.btrfs made with a file that is hit, and others around it.
fn volume() -> (Image, Ino) {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let [_, hit, _] = ["first", "hit", "last"].map(|name| new_file(&fs, name, &[7; 9000]));
    fs.destroy().expect("close");
    drop(fs);
    (image, hit)
}

fn key_of(ino: Ino) -> Key {
    Key::new(ino.0, kind::INODE_ITEM, 0)
}

/// Others than the one that is hit come, go and change, and all of it is in the commit.
fn goes_on(image: &Image) {
    let fs = image.open();
    for name in ["first", "hit", "last"] {
        assert!(read(&fs, fs.root(), name) == [7; 9000], "{name}");
    }
    new_file(&fs, "new", &[8; 9000]);
    fs.unlink(&CX, fs.root(), b"first").expect("unlink");
    let last = find(&fs, fs.root(), "last").expect("there");
    fs.write(&CX, last, 0, &[9; 9000], Default::default()).expect("write");
    fs.sync().expect("commit");
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("close");
    drop(fs);
    let fs = image.open();
    for (name, byte) in [("hit", 7), ("last", 9), ("new", 8)] {
        assert!(read(&fs, fs.root(), name) == [byte; 9000], "{name}");
    }
    assert!(find(&fs, fs.root(), "first").is_none());
    fs.destroy().expect("close");
    drop(fs);
}

#[test]
fn beside_an_inode_that_changed_later_than_now_all_goes_on() {
    let (image, hit) = volume();
    let patch = Patch::new(&image.path);
    patch.edit_as::<InodeItem>(TreeId::FS, key_of(hit), |inode| inode.transid = FAR);
    drop(patch);
    goes_on(&image);
    // Who changes that one makes it right.
    let fs = image.open();
    let mode = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    fs.setattr(&CX, hit, &mode).expect("chmod");
    fs.destroy().expect("close");
    drop(fs);
    check_ourselves(&image.path);
}

#[test]
fn an_inode_that_was_made_later_than_now_can_be_changed_and_removed() {
    let (image, hit) = volume();
    let patch = Patch::new(&image.path);
    patch.edit_as::<InodeItem>(TreeId::FS, key_of(hit), |inode| inode.generation = FAR);
    drop(patch);
    goes_on(&image);
    let fs = image.open();
    fs.write(&CX, hit, 0, &[6; 9000], Default::default()).expect("write");
    fs.fsync(hit, false).expect("fsync");
    fs.sync().expect("commit");
    assert!(read(&fs, fs.root(), "hit") == [6; 9000]);
    fs.unlink(&CX, fs.root(), b"hit").expect("unlink");
    fs.destroy().expect("close");
    drop(fs);
    check_ourselves(&image.path);
}

#[test]
fn beside_an_extent_from_later_than_now_all_goes_on() {
    let (image, _) = volume();
    let patch = Patch::new(&image.path);
    let data = |key: &Key, item: &[u8]| key.kind == kind::EXTENT_ITEM && item[16] & 1 != 0;
    let extents = patch.items(TreeId::EXTENT);
    let (key, _) = extents.iter().filter(|(key, item)| data(key, item)).nth(1).expect("three");
    patch.edit(TreeId::EXTENT, *key, |item| item[8..16].copy_from_slice(&FAR.to_le_bytes()));
    drop(patch);
    goes_on(&image);
    let fs = image.open();
    fs.unlink(&CX, fs.root(), b"hit").expect("unlink");
    fs.destroy().expect("close");
    drop(fs);
    check_ourselves(&image.path);
}

#[test]
fn in_a_subvolume_of_a_snapshot_later_than_now_all_goes_on() {
    /// Of a root item.
    const LAST_SNAPSHOT: std::ops::Range<usize> = 200..208;
    let (image, _) = volume();
    let patch = Patch::new(&image.path);
    let key = Key::new(TreeId::FS.0, kind::ROOT_ITEM, 0);
    patch.edit(TreeId::ROOT, key, |item| item[LAST_SNAPSHOT].copy_from_slice(&FAR.to_le_bytes()));
    drop(patch);
    goes_on(&image);
}
