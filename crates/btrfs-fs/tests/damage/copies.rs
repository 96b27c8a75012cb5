//! Every node of every tree of volumes that the kernel filled, with one copy bad, or both.
//!
//! One bad copy does not show: all is read, changed, committed and judged from outside, and
//! a first copy is mended by whoever reads it. (Second copies are read where the first is
//! bad, by us as by the kernel; our check and scrub find them.) Both copies bad: errors
//! that say so, and when the damage is undone, all that was there is there.
//!
//! What it does not know: copies of the superblock (`superblocks.rs`) and of content
//! (`hostile.rs`).

use crate::{common, watch};
use blockdev::{BlockDevice, FileDevice, MemDevice};
use btrfs_check::{CheckOptions, Finding, FindingKind, check};
use btrfs_disk::{ChecksumType, TreeId};
use btrfs_fs::BtrfsFs;
use btrfs_image::mkfs::{MkfsOptions, make};
use btrfs_volume::{OpenOptions, Volume};
use fuzzing::hostile::base::{Base, NodeAt, options};
use fuzzing::hostile::choices::Choices;
use fuzzing::hostile::disk::Layered;
use fuzzing::hostile::drive::{Opened, Opening, Walk, drive, walk};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use testkit::compare::TreeSnapshot;
use testkit::ops::Rng;
use testkit::oracle::{self, KernelMount, TempDir};
use vfs::{Context, FileKind, FileSystem, Ino, RenameMode, SetAttr, WriteFlags};
use watch::{Failures, watched};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };
const MIB: u64 = 1 << 20;
/// Where `change` has its hands: at the top and in the snapshot.
const CHANGED: [&str; 2] = ["changed", "snap/changed"];

/// A volume that the kernel filled, in memory and as a file for the outside judges.
struct Sound {
    base: Base,
    tree: TreeSnapshot,
    walk: Walk,
    image: PathBuf,
    _dir: TempDir,
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Something in each tree, and more than one leaf where that takes little.
fn fill(mount: &KernelMount) {
    let write = |name: &str, len: usize| {
        std::fs::write(mount.join(name), random(len as u64, len)).expect("write");
    };
    let sync = || common::kernel::btrfs(mount, &["filesystem", "sync", "/"]);
    for dir in ["changed", "files"] {
        std::fs::create_dir(mount.join(dir)).expect("mkdir");
    }
    for (name, len) in [("a", 120_000), ("b", 300), ("c", 20_000), ("d", 50_000)] {
        write(&format!("changed/{name}"), len);
    }
    for number in 0..40 {
        write(&format!("files/with-a-name-of-some-length-{number}"), number * 977 % 30_000);
    }
    write("large", 5 << 20);
    sync();
    let large = std::fs::File::options().write(true).open(mount.join("large")).expect("open");
    // Where `walk` reads.
    for block in (0..60).chain(640..700).chain(1220..1280).step_by(2) {
        large.write_all_at(&random(block, 4096), block * 4096).expect("write");
    }
    sync();
    common::kernel::btrfs(mount, &["subvolume", "snapshot", "/", "/snap"]);
    common::kernel::btrfs(mount, &["subvolume", "create", "/sub"]);
    for number in 0..12 {
        write(&format!("sub/file-{number}"), 1000 + number * 2000);
        write(&format!("files/new-{number}"), 500);
        write(&format!("snap/files/newer-{number}"), 700);
    }
}

impl Sound {
    /// By `mkfs.btrfs`, or by our own with a block-group tree.
    fn new(mkfs: Option<&[&str]>) -> Sound {
        let dir = TempDir::new("copies").expect("temp dir");
        let image = dir.join("disk.img");
        match mkfs {
            Some(mkfs) => {
                let mkfs = [&["-n", "4096", "-m", "dup"], mkfs].concat();
                oracle::mkfs_btrfs(&image, 128 * MIB, &mkfs).expect("mkfs.btrfs");
            }
            None => {
                let device = FileDevice::create(&image, 128 * MIB).expect("create");
                let mut mkfs = MkfsOptions { node_size: Some(4096), ..MkfsOptions::default() };
                mkfs.csum = ChecksumType::Xxhash64;
                mkfs.features.block_group_tree = true;
                make(&device, &mkfs).expect("mkfs");
            }
        }
        oracle::with_kernel(&image, "noatime", fill).expect("the kernel fills it");
        let seen = oracle::with_kernel(&image, "ro,noatime", |mount| {
            TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
        });
        let bytes = std::fs::read(&image).expect("read the image");
        let base = Base::of(Arc::new(MemDevice::from_bytes(&bytes)));
        let layered = Arc::new(Layered::new(&base.device));
        let fs = BtrfsFs::open_device(layered, options()).expect("open");
        let (tree, walk) = (common::snapshot(&fs), walk(&fs));
        common::assert_same(&seen.expect("the kernel mounts it"), &tree);
        Sound { base, tree, walk, image, _dir: dir }
    }

