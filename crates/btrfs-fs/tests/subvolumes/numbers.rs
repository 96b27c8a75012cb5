//! Inode numbers: no two inodes of the whole mount have the same, in whatever subvolume they
//! are; they are made as docs/SEMANTICS.md says, and every mount shows the same ones.

use crate::common;
use btrfs_fs::{BtrfsFs, Options};
use common::Image;
use common::kernel::{btrfs, kernel};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path as FsPath;
use testkit::compare::TreeSnapshot;
use testkit::ops::{Config, Path, Session, generate};
use testkit::oracle::{self, KernelMount};
use vfs::{Context, FileSystem, Ino};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };
const STAND_IN: u64 = 1 << 63;
/// The kernel's number of all its stand-ins.
const KERNELS_STAND_IN: u64 = 2;

/// Device and number of each name, by the kernel, and the subvolume that each device is.
#[derive(Default)]
struct Kernels {
    names: BTreeMap<String, (u64, u64)>,
    subvolumes: HashMap<u64, u64>,
}

impl Kernels {
    fn of(mount: &KernelMount) -> Kernels {
        let mut found = Kernels::default();
        found.walk(mount.path(), "");
        found
    }

    fn walk(&mut self, path: &FsPath, name: &str) {
        let of = std::fs::symlink_metadata(path).expect("stat");
        let (device, ino) = (of.dev(), of.ino());
        self.names.insert(name.to_owned(), (device, ino));
        if ino == 256 && of.is_dir() {
            let path = path.to_string_lossy();
            let id = oracle::sh("btrfs", &["inspect-internal", "rootid", &*path]).expect("rootid");
            self.subvolumes.insert(device, id.trim().parse().expect("a number"));
        }
        if of.is_dir() {
            for entry in std::fs::read_dir(path).expect("readdir") {
                let entry = entry.expect("readdir");
                let Ok(child) = entry.file_name().into_string() else { continue };
                self.walk(&entry.path(), &format!("{name}/{child}"));
            }
        }
    }
}

/// Every name's number: by lookup and getattr, which must agree with readdir (the walk sees
/// to that).
fn numbers(fs: &BtrfsFs) -> BTreeMap<String, u64> {
    let name = |path: &Path| match path.0.is_empty() {
        true => Some(String::new()),
        false => Some(format!("/{}", std::str::from_utf8(&path.0).ok()?)),
    };
    let tree: TreeSnapshot = common::snapshot(fs);
    tree.nodes.iter().filter_map(|(path, node)| Some((name(path)?, node.attr.ino.0))).collect()
}

/// The number that docs/SEMANTICS.md promises.
fn documented(subvolume: u64, objectid: u64) -> u64 {
    let subvolume = if subvolume == 5 { 0 } else { subvolume };
    subvolume << 40 | objectid
}

fn filled() -> (Image, Kernels) {
    let image = Image::new(512 << 20, &[]);
    kernel(&image.path, "noatime", |mount| {
        oracle::kernel_populate(mount.path(), 6).expect("populate");
        // Two subvolumes below one that is snapshot twice: two stand-ins in each.
        btrfs(mount, &["subvolume", "create", "/sub/another"]);
        btrfs(mount, &["subvolume", "snapshot", "/sub", "/with-stand-ins"]);
        btrfs(mount, &["subvolume", "snapshot", "-r", "/sub", "/with-more"]);
        btrfs(mount, &["subvolume", "sync", "/"]);
    });
    // What is new has its number when the volume is mounted again.
    let kernels = kernel(&image.path, "ro,noatime", Kernels::of);
    (image, kernels)
}

#[test]
fn numbers_are_as_documented_and_unique() {
    testkit::require!(kernel_btrfs);
    let (image, kernels) = filled();
    let ours = numbers(&image.open());
    assert!(kernels.names.keys().eq(ours.keys()), "the same names");
    assert!(kernels.subvolumes.len() >= 7, "{:?}", kernels.subvolumes);
    let (mut stand_ins, mut owners) = (BTreeSet::new(), HashMap::new());
    for (name, (device, ino)) in &kernels.names {
        let our = ours[name];
        if *ino == KERNELS_STAND_IN {
            assert!(our & STAND_IN != 0, "{name}: {our:#x}");
            assert!(stand_ins.insert(our), "{name}: {our:#x} stands twice");
            continue;
        }
        assert_eq!(our, documented(kernels.subvolumes[device], *ino), "{name}");
        // Two names have one number if, and only if, they are links to one inode.
        assert_eq!(*owners.entry(our).or_insert((*device, *ino)), (*device, *ino), "{name}");
    }
    assert!(stand_ins.len() >= 4, "{stand_ins:x?}");
    let repeated =
        |objectid: u64| owners.keys().filter(|n| *n & 0xff_ffff_ffff == objectid).count();
    assert!(repeated(257) > 3, "subvolumes were to have the same object ids");
}

/// Opens, reads all numbers, lets `then` use the volume, closes.
fn open_and(image: &Image, read_only: bool, then: impl FnOnce(&BtrfsFs)) -> BTreeMap<String, u64> {
    let options = Options { read_only, background: false, ..Options::default() };
    let fs = image.open_with(options);
    let numbers = numbers(&fs);
    then(&fs);
    fs.destroy().expect("close");
    numbers
}

#[test]
fn every_mount_shows_the_same_numbers() {
    testkit::require!(kernel_btrfs);
    let (image, _) = filled();
    let first = open_and(&image, true, |_| ());
    let mut before_closing = BTreeMap::new();
    let second = open_and(&image, false, |fs| {
        for place in ["random", "sub", "sub/nested", "snap-rw"] {
            let step =
                |at: Ino, name: &str| fs.lookup(&CX, at, name.as_bytes()).expect("lookup").attr.ino;
            let root = place.split('/').fold(fs.root(), step);
            let mut session = Session::below(fs, root);
            for op in generate(3, 300, &Config { freeze: false, ..Config::all() }) {
                session.apply(&op);
            }
            session.close_all();
        }
        before_closing = numbers(fs);
    });
    assert!(first == second, "read-only and read-write");
    let third = open_and(&image, false, |_| ());
    assert!(before_closing == third, "new inodes keep the numbers that they got");
    let new = third.values().filter(|ino| !first.values().any(|old| old == *ino)).count();
    assert!(new > 20, "{new} new inodes");
    // The kernel's commits change nothing about it.
    kernel(&image.path, "noatime", |mount| {
        std::fs::write(mount.join("by-the-kernel"), b"content").expect("write");
    });
    let mut fourth = open_and(&image, false, |_| ());
    assert!(fourth.remove("/by-the-kernel").is_some());
    assert!(third == fourth, "after the kernel's turn");
}
