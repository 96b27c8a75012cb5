//! A copy that ends before its end says how far it came: who hears an error takes it that nothing was changed, and the
//! kernel that asked keeps the size and the pages of before.

use crate::common;
use btrfs_disk::items::{Compression, FileExtent, InodeItem};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::{BtrfsFs, Caller, LimitChange};
use common::{CX, Image, close_and_judge, find, read};
use fuzzing::patch::Patch;
use vfs::{FileKind, FileSystem, Ino};

const MIB: u64 = 1 << 20;
const NOCOW: u32 = 0x0080_0000;

fn file(fs: &BtrfsFs, dir: Ino, name: &str) -> Ino {
    let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0).expect("create");
    made.attr.ino
}

/// Copies until the end or an error, as the kernel does for who asked; how much was told to be done.
fn copied(fs: &BtrfsFs, from: Ino, to: Ino, len: u64) -> (u64, vfs::Result<u64>) {
    let mut done = 0;
    loop {
        match fs.copy_range(&CX, from, done, to, done, len - done) {
            Ok(more) if more > 0 && done + more < len => done += more,
            Ok(more) => return (done + more, Ok(more)),
            Err(error) => return (done, Err(error)),
        }
    }
}

/// Into a file without checksums, with which nothing is shared, on a volume that has no room for all of it.
#[test]
fn a_copy_that_finds_no_room_says_what_is_done() {
    let image = Image::new(128 * MIB, &["-m", "single"]);
    let fs = image.open();
    let from = file(&fs, fs.root(), "from");
    let len = 70 * MIB;
    for at in (0..len).step_by(MIB as usize) {
        let chunk = vec![(at / MIB) as u8; MIB as usize];
        fs.write(&CX, from, at, &chunk, Default::default()).expect("write");
    }
    fs.sync().expect("sync");
    let to = file(&fs, fs.root(), "to");
    fs.set_flags(&CX, to, NOCOW).expect("flags");
    let (done, end) = copied(&fs, from, to, len);
    assert_eq!(end.expect_err("it does not fit").errno(), libc::ENOSPC);
    assert!(done > 0, "a part fits");
    assert_eq!(fs.getattr(to).expect("stat").size, done);
    [from, to].into_iter().for_each(|ino| fs.forget(ino, 1));
    close_and_judge(&image, fs);
}

/// As in the kernel: subvolumes share content, and a plain `cp` from one to the other takes no space.
#[test]
fn a_copy_into_another_subvolume_shares() {
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    let made = fs.create_subvolume(&Caller::root(), fs.root(), b"other").expect("subvolume");
    let from = file(&fs, fs.root(), "from");
    let len = MIB + 5000;
    fs.write(&CX, from, 0, &vec![7; len as usize], Default::default()).expect("write");
    fs.sync().expect("sync");
    let to = file(&fs, made.1.attr.ino, "to");
    assert_eq!(copied(&fs, from, to, len).0, len);
    fs.sync().expect("sync");
    let at = |ino| fs.stored(ino).expect("it is a file");
    assert_eq!(format!("{:?}", at(from)), format!("{:?}", at(to)));
    let mut content = vec![0; len as usize];
    assert_eq!(fs.read(to, 0, &mut content).expect("read"), content.len());
    assert!(content.iter().all(|byte| *byte == 7));
    [from, to, made.1.attr.ino].into_iter().for_each(|ino| fs.forget(ino, 1));
    close_and_judge(&image, fs);
}

/// Content of `byte`, in place of what it has.
fn put(fs: &BtrfsFs, ino: Ino, byte: u8) {
    fs.write(&CX, ino, 0, &vec![byte; MIB as usize], Default::default()).expect("write");
}

/// Sources with checksums and without, and what is written in place in another subvolume.
fn into_own_space(fs: &BtrfsFs) -> ([Ino; 2], Ino, btrfs_fs::SubvolId) {
    let (id, made) = fs.create_subvolume(&Caller::root(), fs.root(), b"other").expect("subvolume");
    let [with, without] = ["with", "without"].map(|name| file(fs, fs.root(), name));
    let to = file(fs, made.attr.ino, "to");
    fs.forget(made.attr.ino, 1);
    [without, to].into_iter().for_each(|ino| fs.set_flags(&CX, ino, NOCOW).expect("flags"));
    [(with, 1), (without, 2), (to, 3)].into_iter().for_each(|(ino, byte)| put(fs, ino, byte));
    fs.sync().expect("sync");
    ([with, without], to, id)
}

/// Each of the sources comes to lie where the target has its space; or the one that can be shared is, which takes none.
fn all_is_copied(fs: &BtrfsFs, from: [Ino; 2], to: Ino, is_shared: bool) {
    let at = |ino| format!("{:?}", fs.stored(ino).expect("it is a file"));
    let last = if is_shared { at(from[1]) } else { at(to) };
    for (from, byte) in from.into_iter().zip(1..) {
        let (done, end) = copied(fs, from, to, MIB);
        assert_eq!((done, end.map_err(|error| error.errno())), (MIB, Ok(MIB)));
        let mut content = vec![0; MIB as usize];
        assert_eq!(fs.read(to, 0, &mut content).expect("read"), content.len());
        assert!(content.iter().all(|is| *is == byte), "of source {byte}");
    }
    assert_eq!(at(to), last);
    from.into_iter().chain([to]).for_each(|ino| fs.forget(ino, 1));
}

