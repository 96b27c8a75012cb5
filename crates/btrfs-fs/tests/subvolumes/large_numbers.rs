//! Object ids from 2^40 and subvolume ids from 2^23: each inode has a number of its own, is
//! listed with it, and can be used; the kernel counts on from such ids, too.

use crate::common;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_volume::{OpenOptions, Volume};
use common::Image;
use common::kernel::{btrfs, kernel};
use common::likeness::assert_like;
use fuzzing::patch::Patch;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use testkit::compare::TreeSnapshot;
use vfs::{Context, FileKind, FileSystem, Ino};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };
const OBJECT: u64 = (1 << 40) + 5;
const SUBVOLUME: u64 = (1 << 23) + 7;

/// Without replay of its log.
fn open(image: &Path) -> Arc<Volume> {
    let device = common::open_device(image, true);
    let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    Arc::new(Volume::open(Arc::new(device), options).expect("volume opens"))
}

fn put(data: &mut [u8], at: usize, number: u64) {
    data[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// The file `big`, object 257, becomes `OBJECT`; the subvolume `sub`, 256, becomes `subvolume`.
fn renumber(image: &Path, subvolume: u64) {
    let patch = Patch::new(image);
    let first = Key::new(0, 0, 0);
    let leaf = patch.leaf(TreeId(256), first);
    patch.edit_leaf(TreeId::FS, first, |items| {
        for (key, data) in items.iter_mut() {
            let location = matches!(key.kind, kind::DIR_ITEM | kind::DIR_INDEX)
                .then(|| (u64::from_le_bytes(data[..8].try_into().unwrap()), data[8]));
            match location {
                Some((257, kind::INODE_ITEM)) => put(data, 0, OBJECT),
                Some((256, kind::ROOT_ITEM)) => put(data, 0, subvolume),
                _ => {}
            }
            if key.objectid == 257 {
                key.objectid = OBJECT;
            }
        }
    });
    let metadata = Key::new(leaf.logical().0, kind::METADATA_ITEM, 0);
    patch.edit(TreeId::EXTENT, metadata, |data| put(data, 25, subvolume));
    patch.edit_leaf(TreeId(9), first, |items| {
        items
            .iter_mut()
            .filter(|(_, data)| data[..] == 256u64.to_le_bytes())
            .for_each(|(_, data)| put(data, 0, subvolume));
    });
    let mut bytes = leaf.bytes().to_vec();
    put(&mut bytes, 88, subvolume);
    open(image).geometry().csum.seal(&mut bytes);
    patch.write(leaf.logical(), &bytes, None);
    patch.edit_leaf(TreeId::ROOT, first, |items| {
        for (key, _) in items.iter_mut() {
            match (key.objectid, key.kind) {
                (256, kind::ROOT_ITEM | kind::ROOT_BACKREF) => key.objectid = subvolume,
                (5, kind::ROOT_REF) => key.offset = subvolume,
                _ => {}
            }
        }
        items.sort_by_key(|(key, _)| *key);
    });
}

/// As the kernel made it, but for the numbers.
fn renumbered(subvolume: u64) -> Image {
    let image = Image::new(512 << 20, &["-m", "single"]);
    kernel(&image.path, "noatime", |mount| {
        std::fs::write(mount.join("big"), b"content").expect("write");
        btrfs(mount, &["subvolume", "create", "/sub"]);
    });
    renumber(&image.path, subvolume);
    common::assert_sound(&image.path);
    image
}

fn made() -> Image {
    let image = renumbered(SUBVOLUME);
    kernel(&image.path, "noatime", |mount| {
        assert_eq!(std::fs::metadata(mount.join("big")).expect("stat").ino(), OBJECT);
        for dir in ["", "sub"] {
            for n in 0..20 {
                std::fs::write(mount.join(dir).join(format!("f{n}")), b"x").expect("write");
            }
        }
        std::fs::create_dir(mount.join("dir")).expect("mkdir");
        std::fs::write(mount.join("dir/inside"), b"y").expect("write");
        assert!(std::fs::metadata(mount.join("dir")).expect("stat").ino() > OBJECT);
        btrfs(mount, &["subvolume", "create", "/sub/nested"]);
        btrfs(mount, &["subvolume", "snapshot", "/", "/snap"]);
        btrfs(mount, &["subvolume", "snapshot", "/sub", "/snap-sub"]);
        btrfs(mount, &["subvolume", "sync", "/"]);
    });
    image
}

/// All names with their numbers; that listing, lookup and getattr agree is the walk's.
fn numbers(tree: &TreeSnapshot) -> BTreeMap<Vec<u8>, Ino> {
    tree.nodes.iter().map(|(path, node)| (path.0.clone(), node.attr.ino)).collect()
}

#[test]
fn large_numbers_are_used_as_others() {
    testkit::require!(kernel_btrfs);
    let image = made();
    let fs = image.open();
    let tree = common::snapshot(&fs);
    let before = numbers(&tree);
    assert!(before.len() > 90, "{before:?}");
    let unique: std::collections::BTreeSet<Ino> = before.values().copied().collect();
    assert_eq!(unique.len(), before.len(), "each its own");
    for name in ["big", "dir", "sub", "snap", "snap-sub"] {
        let entry = fs.lookup(&CX, fs.root(), name.as_bytes()).expect("lookup");
        let mut listed = Vec::new();
        if entry.attr.kind == FileKind::Dir {
            let dir = entry.attr.ino;
            let new = fs.mknod(&CX, dir, b"new", FileKind::File, 0o644, 0).expect("mknod");
            fs.write(&CX, new.attr.ino, 0, b"more", Default::default()).expect("write");
            fs.readdir_plus(dir, 0, &mut |name, full| {
                listed.push(name.name.to_vec());
                if let Some(full) = full {
                    assert_eq!(full.attr.ino, name.ino);
                    fs.forget(name.ino, 1);
                }
                true
            })
            .expect("listing");
            assert!(listed.contains(&b"new".to_vec()), "{listed:?}");
            fs.forget(new.attr.ino, 1);
        }
        fs.forget(entry.attr.ino, 1);
    }
    let expected = common::snapshot(&fs);
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
    common::check_ourselves(&image.path);
    kernel(&image.path, "ro", |mount| {
        let seen = TreeSnapshot::of_dir(mount.path()).expect("walk");
        assert_like(&expected, &seen, &common::rules());
    });
    let after = numbers(&common::snapshot(&image.open()));
    assert_eq!(after, numbers(&expected), "the same at the next mount");
    assert!(before.iter().all(|(name, ino)| after[name] == *ino));
}

/// Behind the last number that a subvolume may have there is none, as for the kernel; all else goes on.
#[test]
fn behind_the_last_number_no_subvolume_is_made() {
    testkit::require!(kernel_btrfs);
    let image = renumbered((1 << 48) - 1);
    kernel(&image.path, "noatime", |mount| {
        let new = mount.join("new").to_string_lossy().into_owned();
        assert!(testkit::oracle::sh("btrfs", &["subvolume", "create", &new]).is_err());
    });
    let fs = image.open();
    let (caller, root) = (btrfs_fs::Caller::root(), fs.root());
    for _ in 0..2 {
        let made = fs.create_subvolume(&caller, root, b"new");
        assert_eq!(common::errno(made), libc::ENOSPC);
        let made = fs.snapshot(&caller, root, root, b"snap", false);
        assert_eq!(common::errno(made), libc::ENOSPC);
    }
    let sub = common::find(&fs, root, "sub").expect("there");
    fs.mknod(&CX, sub, b"file", FileKind::File, 0o644, 0).expect("mknod");
    common::close_and_judge(&image, fs);
}
