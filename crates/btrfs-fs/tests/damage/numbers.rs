//! Numbers of the medium that nothing judges, at their limits: the kernel and `btrfs check` take such volumes, and so
//! do we. They can be read and written, and one number that cannot be does not make others wrong.

use crate::common;
use btrfs_disk::items::{InodeItem, RootItem, Timespec};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_fs::{BtrfsFs, Caller, Options};
use common::{CX, Image, errno, new_file};
use fuzzing::patch::Patch;
use testkit::PosixFs;
use testkit::oracle;
use vfs::{FileKind, FileSystem, RenameMode, StatFs};

fn read_only() -> Options {
    Options { read_only: true, background: false, ..Options::default() }
}

/// Reads and writes a copy of it: the kernel may make chunks there.
fn the_kernel_takes(image: &Image) {
    let copy = image.copy("kernels.img");
    oracle::with_kernel(&copy.path, "noatime", |_| ()).expect("the kernel takes it");
}

/// The root items that `chosen` picks say that their trees have so many bytes.
fn tell_sizes(image: &Image, bytes: u64, chosen: impl Fn(TreeId) -> bool) {
    let patch = Patch::new(&image.path);
    let items = patch.items(TreeId::ROOT).into_iter();
    let roots =
        items.filter(|(key, _)| key.kind == kind::ROOT_ITEM && chosen(TreeId(key.objectid)));
    let keys: Vec<Key> = roots.map(|(key, _)| key).collect();
    assert!(!keys.is_empty(), "no tree is told of");
    for key in keys {
        patch.edit(TreeId::ROOT, key, |data| {
            let mut item = RootItem::parse(data).expect("a root item");
            item.bytes_used = bytes;
            item.write(data);
        });
    }
}

/// By the kernel's statfs, which has what is kept of metadata in it.
fn kernels_free(image: &Image) -> u64 {
    let statfs = |mount: &oracle::KernelMount| PosixFs::open(mount.path())?.statfs();
    let said = oracle::with_kernel(&image.path, "ro", statfs).expect("the kernel takes it");
    said.expect("statfs").blocks_free
}

/// The kernel adds up what three trees have without a look at overflow: of 2^64-1 it has less than nothing.
fn told_free(image: &Image, bytes: u64) -> u64 {
    match bytes {
        u64::MAX => image.open_with(read_only()).statfs().expect("statfs").blocks_free,
        _ => kernels_free(image),
    }
}

/// What the volume keeps of metadata for itself, once it was read, written and found sound. `free` is what is to be free.
fn used(image: &Image, free: u64) -> u64 {
    assert_eq!(free_by_who_reads(image).blocks_free, free);
    let fs = image.open();
    let kept = fs.space().totals().global_reserve;
    fs.statfs().expect("statfs");
    new_file(&fs, "file", b"content");
    fs.sync().expect("sync");
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
    kept
}

const SIZES: [u64; 4] = [1 << 50, i64::MAX as u64, 1 << 63, u64::MAX];

#[test]
fn trees_larger_than_the_volume_by_their_root_items() {
    testkit::require!(kernel_btrfs);
    let base = Image::new(1 << 30, &[]);
    let sound = used(&base.copy("sound.img"), kernels_free(&base));
    let mut free = Vec::new();
    for bytes in SIZES {
        for tree in [TreeId::EXTENT, TreeId::CSUM, TreeId::FREE_SPACE] {
            let image = base.copy("told.img");
            tell_sizes(&image, bytes, |id| id == tree);
            the_kernel_takes(&image);
            free.push(told_free(&image, bytes));
            let kept = used(&image, free[0]);
            assert!(kept <= 2 * sound, "{tree} of {bytes} bytes: {kept} is kept, and not {sound}");
        }
    }
    assert!(free[0] > 0 && free.iter().all(|told| *told == free[0]), "{free:?}");
}

#[test]
fn trees_of_a_mixed_volume_that_are_larger_than_all_numbers_together() {
    testkit::require!(kernel_btrfs);
    let base = Image::new(128 << 20, &["-M"]);
    for bytes in SIZES {
        let image = base.copy("told.img");
        tell_sizes(&image, bytes, |_| true);
        the_kernel_takes(&image);
        used(&image, told_free(&image, bytes));
    }
}

fn free_by_who_reads(image: &Image) -> StatFs {
    image.open_with(read_only()).statfs().expect("statfs")
}

/// The superblock's copy of what chunks take of the device: the kernel goes by the item in the chunk tree.
#[test]
fn the_superblock_says_anything_of_what_chunks_take() {
    testkit::require!(kernel_btrfs);
    let base = Image::new(256 << 20, &[]);
    let free = free_by_who_reads(&base);
    let volume = Patch::new(&base.path);
    let (_, item) = volume.find(TreeId::CHUNK, Key::new(1, kind::DEV_ITEM, 1)).expect("an item");
    let taken = u64::from_le_bytes(item[16..24].try_into().unwrap());
    for told in [0, taken - (1 << 20), taken + (1 << 20), 256 << 20, 1 << 63, u64::MAX] {
        let image = base.copy("told.img");
        Patch::new(&image.path).edit_super(|sb| sb.fields.dev_item.bytes_used = told);
        oracle::assert_clean(&image.path);
        oracle::with_kernel(&image.path, "ro", |_| ()).expect("the kernel takes it");
        assert_eq!(free_by_who_reads(&image), free, "{told} bytes");
        let fs = image.open();
        let before = fs.usage().expect("usage").devices[0].used;
        new_file(&fs, "file", &vec![7; 48 << 20]);
        fs.sync().expect("sync");
        let behind = fs.usage().expect("usage").devices[0].used;
        assert!(before < behind, "no chunk came: another test than its name says");
        common::close_and_judge(&image, fs);
    }
}