    /// Fails unless all trees are there.
    fn has_all_trees(self, block_groups: bool) -> Sound {
        let trees: BTreeSet<_> = self.base.nodes.iter().map(|node| node.tree).collect();
        let mut wanted = vec![TreeId::ROOT, TreeId::EXTENT, TreeId::CHUNK, TreeId::DEV];
        wanted.extend([TreeId::FS, TreeId::CSUM, TreeId::FREE_SPACE, TreeId::UUID]);
        if block_groups {
            wanted.push(TreeId::BLOCK_GROUP);
        }
        wanted.retain(|tree| !trees.contains(tree));
        assert!(wanted.is_empty(), "no node of {wanted:?} among {trees:?}");
        let subvolumes = trees.iter().filter(|tree| tree.is_subvolume()).count();
        assert!(subvolumes >= 3, "{trees:?}");
        self
    }

    /// Spoils copies of a node, and tells what stands there now.
    fn spoil(&self, device: &Layered, node: &NodeAt, copies: &[usize]) -> Vec<Spoilt> {
        let size = self.base.geometry.node_size as usize;
        let spoil = |copy: &usize| {
            self.base.spoil(device, node.logical, *copy);
            let at = self.base.copies(node.logical)[*copy];
            let mut bytes = vec![0; size];
            device.read_at(at, &mut bytes).expect("in range");
            Spoilt { at, bytes }
        };
        copies.iter().map(spoil).collect()
    }

    /// What `btrfs check` says of the device.
    fn btrfs_check(&self, device: &Layered) -> Result<(), String> {
        let (own, size) = (device.own(), 4096);
        let file = std::fs::File::options().write(true).open(&self.image).expect("open");
        for (at, block) in &own {
            file.write_all_at(block, *at).expect("write");
        }
        let said = oracle::btrfs_check(&self.image);
        let mut block = vec![0; size];
        for (at, _) in &own {
            self.base.device.read_at(*at, &mut block).expect("in range");
            file.write_all_at(&block, *at).expect("write");
        }
        said
    }
}

/// A bad copy of a node.
struct Spoilt {
    at: u64,
    bytes: Vec<u8>,
}

impl Spoilt {
    fn is_there(&self, device: &Layered) -> bool {
        let mut bytes = vec![0; self.bytes.len()];
        device.read_at(self.at, &mut bytes).expect("in range");
        bytes == self.bytes
    }
}

fn findings(device: &Arc<Layered>) -> Vec<Finding> {
    let open = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = Volume::open(device.clone(), open).expect("open the volume");
    let options = CheckOptions { verify_data: true, ..CheckOptions::default() };
    check(Arc::new(volume), &options).expect("check").findings
}

/// The tree without what `change` changes.
fn unchanged(tree: &TreeSnapshot) -> TreeSnapshot {
    let mut tree = tree.clone();
    tree.nodes.retain(|path, _| {
        let path = String::from_utf8_lossy(&path.0).into_owned();
        !CHANGED.iter().any(|place| std::path::Path::new(&path).starts_with(place))
    });
    tree
}

/// Changes of all kinds, and two commits.
fn change(fs: &BtrfsFs) -> vfs::Result<()> {
    for (round, place) in CHANGED.into_iter().enumerate() {
        let find = |at: vfs::Result<Ino>, name: &str| {
            fs.lookup(&CX, at?, name.as_bytes()).map(|entry| entry.attr.ino)
        };
        let dir = place.split('/').fold(Ok(fs.root()), find)?;
        let (a, b, c) = (find(Ok(dir), "a")?, find(Ok(dir), "b")?, find(Ok(dir), "c")?);
        let data = random(round as u64, 70_000);
        fs.write(&CX, a, 20_000, &data, WriteFlags::default())?;
        fs.fsync(a, false)?;
        fs.write(&CX, b, 250, &data[..200], WriteFlags::default())?;
        fs.setattr(&CX, c, &SetAttr { size: Some(5000), ..SetAttr::default() })?;
        fs.unlink(&CX, dir, b"d")?;
        for number in 0..40 {
            let name = format!("a-new-file-number-{number}");
            let new = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o600, 0)?.attr.ino;
            fs.write(&CX, new, 0, &data[..number * 300], WriteFlags::default())?;
        }
        fs.sync()?;
        fs.rename(&CX, dir, b"a-new-file-number-1", dir, b"moved", RenameMode::NoReplace)?;
        let mut back = vec![0; data.len()];
        assert_eq!(fs.read(a, 20_000, &mut back)?, data.len());
        assert!(back == data, "another content than was written");
    }
    fs.sync()
}

