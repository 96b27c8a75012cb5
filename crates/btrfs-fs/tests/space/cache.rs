//! Volumes without a valid free-space tree: the first mount that writes makes one, and takes the
//! version 1 space cache away; also where the tree is valid and something of a cache is left. Volumes and caches are
//! the kernel's.

use crate::common;
use blockdev::BlockDevice;
use blocksim::SimDevice;
use btrfs_disk::ids::compat_ro::{FREE_SPACE_TREE, FREE_SPACE_TREE_VALID};
use btrfs_disk::ids::{FREE_SPACE_OBJECTID, ORPHAN_OBJECTID};
use btrfs_disk::items::InodeItem;
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_fs::{BtrfsFs, Caller, Options};
use btrfs_volume::{OpenOptions, Volume};
use common::kernel::{btrfs, kernel};
use common::likeness::assert_like;
use common::{CX, Image};
use fuzzing::patch::Patch;
use std::path::Path;
use std::sync::Arc;
use testkit::compare::{Rules, TreeSnapshot};
use testkit::oracle::{self, KernelMount};
use vfs::{FileKind, FileSystem, FsError};

const MIB: u64 = 1 << 20;
const V1: &str = "noatime,space_cache=v1";
const WITHOUT: [&str; 2] = ["-R", "^free-space-tree"];

fn open(device: Arc<dyn BlockDevice>, read_only: bool) -> vfs::Result<BtrfsFs> {
    let options = Options { read_only, background: false, ..Options::default() };
    BtrfsFs::open_device(device, options)
}

pub(super) fn open_path(path: &Path) -> vfs::Result<BtrfsFs> {
    open(Arc::new(common::open_device(path, false)), false)
}

pub(super) fn superblock(device: Arc<dyn BlockDevice>) -> btrfs_disk::Superblock {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    Volume::open(device, options).expect("a volume").superblock().as_ref().clone()
}

fn has_tree(path: &Path) -> bool {
    let flags = superblock(Arc::new(common::open_device(path, true))).fields.compat_ro_flags;
    flags & FREE_SPACE_TREE != 0 && flags & FREE_SPACE_TREE_VALID != 0
}

/// Lines of the root tree that say where a cache is.
fn caches(path: &Path) -> usize {
    let path = path.to_string_lossy();
    let dump = oracle::sh("btrfs", &["inspect-internal", "dump-tree", "-t", "1", &path]).unwrap();
    dump.lines().filter(|line| line.contains("FREE_SPACE UNTYPED")).count()
}

/// Files, and free space in many pieces; each commit writes the caches anew.
fn populate(mount: &KernelMount) -> TreeSnapshot {
    oracle::kernel_populate(mount.path(), 8).expect("populate");
    for round in 0..2 {
        for i in 0..3000 {
            let path = mount.join(&format!("piece{i}"));
            match round {
                0 => std::fs::write(path, vec![i as u8; 4096 * (1 + i % 3)]).expect("write"),
                _ if i % 2 == 0 => std::fs::remove_file(path).expect("remove"),
                _ => {}
            }
        }
        btrfs(mount, &["filesystem", "sync", "/"]);
    }
    btrfs(mount, &["subvolume", "sync", "/"]);
    TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
}

/// But for what the kernel makes up of snapshots' places for subvolumes.
fn same(expected: &TreeSnapshot, seen: &TreeSnapshot) {
    assert_like(expected, seen, &Rules::default());
}

fn judge(path: &Path, expected: &TreeSnapshot) {
    common::assert_sound(path);
    let seen = kernel(path, "ro,noatime", |mount| TreeSnapshot::of_dir(mount.path()));
    same(expected, &seen.expect("walk the kernel's mount"));
    kernel(path, "noatime", |mount| oracle::scrub(mount).expect("scrub"));
    common::assert_sound(path);
}

/// What the kernel made with its old cache; it complains of that one whenever it sees it.
fn with_cache(options: &[&str], size: u64, more: impl Fn(&KernelMount)) -> (Image, TreeSnapshot) {
    let image = Image::new(size, &[&WITHOUT, options].concat());
    let tree = oracle::with_kernel(&image.path, V1, |mount| {
        more(mount);
        populate(mount)
    });
    (image, tree.expect("the kernel mounts it"))
}

