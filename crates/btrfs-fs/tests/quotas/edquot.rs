//! Limits of groups above subvolumes: they refuse with EDQUOT what would lead beyond them, as the kernel's do,
//! and nobody is kept from removing what there is.
//!
//! The same is done to the kernel and to the engine, on two copies of a volume.

use crate::common;
use btrfs_fs::{BtrfsFs, Caller, LimitChange, Options};
use common::kernel::{btrfs, kernel};
use common::{CX, Image};
use testkit::PosixFs;
use testkit::oracle::{self, KernelMount, run};
use vfs::{FileKind, FileSystem, FsError, Ino, SetAttr};

const MIB: u64 = 1 << 20;
/// What a group may have.
const MOST: u64 = 6 * MIB;

fn find(fs: &dyn FileSystem, path: &str) -> Ino {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(fs.root(), |at, name| fs.lookup(&CX, at, name.as_bytes()).expect("there").attr.ino)
}

fn new_file(fs: &dyn FileSystem, dir: Ino, name: &str) -> Result<Ino, FsError> {
    fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0).map(|entry| entry.attr.ino)
}

/// A file that nobody has open behind this.
fn put(fs: &dyn FileSystem, dir: Ino, name: &str, content: &[u8]) -> Result<usize, FsError> {
    let ino = new_file(fs, dir, name)?;
    let written = fs.write(&CX, ino, 0, content, Default::default());
    fs.forget(ino, 1);
    written
}

/// Files of a MiB, one after the other in two subvolumes, until one is refused; what came of it.
fn fill(fs: &dyn FileSystem) -> (u64, i32) {
    let (dirs, content) = (["a", "b"].map(|name| find(fs, name)), vec![0x5a; MIB as usize]);
    let mut written = 0;
    for n in 0..64 {
        match put(fs, dirs[n % 2], &format!("f{n}"), &content) {
            Ok(len) if len == content.len() => written += MIB,
            Ok(_) => return (written, libc::EDQUOT),
            Err(error) => return (written, error.errno()),
        }
        fs.sync().expect("commit");
    }
    panic!("no limit held");
}

/// At the limit: files go, and make room.
fn remove_at_the_limit(fs: &dyn FileSystem) {
    let dir = find(fs, "a");
    fs.unlink(&CX, dir, b"f0").expect("nobody is kept from removing");
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(&CX, find(fs, "b/f1"), &cut).expect("nor from cutting");
    fs.sync().expect("commit");
    let content = vec![1; MIB as usize];
    assert_eq!(put(fs, dir, "again", &content).expect("room"), content.len());
    fs.sync().expect("commit");
}

/// A volume whose subvolumes `a` and `b` are in 1/1, and that in 2/1, with a limit of one of them.
fn volume(limited: &str, exclusive: bool) -> Image {
    let image = Image::new(512 << 20, &[]);
    kernel(&image.path, "noatime", |mount| {
        btrfs(mount, &["quota", "enable", "/"]);
        for name in ["a", "b", "free"] {
            btrfs(mount, &["subvolume", "create", &format!("/{name}")]);
        }
        for group in ["1/1", "2/1"] {
            btrfs(mount, &["qgroup", "create", group, "/"]);
        }
        for (group, above) in [("0/256", "1/1"), ("0/257", "1/1"), ("1/1", "2/1")] {
            btrfs(mount, &["qgroup", "assign", "--no-rescan", group, above, "/"]);
        }
        btrfs(mount, &["quota", "rescan", "-w", "/"]);
        let kind: &[&str] = if exclusive { &["-e"] } else { &[] };
        let most = MOST.to_string();
        btrfs(mount, &[&["qgroup", "limit"], kind, &[&most, limited, "/"]].concat());
    });
    image
}

fn numbers_are_right(image: &Image) {
    common::assert_sound(&image.path);
    let report = run("btrfs", &["check", "-Q", &image.path.to_string_lossy()]);
    let right = report.stdout.contains("Counts for qgroup id: 1/1");
    assert!(right && !report.stdout.contains("different"), "{}", report.text());
}