/// Everything with one bad copy; true if it is still there at the end.
fn use_with_one_bad(sound: &Sound, node: &NodeAt, copy: usize) -> bool {
    let device = Arc::new(Layered::new(&sound.base.device));
    let spoilt = sound.spoil(&device, node, &[copy]);
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("opens");
    common::assert_same(&sound.tree, &common::snapshot(&fs));
    change(&fs).expect("all can be changed");
    let after = common::snapshot(&fs);
    common::assert_same(&unchanged(&sound.tree), &unchanged(&after));
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("closes");
    drop(fs);
    let left = spoilt[0].is_there(&device);
    for found in findings(&device) {
        let known = matches!(found.kind, FindingKind::NodeCopyBad { copy: c, .. } if c == copy + 1);
        assert!(left && known && found.logical == Some(node.logical), "our check: {found}");
    }
    sound.btrfs_check(&device).unwrap_or_else(|why| panic!("{why}"));
    let fs = BtrfsFs::open_device(device, options()).expect("opens again");
    common::assert_same(&after, &common::snapshot(&fs));
    left
}

/// Trees of which the mount, the reading of everything and the commits need not every node.
fn may_stay_unread(tree: TreeId) -> bool {
    // Nobody asks which subvolume has which UUID, and no chunk came or went.
    [TreeId::UUID, TreeId::DATA_RELOC, TreeId::DEV].contains(&tree)
}

fn one_bad_copy(sound: Sound, step: usize) {
    let sound = Arc::new(sound);
    let mut failures = Failures::default();
    let mut left: BTreeMap<(u64, usize), usize> = BTreeMap::new();
    let nodes = sound.base.nodes.len();
    for (number, node) in sound.base.nodes.clone().into_iter().enumerate() {
        for copy in (0..2).filter(|copy| (number * 2 + copy) % step == 0) {
            let of = sound.clone();
            let case = format!("copy {copy} of {node:?}");
            let result = watched(&case, move || use_with_one_bad(&of, &node, copy));
            if failures.note(result) == Some(true) {
                *left.entry((node.tree.0, copy)).or_default() += 1;
                if copy == 0 && !may_stay_unread(node.tree) {
                    failures.add(format!("{case} was not mended"));
                }
            }
        }
    }
    println!("{nodes} nodes; bad copies left, by tree and copy: {left:?}");
    failures.assert_none();
}

fn use_with_both_bad(sound: &Sound, node: &NodeAt, seed: u64) -> Opening {
    let device = Arc::new(Layered::new(&sound.base.device));
    let spoilt = sound.spoil(&device, node, &[0, 1]);
    // It sees to it that a refusal is typed and has written nothing.
    let fate = drive(&device, &mut Choices::seed(seed));
    let good = sound.base.node_bytes(&*sound.base.device, node.logical);
    for bad in spoilt.iter().filter(|bad| bad.is_there(&device)) {
        device.write_at(bad.at, &good).expect("in range");
    }
    let found: Vec<_> = findings(&device).iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "our check, the damage undone: {found:#?}");
    sound.btrfs_check(&device).unwrap_or_else(|why| panic!("the damage undone: {why}"));
    if let Opening::Opened(opened) = &fate {
        let told = |errno: &i32| [libc::EUCLEAN, libc::EIO, libc::EROFS].contains(errno);
        assert!(opened.before.errors.keys().all(told), "{:?}", opened.before.errors);
        let fs = BtrfsFs::open_device(device, options()).expect("opens, the damage undone");
        assert_kept(&sound.walk, opened, &walk(&fs));
    }
    fate
}