/// Opens it to write, changes something, and lets everybody judge.
fn converts(image: &Image, tree: &TreeSnapshot) {
    assert!(!has_tree(&image.path), "it was to have none");
    let fs = open_path(&image.path).expect("it converts");
    assert_eq!(fs.read_only_reason(), None);
    assert!(has_tree(&image.path), "before anybody can write");
    same(tree, &common::snapshot(&fs));
    fs.mknod(&CX, fs.root(), b"new", FileKind::File, 0o644, 0).expect("create");
    common::new_file(&fs, "content", &vec![3; 3 << 20]);
    fs.unlink(&CX, fs.root(), b"piece1").expect("unlink");
    let after = common::snapshot(&fs);
    fs.destroy().expect("close");
    drop(fs);
    assert_eq!(caches(&image.path), 0, "the cache is gone");
    judge(&image.path, &after);
    let fs = open_path(&image.path).expect("open again");
    same(&after, &common::snapshot(&fs));
    fs.destroy().expect("close");
    drop(fs);
    // Not the tolerant mount of before: nothing is left that the kernel complains of.
    kernel(&image.path, "noatime", |mount| {
        std::fs::write(mount.join("by the kernel"), "x").expect("write");
    });
    common::assert_sound(&image.path);
}

#[test]
fn the_kernels_old_cache_makes_way_for_a_tree() {
    testkit::require!(kernel_btrfs);
    // The kernel has caches for block groups of 100 MiB and more.
    let (image, tree) = with_cache(&[], 1200 * MIB, |_| ());
    assert!(caches(&image.path) > 0, "the kernel was to write a cache");
    let before = superblock(Arc::new(common::open_device(&image.path, true)));
    assert_ne!(before.fields.cache_generation, 0);
    // Who only reads changes nothing.
    let fs = open(Arc::new(common::open_device(&image.path, true)), true).expect("read-only");
    same(&tree, &common::snapshot(&fs));
    fs.destroy().expect("close");
    drop(fs);
    assert!(!has_tree(&image.path));
    converts(&image, &tree);
}

#[test]
fn quotas_stay_right() {
    testkit::require!(kernel_btrfs);
    let (image, tree) = with_cache(&["-n", "4096"], 1200 * MIB, |mount| {
        btrfs(mount, &["quota", "enable", "/"]);
        btrfs(mount, &["quota", "rescan", "-w", "/"]);
    });
    assert!(caches(&image.path) > 0, "the kernel was to write a cache");
    converts(&image, &tree);
    let path = image.path.to_string_lossy();
    let report = oracle::sh("btrfs", &["check", "-Q", &path]).expect("a report");
    assert!(!report.contains("different") && report.contains("0/5"), "{report}");
}

#[test]
fn without_any_cache_and_mixed() {
    testkit::require!(kernel_btrfs);
    for options in [&["--mixed"][..], &["-m", "single", "-n", "65536"], &["-O", "^no-holes"]] {
        let (image, tree) = with_cache(options, 300 * MIB, |_| ());
        converts(&image, &tree);
    }
}

/// What the kernel fsynced before it lost its power is there, and space of the log is no
/// space of the tree.
#[test]
fn a_log_is_replayed_in_the_same_commit() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1200 * MIB, &WITHOUT);
    let copy = image.path.with_extension("crash");
    oracle::with_kernel(&image.path, "noatime,space_cache=v1,commit=300", |mount| {
        populate(mount);
        let file = std::fs::File::create(mount.join("logged")).unwrap();
        std::io::Write::write_all(&mut &file, &[7; 100_000]).unwrap();
        file.sync_all().unwrap();
        std::fs::copy(&image.path, &copy).unwrap();
    })
    .unwrap();
    std::fs::rename(&copy, &image.path).unwrap();
    let log = superblock(Arc::new(common::open_device(&image.path, true))).fields.log_root;
    assert_ne!(log.0, 0, "the kernel was to leave a log");
    let fs = open_path(&image.path).expect("replayed and converted");
    let found = fs.lookup(&CX, fs.root(), b"logged").expect("what was fsynced");
    assert_eq!(found.attr.size, 100_000);
    let after = common::snapshot(&fs);
    fs.destroy().expect("close");
    drop(fs);
    assert!(has_tree(&image.path));
    judge(&image.path, &after);
}

/// One that the superblock does not call valid is made anew, whatever it says.
#[test]
fn a_tree_that_is_not_valid_is_made_anew() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(300 * MIB, &[]);
    let tree = kernel(&image.path, "noatime", populate);
    let volume =
        Volume::open(Arc::new(common::open_device(&image.path, false)), OpenOptions::default())
            .expect("a volume");
    let mut superblock = (*volume.superblock()).clone();
    superblock.fields.compat_ro_flags &= !FREE_SPACE_TREE_VALID;
    volume.commit_superblock(superblock).expect("write it");
    drop(volume);
    converts(&image, &tree);
}