/// FUSE's kernel side and `utimensat` know no time of more than a second beside the second.
#[test]
fn a_time_has_less_than_a_second_beside_the_second() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let ino = new_file(&fs, "file", b"content");
    fs.destroy().expect("close");
    drop(fs);
    let key = Key::new(Patch::new(&image.path).ino(TreeId::FS, "file"), kind::INODE_ITEM, 0);
    for (nsec, nanos) in [(5, 5), (999_999_999, 999_999_999), (1_000_000_000, 999_999_999)]
        .into_iter()
        .chain([(u32::MAX, 999_999_999)])
    {
        Patch::new(&image.path).edit_as::<InodeItem>(TreeId::FS, key, |item| {
            (item.mtime, item.atime) = (Timespec { sec: -5, nsec }, Timespec { sec: 7, nsec });
        });
        let attr = image.open_with(read_only()).getattr(ino).expect("attributes");
        assert_eq!([attr.mtime, attr.atime].map(|time| time.nanos), [nanos; 2], "of {nsec}");
        assert_eq!([attr.mtime, attr.atime].map(|time| time.secs), [-5, 7]);
    }
}

/// A volume whose top directory has the name `first`, with this index, and what was made before.
fn with_index(index: u64, before: impl FnOnce(&BtrfsFs)) -> Image {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    before(&fs);
    new_file(&fs, "first", b"content");
    fs.destroy().expect("close");
    drop(fs);
    let patch = Patch::new(&image.path);
    let ino = patch.ino(TreeId::FS, "first");
    patch.edit_leaf(TreeId::FS, Key::new(256, kind::DIR_INDEX, 0), |items| {
        for (key, data) in items {
            match (key.objectid, key.kind) {
                (256, kind::DIR_INDEX) if data[..8] == ino.to_le_bytes() => key.offset = index,
                (at, kind::INODE_REF) if at == ino => {
                    data[..8].copy_from_slice(&index.to_le_bytes());
                }
                _ => {}
            }
        }
    });
    image
}

fn listed(fs: &BtrfsFs) -> Vec<String> {
    let mut names = Vec::new();
    let all = fs.readdir(fs.root(), 0, &mut |entry| {
        names.push(String::from_utf8(entry.name.to_vec()).expect("UTF-8"));
        true
    });
    all.expect("a listing");
    names.retain(|name| !name.starts_with('.'));
    names
}

/// FUSE mounts have offsets up to 2^62, and callers up to 2^63: a name behind that could be made, and not be listed
/// any more.
#[test]
fn a_directory_whose_indexes_end_takes_no_more_names() {
    testkit::require!(kernel_btrfs);
    for (index, room) in
        [((1 << 62) - 6, true), ((1 << 62) - 2, false), (i64::MAX as u64 - 2, false)]
    {
        let image = with_index(index, |_| ());
        let fs = image.open();
        let root = fs.root();
        let make = |n: u32| {
            let made = fs.mknod(&CX, root, format!("{n}").as_bytes(), FileKind::File, 0o644, 0);
            errno(made.map(|entry| fs.forget(entry.attr.ino, 1)))
        };
        let made = (0..10).map(make).take_while(|error| *error == 0).count();
        assert_eq!((made > 0, made < 5), (room, true), "behind {index}: {made}");
        assert_eq!(make(10), libc::ENOSPC);
        let rename = fs.rename(&CX, root, b"first", root, b"other", RenameMode::Replace);
        assert_eq!(errno(rename), libc::ENOSPC);
        assert_eq!(listed(&fs).len(), made + 1);
        common::close_and_judge(&image, fs);
        let fs = image.open();
        assert_eq!(listed(&fs).len(), made + 1);
        for name in listed(&fs) {
            fs.unlink(&CX, fs.root(), name.as_bytes()).expect("it goes");
        }
        common::close_and_judge(&image, fs);
        let fs = image.open();
        new_file(&fs, "again", b"content");
        common::close_and_judge(&image, fs);
    }
}

/// Only who comes needs an index, and what stays where something was.
#[test]
fn what_is_in_a_directory_whose_indexes_end_can_be_moved_away() {
    testkit::require!(kernel_btrfs);
    for index in [(1 << 62) - 2, i64::MAX as u64 - 2] {
        let image = with_index(index, |fs| {
            fs.mkdir(&CX, fs.root(), b"dir", 0o755).expect("mkdir");
            fs.create_subvolume(&Caller::root(), fs.root(), b"sub").expect("a subvolume");
        });
        let fs = image.open();
        let root = fs.root();
        let dir = fs.lookup(&CX, root, b"dir").expect("lookup").attr.ino;
        fs.mknod(&CX, dir, b"other", FileKind::File, 0o644, 0).expect("create");
        let refused = |name: &[u8], to: &[u8], mode| {
            assert_eq!(errno(fs.rename(&CX, root, name, dir, to, mode)), libc::ENOSPC, "{mode:?}");
        };
        for name in [&b"first"[..], b"sub"] {
            refused(name, b"gone", RenameMode::Whiteout);
            refused(name, b"gone", RenameMode::NoReplaceWhiteout);
            refused(name, b"other", RenameMode::Exchange);
        }
        fs.rename(&CX, root, b"first", dir, b"other", RenameMode::Replace).expect("a file");
        fs.rename(&CX, root, b"sub", dir, b"sub", RenameMode::NoReplace).expect("a subvolume");
        let back = fs.rename(&CX, dir, b"other", root, b"first", RenameMode::Replace);
        assert_eq!(errno(back), libc::ENOSPC);
        assert_eq!(listed(&fs), ["dir"]);
        common::close_and_judge(&image, fs);
    }
}