#[test]
fn a_full_volume_refuses_no_copy_into_space_that_is_there() {
    let image = Image::new(128 * MIB, &["-m", "single"]);
    let fs = image.open();
    let (from, to, _) = into_own_space(&fs);
    let (rest, mut at) = (file(&fs, fs.root(), "rest"), 0);
    for len in [MIB, 4096] {
        while fs.write(&CX, rest, at, &vec![9; len as usize], Default::default()).is_ok() {
            at += len;
        }
    }
    all_is_copied(&fs, from, to, true);
    fs.forget(rest, 1);
    close_and_judge(&image, fs);
}

#[test]
fn a_limit_refuses_no_copy_into_space_that_is_there() {
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    fs.enable_quotas().expect("quotas");
    let (from, to, id) = into_own_space(&fs);
    fs.wait_for_rescan().expect("counted");
    let change = LimitChange { referenced: Some(Some(3 * MIB / 2)), ..LimitChange::default() };
    fs.limit_qgroup(format!("0/{}", id.0).parse().expect("a group"), &change).expect("limit");
    all_is_copied(&fs, from, to, false);
    close_and_judge(&image, fs);
}

/// Content that the source's item has is copied, as by the kernel: the source stays as it was, for snapshots share it.
#[test]
fn a_copy_of_a_small_file_changes_no_source() {
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    let [from, to, clone] = ["from", "to", "clone"].map(|name| file(&fs, fs.root(), name));
    fs.write(&CX, from, 0, &[7; 1000], Default::default()).expect("write");
    fs.sync().expect("sync");
    assert_eq!(copied(&fs, from, to, 1000).0, 1000);
    fs.clone_range(&CX, from, 0, clone, 0, 0).expect("clone");
    fs.sync().expect("sync");
    for ino in [from, to, clone] {
        assert!(fs.stored(ino).expect("it is a file").is_empty(), "it is in the item");
        let mut content = [0; 2000];
        assert_eq!(fs.read(ino, 0, &mut content).expect("read"), 1000);
        assert_eq!(content[..1000], [7; 1000]);
        fs.forget(ino, 1);
    }
    close_and_judge(&image, fs);
}

/// A volume with a file that begins with an inline item, which has `LEN` bytes behind its first sector.
fn begins_inline() -> Image {
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    let ino = file(&fs, fs.root(), "from");
    fs.write(&CX, ino, 4096, &[5; LEN], Default::default()).expect("write");
    fs.forget(ino, 1);
    fs.destroy().expect("close");
    drop(fs);
    let (patch, tree) = (Patch::new(&image.path), TreeId::FS);
    let (ino, content) = (patch.ino(tree, "from"), [7; 1000]);
    let len = content.len() as u64;
    let inode = Key::new(ino, kind::INODE_ITEM, 0);
    let mut generation = 0;
    patch.edit_as::<InodeItem>(tree, inode, |item| {
        (item.nbytes, generation) = (item.nbytes + len, item.generation);
    });
    let compression = Compression::None;
    let item = FileExtent::Inline { generation, ram_bytes: len, compression, content: &content };
    patch.insert(tree, Key::new(ino, kind::EXTENT_DATA, 0), &item.to_vec());
    image
}

const LEN: usize = 3 << 20;

/// Where a clone can only be a copy, because its source begins with an item that may not become an extent.
#[test]
fn a_clone_that_is_copied_is_whole_or_refused() {
    testkit::require!(btrfs_progs);
    let image = begins_inline();
    let fs = image.open();
    fs.enable_quotas().expect("quotas");
    fs.wait_for_rescan().expect("counted");
    let root = fs.root();
    fs.snapshot(&Caller::root(), root, root, b"snap", true).expect("snapshot");
    let (id, made) = fs.create_subvolume(&Caller::root(), root, b"limited").expect("subvolume");
    let limit = |most| {
        let change = LimitChange { referenced: Some(most), ..LimitChange::default() };
        fs.limit_qgroup(format!("0/{}", id.0).parse().unwrap(), &change).expect("limit");
    };
    limit(Some(3 * MIB / 2));
    let snap = find(&fs, root, "snap").expect("there");
    let from = find(&fs, snap, "from").expect("there");
    let to = file(&fs, made.attr.ino, "to");
    let refused = fs.clone_range(&CX, from, 0, to, 0, 0).expect_err("a part is not all");
    assert_eq!(refused.errno(), libc::EDQUOT);
    limit(None);
    fs.clone_range(&CX, from, 0, to, 0, 0).expect("clone");
    assert!(read(&fs, snap, "from") == read(&fs, made.attr.ino, "to"));
    let content = read(&fs, made.attr.ino, "to");
    assert_eq!((content.len(), &content[..1000]), (4096 + LEN, &[7; 1000][..]));
    [from, snap, to, made.attr.ino].into_iter().for_each(|ino| fs.forget(ino, 1));
    fs.destroy().expect("close");
    drop(fs);
    common::check_ourselves(&image.path);
}