/// Each state that a crash leaves is the volume of before or the one with its tree.
#[test]
fn a_crash_meanwhile_leaves_one_of_the_two() {
    testkit::require!(kernel_btrfs);
    let (image, tree) = with_cache(&["-n", "4096"], 1200 * MIB, |_| ());
    let base = blocksim::Image::import(&image.path).expect("import").flatten();
    let device = Arc::new(SimDevice::new(base));
    open(device.clone(), false).expect("it converts").destroy().expect("close");
    let (mut before, mut after) = (0, 0);
    for epoch in device.recording().epochs() {
        for choice in epoch.choices(3, 1) {
            let state = Arc::new(SimDevice::new(epoch.image(&choice)));
            let flags = superblock(state.clone()).fields.compat_ro_flags;
            *if flags & FREE_SPACE_TREE == 0 { &mut before } else { &mut after } += 1;
            // A copy of the superblock may be torn, and one of the commit before.
            common::check_device(state.clone(), true, btrfs_check::Severity::Error);
            let fs = open(state.clone(), false).expect("mount");
            assert_eq!(fs.read_only_reason(), None);
            same(&tree, &common::snapshot(&fs));
            fs.destroy().expect("close");
            drop(fs);
            common::check_device(state, true, btrfs_check::Severity::Note);
        }
    }
    println!("{before} states of before, {after} with the tree");
    assert!(before > 0 && after > 0, "this shows little");
}

/// Items of a cache in the root tree.
struct Cache {
    header: (Key, Vec<u8>),
    ino: u64,
}

/// What `caches` counts, by our own reading.
fn all_caches(patch: &Patch) -> Vec<Cache> {
    let items = patch.items(TreeId::ROOT).into_iter();
    let headers = items.filter(|(key, _)| key.objectid == FREE_SPACE_OBJECTID && key.kind == 0);
    let cache = |(key, data): (Key, Vec<u8>)| Cache {
        ino: u64::from_le_bytes(*data.first_chunk().expect("a header begins with a key")),
        header: (key, data),
    };
    headers.map(cache).collect()
}

/// A volume with a valid free-space tree whose root tree has caches as well: as kernels 4.5 to 5.10 left them,
/// or, `half_erased`, as a newer one does where it was interrupted in erasing them. Their numbers, ascending.
pub(super) fn with_both(half_erased: bool) -> (Image, Vec<u64>) {
    let (image, tree) = with_cache(&[], 1200 * MIB, |_| ());
    let patch = Patch::new(&image.path);
    let caches = all_caches(&patch);
    caches.iter().for_each(|cache| patch.remove(TreeId::ROOT, cache.header.0));
    drop(patch);
    // Without their headers they are nobody's.
    let fs = open_path(&image.path).expect("it converts");
    same(&tree, &common::snapshot(&fs));
    fs.destroy().expect("close");
    drop(fs);
    let patch = Patch::new(&image.path);
    for Cache { header: (key, data), ino } in &caches {
        let orphan = Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, *ino);
        match half_erased {
            false => patch.insert(TreeId::ROOT, *key, data),
            true => patch.insert(TreeId::ROOT, orphan, &[]),
        }
        let item = Key::new(*ino, kind::INODE_ITEM, 0);
        let nlink = u32::from(!half_erased);
        patch.edit_as::<InodeItem>(TreeId::ROOT, item, |inode| inode.nlink = nlink);
    }
    if !half_erased {
        patch.edit_super(|sb| sb.fields.cache_generation = sb.fields.generation.0);
    }
    common::assert_sound(&image.path);
    let mut numbers: Vec<u64> = caches.into_iter().map(|cache| cache.ino).collect();
    numbers.sort_unstable();
    (image, numbers)
}

/// As many subvolumes as the numbers of the caches would take, each with a file.
fn make_subvolumes(fs: &BtrfsFs, count: u64) -> Vec<u64> {
    let make = |n: u64| {
        let name = format!("made{n}");
        let made = fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes());
        let (id, root) = made.expect("create a subvolume");
        let file = fs.mknod(&CX, root.attr.ino, b"file", FileKind::File, 0o644, 0);
        fs.write(&CX, file.expect("create").attr.ino, 0, &[n as u8; 5000], Default::default())
            .expect("write");
        id.0
    };
    (0..count).map(make).collect()
}

/// The kernel erases a cache with all items of its number: those of a subvolume that has the same are gone. So
/// none gets such a number, and the caches go before it comes to that.
fn spares_subvolumes(half_erased: bool) {
    let (image, caches) = with_both(half_erased);
    let last = *caches.last().expect("the kernel was to write a cache");
    let fs = open_path(&image.path).expect("open");
    let made = make_subvolumes(&fs, last - 250);
    let after = common::snapshot(&fs);
    fs.destroy().expect("close");
    drop(fs);
    assert!(made.iter().all(|id| *id > last), "{made:?} beside caches {caches:?}");
    let patch = Patch::new(&image.path);
    let left = |(key, _): &(Key, Vec<u8>)| caches.contains(&key.objectid);
    assert_eq!(patch.items(TreeId::ROOT).iter().filter(|item| left(item)).count(), 0);
    assert!(all_caches(&patch).is_empty());
    let fields = superblock(Arc::new(common::open_device(&image.path, true))).fields;
    assert!(half_erased || fields.cache_generation == 0, "the kernel is to leave them alone");
    drop(patch);
    // Who takes all of a number is the kernel, which is to find none.
    kernel(&image.path, "noatime", |_| ());
    judge(&image.path, &after);
}