/// All that was there and that no operation had to do with.
fn assert_kept(sound: &Walk, opened: &Opened, after: &Walk) {
    assert!(after.errors.is_empty(), "{:?}", after.errors);
    for (path, seen) in sound.names.iter().filter(|(_, s)| !opened.touched.contains(&s.ino)) {
        let now = after.names.get(path);
        let same = match seen.kind {
            FileKind::Dir => now.is_some_and(|now| now.ino == seen.ino),
            _ => now == Some(seen),
        };
        assert!(same, "{}: {seen:?}, now {now:?}", String::from_utf8_lossy(path));
    }
}

fn both_copies_bad(sound: Sound, step: usize) {
    let sound = Arc::new(sound);
    let mut failures = Failures::default();
    let mut fates: BTreeMap<(u64, &str), usize> = BTreeMap::new();
    for (number, node) in sound.base.nodes.clone().into_iter().enumerate().step_by(step) {
        let of = sound.clone();
        let case = format!("both copies of {node:?}");
        let fate = watched(&case, move || use_with_both_bad(&of, &node, number as u64));
        let sort = match failures.note(fate) {
            Some(Opening::Refused(_)) => "refused",
            Some(Opening::Opened(opened)) if opened.read_only.is_some() => "read-only",
            Some(Opening::Opened(opened)) if opened.before.errors.is_empty() => "not met",
            Some(Opening::Opened(_)) => "errors",
            None => continue,
        };
        if sort == "not met" && (node.tree.is_subvolume() || node.tree == TreeId::ROOT) {
            failures.add(format!("{case}: no error was seen"));
        }
        *fates.entry((node.tree.0, sort)).or_default() += 1;
    }
    println!("by tree: {fates:?}");
    failures.assert_none();
}

#[test]
fn one_bad_copy_of_every_node() {
    testkit::require!(kernel_btrfs);
    one_bad_copy(Sound::new(Some(&[])).has_all_trees(false), 1);
}

#[test]
fn one_bad_copy_with_a_block_group_tree() {
    testkit::require!(kernel_btrfs);
    one_bad_copy(Sound::new(None).has_all_trees(true), 1);
}

/// Each node in one of its copies.
#[test]
fn one_bad_copy_by_other_checksums() {
    testkit::require!(kernel_btrfs);
    for csum in ["xxhash", "sha256", "blake2"] {
        one_bad_copy(Sound::new(Some(&["--csum", csum])).has_all_trees(false), 3);
    }
}

#[test]
fn both_copies_of_every_node_bad() {
    testkit::require!(kernel_btrfs);
    both_copies_bad(Sound::new(Some(&[])).has_all_trees(false), 1);
    both_copies_bad(Sound::new(None).has_all_trees(true), 2);
}

/// All first copies at once, and all second ones: what we did not mend, the kernel's scrub
/// can, and finds nothing else.
#[test]
fn all_first_copies_bad_or_all_second_ones() {
    testkit::require!(kernel_btrfs);
    let sound = Sound::new(Some(&[])).has_all_trees(false);
    for copy in 0..2 {
        let device = Arc::new(Layered::new(&sound.base.device));
        for node in &sound.base.nodes {
            sound.spoil(&device, node, &[copy]);
        }
        let fs = BtrfsFs::open_device(device.clone(), options()).expect("opens");
        common::assert_same(&sound.tree, &common::snapshot(&fs));
        change(&fs).expect("all can be changed");
        let after = common::snapshot(&fs);
        common::assert_same(&unchanged(&sound.tree), &unchanged(&after));
        fs.destroy().expect("closes");
        let image = sound.image.with_extension(format!("copy-{copy}"));
        std::fs::copy(&sound.image, &image).expect("copy");
        let file = std::fs::File::options().write(true).open(&image).expect("open");
        for (at, block) in device.own() {
            file.write_all_at(&block, at).expect("write");
        }
        oracle::with_kernel(&image, "noatime", |mount| {
            let point = mount.path().to_string_lossy().into_owned();
            let words = format!("{} start -B -R {point}", oracle::SCRUB);
            let said = oracle::run("sh", &["-c", &words]);
            assert!(said.stdout.contains("uncorrectable_errors: 0"), "{}", said.text());
        })
        .expect("the kernel mounts it");
        common::judge(&image, &after);
    }
}