#[test]
fn limits_of_higher_groups_refuse_as_the_kernels() {
    testkit::require!(kernel_btrfs);
    for (limited, exclusive) in [("1/1", false), ("1/1", true), ("2/1", false)] {
        let image = volume(limited, exclusive);
        let copy = common::crashed(&image, "copy.img");
        let theirs = kernel(&copy, "noatime", |mount| {
            let fs = PosixFs::open(mount.path()).expect("open the kernel's mount");
            fill(&fs)
        });
        let fs = image.open_checked(Options { background: false, ..Options::default() });
        let ours = fill(&fs);
        println!("{limited}: the kernel {theirs:?}, we {ours:?}");
        assert_eq!((theirs.1, ours.1), (libc::EDQUOT, libc::EDQUOT));
        assert!(ours.0 <= MOST && ours.0 + MIB >= theirs.0, "the kernel {theirs:?}, we {ours:?}");
        remove_at_the_limit(&fs);
        put(&fs, find(&fs, "free"), "f", &vec![7; 2 * MOST as usize]).expect("no limit");
        fs.destroy().expect("close");
        drop(fs);
        numbers_are_right(&image);
    }
}

/// Limits may be set below what there is; then all can go, names and subvolumes alike.
#[test]
fn beyond_the_limit_everything_can_be_removed() {
    testkit::require!(kernel_btrfs);
    let image = volume("1/1", false);
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    for name in ["a", "b"] {
        let dir = find(&fs, name);
        for n in 0..40 {
            put(&fs, dir, &format!("f{n}"), &[n; 50_000]).expect("room");
        }
    }
    fs.sync().expect("commit");
    let low = LimitChange { referenced: Some(Some(MIB / 2)), ..LimitChange::default() };
    fs.limit_qgroup("1/1".parse().unwrap(), &low).expect("limit");
    let refused = new_file(&fs, find(&fs, "a"), "more").expect_err("beyond the limit");
    assert_eq!(refused.errno(), libc::EDQUOT);
    let dir = find(&fs, "a");
    for n in 0..40 {
        let name = format!("f{n}");
        fs.unlink(&CX, dir, name.as_bytes()).expect("nobody is kept from removing");
        if n % 10 == 0 {
            fs.sync().expect("commit");
        }
    }
    delete(&fs, "b");
    assert!(fs.sync_deleted(&[], None).expect("dropped"));
    fs.sync().expect("commit");
    new_file(&fs, dir, "more").expect("there is room again");
    fs.destroy().expect("close");
    drop(fs);
    numbers_are_right(&image);
    kernel(&image.path, "noatime", |mount| oracle::scrub(mount).expect("scrub"));
}

fn delete(fs: &BtrfsFs, name: &str) {
    let which = btrfs_fs::Delete::Name(fs.root(), name.as_bytes());
    fs.delete_subvolume(&Caller::root(), which).expect("nobody is kept from removing");
}

const NODE: u64 = 16384;

/// Which new names are refused where so many nodes are left below the limit of `a`, which `limit` sets.
fn new_names(fs: &dyn FileSystem, limit: &dyn Fn(Option<u64>)) -> Vec<(u64, [Result<(), i32>; 3])> {
    let dir = find(fs, "a");
    let made = |entry: Result<vfs::Entry, FsError>| {
        entry.map(|entry| fs.forget(entry.attr.ino, 1)).map_err(|error| error.errno())
    };
    let left = |nodes: u64| {
        limit(Some(nodes * NODE));
        let name = |kind: &str| format!("{kind}{nodes}").into_bytes();
        let tried = [
            made(fs.mkdir(&CX, dir, &name("d"), 0o755)),
            made(fs.mknod(&CX, dir, &name("f"), FileKind::File, 0o644, 0)),
            made(fs.symlink(&CX, dir, &name("s"), b"target")),
        ];
        limit(None);
        fs.sync().expect("commit");
        (nodes, tried)
    };
    (0..10).map(left).collect()
}

/// So many bytes are left below the limit of `a`, or it has none.
fn kernels_limit(mount: &KernelMount, left: Option<u64>) {
    let shown = run("btrfs", &["qgroup", "show", "--raw", &mount.path().to_string_lossy()]);
    let line = shown.stdout.lines().find(|line| line.starts_with("0/256 "));
    let words = line.expect("its group").split_whitespace();
    let used: u64 = words.skip(1).find_map(|word| word.parse().ok()).expect("bytes");
    let most = left.map_or("none".into(), |left| (used + left).to_string());
    btrfs(mount, &["qgroup", "limit", &most, "0/256", "/"]);
}