#[test]
fn what_older_kernels_left_of_a_cache_costs_no_subvolume() {
    testkit::require!(kernel_btrfs);
    spares_subvolumes(false);
}

#[test]
fn what_a_kernel_began_to_erase_costs_no_subvolume() {
    testkit::require!(kernel_btrfs);
    spares_subvolumes(true);
}

/// As the kernel's: it counts all numbers of the root tree, whoever has them.
#[test]
fn a_new_subvolumes_number_is_above_the_caches() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1200 * MIB, &WITHOUT);
    oracle::with_kernel(&image.path, V1, |mount| {
        let piece = |n: u8| std::fs::write(mount.join(&format!("{n}")), vec![n; 1 << 20]);
        (0..60).for_each(|n| piece(n).expect("write"));
        btrfs(mount, &["filesystem", "sync", "/"]);
        std::fs::remove_file(mount.join("1")).expect("remove");
    })
    .expect("the kernel mounts it");
    let caches = all_caches(&Patch::new(&image.path));
    let last = caches.iter().map(|cache| cache.ino).max().expect("the kernel was to write one");
    let fs = open_path(&image.path).expect("open");
    assert!(make_subvolumes(&fs, 1)[0] > last, "{last} was a cache's");
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
}

/// As an earlier version of Spinney left it: a subvolume has the number of a cache's inode.
#[test]
fn a_subvolume_of_a_caches_number_is_kept() {
    testkit::require!(kernel_btrfs);
    for half_erased in [false, true] {
        let image = Image::new(300 * MIB, &[]);
        kernel(&image.path, "noatime", |mount| {
            btrfs(mount, &["subvolume", "create", "/sub"]);
            std::fs::write(mount.join("sub/file"), "content").expect("write");
        });
        let patch = Patch::new(&image.path);
        let (group, _) = patch.some(TreeId::EXTENT, |key, _| key.kind == kind::BLOCK_GROUP_ITEM);
        let inode = Key::new(256, kind::INODE_ITEM, 0);
        let (mode, nlink) = (vfs::mode::S_IFREG | 0o600, u32::from(!half_erased));
        let item = InodeItem { generation: 7, transid: 7, mode, nlink, ..InodeItem::default() };
        patch.insert(TreeId::ROOT, inode, &item.to_vec());
        if half_erased {
            let orphan = Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, 256);
            patch.insert(TreeId::ROOT, orphan, &[]);
        } else {
            let header = [&inode.to_bytes()[..], &[0; 24]].concat();
            let at = Key::new(FREE_SPACE_OBJECTID, 0, group.objectid);
            patch.insert(TreeId::ROOT, at, &header);
            patch.edit_super(|sb| sb.fields.cache_generation = sb.fields.generation.0);
        }
        drop(patch);
        let fs = open_path(&image.path).expect("open");
        let before = common::snapshot(&fs);
        fs.destroy().expect("close");
        drop(fs);
        kernel(&image.path, "noatime", |_| ());
        judge(&image.path, &before);
    }
}

/// A volume that the kernel filled to its last byte opens, or is left as it was.
#[test]
fn a_full_volume_is_not_damaged() {
    testkit::require!(kernel_btrfs);
    let (image, _) = with_cache(&["-m", "single"], 300 * MIB, |_| ());
    oracle::with_kernel(&image.path, V1, |mount| {
        for i in 0.. {
            let content = vec![1; if i % 50 == 0 { 1 << 20 } else { 1500 }];
            if std::fs::write(mount.join(&format!("fill{i}")), content).is_err() {
                break;
            }
        }
        oracle::sh("sync", &["-f", &mount.path().to_string_lossy()]).expect("sync");
    })
    .expect("the kernel mounts it");
    // Of the write that failed it knew more than is on the volume.
    let tree = oracle::with_kernel(&image.path, "ro", |mount| TreeSnapshot::of_dir(mount.path()));
    let tree = tree.expect("the kernel mounts it").expect("walk the kernel's mount");
    match open_path(&image.path) {
        Ok(fs) => {
            same(&tree, &common::snapshot(&fs));
            fs.destroy().expect("close");
        }
        Err(FsError::Unsupported(why)) => assert!(why.contains("no room"), "{why}"),
        Err(other) => panic!("{other}"),
    }
    oracle::assert_clean(&image.path);
}
