//! A file whose inode number cannot be told is listed, and only who asks for it hears of that.
//!
//! The table of such numbers is the process's, so this is alone in its binary.

use crate::common;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use common::Image;
use common::kernel::kernel;
use fuzzing::patch::Patch;
use vfs::{Context, Errno, FileSystem, FsError};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };
const LARGE: u64 = (1 << 40) + 5;

/// Files `a`, `big`, `z`; `big`, object 258, becomes `LARGE`.
fn made() -> Image {
    let image = Image::new(512 << 20, &["-m", "single"]);
    kernel(&image.path, "noatime", |mount| {
        for name in ["a", "big", "z"] {
            std::fs::write(mount.join(name), name).expect("write");
        }
    });
    let patch = Patch::new(&image.path);
    patch.edit_leaf(TreeId::FS, Key::new(0, 0, 0), |items| {
        for (key, data) in items.iter_mut() {
            let leads_to = || u64::from_le_bytes(data[..8].try_into().expect("8 bytes"));
            if matches!(key.kind, kind::DIR_ITEM | kind::DIR_INDEX) && leads_to() == 258 {
                data[..8].copy_from_slice(&LARGE.to_le_bytes());
            }
            if key.objectid == 258 {
                key.objectid = LARGE;
            }
        }
        items.sort_by_key(|(key, _)| *key);
    });
    common::assert_sound(&image.path);
    image
}

#[test]
fn names_without_numbers_are_listed() {
    testkit::require!(kernel_btrfs);
    let image = made();
    btrfs_fs::use_up_windows();
    let fs = image.open();
    let mut full = Vec::new();
    fs.readdir_plus(fs.root(), 0, &mut |entry, node| {
        full.push((entry.name.to_vec(), node.is_some()));
        node.inspect(|node| fs.forget(node.attr.ino, 1));
        true
    })
    .expect("readdir_plus");
    let named = |name: &[u8], known| (name.to_vec(), known);
    let files = [named(b"a", true), named(b"big", false), named(b"z", true)];
    assert_eq!(full, [[named(b".", false), named(b"..", false)].as_slice(), &files].concat());
    let mut plain = Vec::new();
    fs.readdir(fs.root(), 0, &mut |entry| {
        plain.push(entry.name.to_vec());
        true
    })
    .expect("readdir");
    assert_eq!(plain, full.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
    let refused = fs.lookup(&CX, fs.root(), b"big").expect_err("it has no number");
    assert!(matches!(refused, FsError::Posix(Errno::EOVERFLOW)), "{refused}");
    fs.unlink(&CX, fs.root(), b"z").expect("what has a number is as usual");
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
}