fn our_limit(fs: &BtrfsFs, left: Option<u64>) {
    let group = "0/256".parse().unwrap();
    let used = fs.qgroups_from(group, 1).expect("groups")[0].referenced;
    let change =
        LimitChange { referenced: Some(left.map(|left| used + left)), ..Default::default() };
    fs.limit_qgroup(group, &change).expect("limit");
}

/// The kernel asks for a node for each item that a new name changes.
#[test]
fn new_names_at_the_limit_are_refused_as_the_kernels() {
    testkit::require!(kernel_btrfs);
    let image = volume("2/1", false);
    let copy = common::crashed(&image, "copy.img");
    let theirs = kernel(&copy, "noatime", |mount| {
        let fs = PosixFs::open(mount.path()).expect("open the kernel's mount");
        new_names(&fs, &|left| kernels_limit(mount, left))
    });
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    let ours = new_names(&fs, &|left| our_limit(&fs, left));
    assert_eq!(ours, theirs);
    let refused = Err(libc::EDQUOT);
    assert_eq!((theirs[0].1, theirs[9].1), ([refused; 3], [Ok(()); 3]));
    fs.destroy().expect("close");
    drop(fs);
    numbers_are_right(&image);
}

/// Which new subvolumes, and which snapshots of `free`, are refused in `a` where so many nodes are left below its limit.
fn new_subvolumes(
    limit: &dyn Fn(Option<u64>),
    make: &dyn Fn(bool, &str) -> Result<(), i32>,
) -> Vec<(u64, [Result<(), i32>; 2])> {
    let left = |nodes: u64| {
        let tried = [false, true].map(|snapshot| {
            limit(Some(nodes * NODE));
            let made = make(snapshot, &format!("s{snapshot}{nodes}"));
            limit(None);
            made
        });
        (nodes, tried)
    };
    (0..6).map(left).collect()
}

fn made_by_kernel(mount: &KernelMount, snapshot: bool, name: &str) -> Result<(), i32> {
    let to = mount.join("a").join(name).to_string_lossy().into_owned();
    let from = mount.join("free").to_string_lossy().into_owned();
    let report = match snapshot {
        true => run("btrfs", &["subvolume", "snapshot", &from, &to]),
        false => run("btrfs", &["subvolume", "create", &to]),
    };
    btrfs(mount, &["filesystem", "sync", "/"]);
    let refused = report.stderr.contains("Disk quota exceeded");
    assert!(report.success() != refused, "{}", report.text());
    if refused { Err(libc::EDQUOT) } else { Ok(()) }
}

fn made_by_us(fs: &BtrfsFs, snapshot: bool, name: &str) -> Result<(), i32> {
    let (caller, dir) = (Caller::root(), find(fs, "a"));
    let made = match snapshot {
        true => fs.snapshot(&caller, find(fs, "free"), dir, name.as_bytes(), false),
        false => fs.create_subvolume(&caller, dir, name.as_bytes()),
    };
    let made = made.map(|made| fs.forget(made.1.attr.ino, 1)).map_err(|error| error.errno());
    fs.sync().expect("commit");
    made
}

/// Their names come into a subvolume like others.
#[test]
fn new_subvolumes_at_the_limit_are_refused_as_the_kernels() {
    testkit::require!(kernel_btrfs);
    let image = volume("2/1", false);
    let copy = common::crashed(&image, "copy.img");
    let theirs = kernel(&copy, "noatime", |mount| {
        let make = |snapshot, name: &str| made_by_kernel(mount, snapshot, name);
        new_subvolumes(&|left| kernels_limit(mount, left), &make)
    });
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    let make = |snapshot, name: &str| made_by_us(&fs, snapshot, name);
    let ours = new_subvolumes(&|left| our_limit(&fs, left), &make);
    assert_eq!(ours, theirs);
    let refused = Err(libc::EDQUOT);
    assert_eq!((theirs[0].1, theirs[5].1), ([refused; 2], [Ok(()); 2]));
    fs.destroy().expect("close");
    drop(fs);
    numbers_are_right(&image);
}
