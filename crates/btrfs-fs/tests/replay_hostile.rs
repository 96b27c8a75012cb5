//! Crafted logs on a sound volume: each is refused with a typed error and nothing written,
//! or replayed, and then the volume is as sound as before. And replays that break off.
//!
//! `SPINNEY_HOSTILE=N` crafts N logs instead of a few hundred, from `SPINNEY_HOSTILE_SEED`
//! on.

mod common;
mod logs;
mod memory;
mod watch;

use blockdev::{BlockDevice, MemDevice};
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_disk::items::{FILE_EXTENT_INLINE_HEADER, InodeItem};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_fs::{BtrfsFs, Options};
use crash::Crash;
use fuzzing::hostile::base::{Base, options};
use fuzzing::hostile::choices::Choices;
use fuzzing::hostile::disk::Layered;
use fuzzing::hostile::drive::{Opening, drive, walk};
use fuzzing::hostile::leaf::Leaf;
use fuzzing::hostile::mutate;
use logs::{crash, world};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use testkit::compare::TreeSnapshot;
use testkit::oracle::TempDir;
use vfs::{FallocateMode, FileSystem, RenameMode};
use watch::{Failures, watched};
use world::World;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn committed(w: &World<'_>) {
    for dir in ["a", "b", "tree", "tree/below"] {
        w.mkdir(dir);
    }
    for (seed, file) in ["a/one", "a/two", "b/one", "a/x", "tree/f", "big"].into_iter().enumerate()
    {
        w.file(file, 60_000, seed as u64);
        w.setxattr(file, "user.a", b"value");
    }
    w.link("a/one", "a/alias");
}

fn synced(w: &World<'_>) {
    w.rename("a/two", "a/deux");
    w.unlink("a/alias");
    w.fsync("a");
    w.unlink("tree/f");
    w.rmdir("tree/below");
    w.fsync("tree");
    for i in 0..40 {
        let name = format!("b/new file with a long name {i}");
        w.file(&name, 100 + 700 * i, i as u64);
        w.setxattr(&name, "user.b", &[1; 100]);
        w.fsync(&name);
    }
    w.symlink(&"target/".repeat(30), "b/symlink");
    w.symlink("short", "b/short");
    w.fsync("b");
    for i in 0..10 {
        w.write("big", i * 37 % 10 * 8192, 4096, i);
        w.fsync("big");
    }
    w.fallocate("big", FallocateMode::KeepSize, 100_000, 100_000);
    w.clone("big", 0, "b/one", 0, 32_768);
    w.fsync("big");
    w.fsync("b/one");
}

/// The kernel's volume with a log; of its nodes only those of the log may be crafted.
fn logged() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let mkfs = &["-n", "4096"];
        let crash = Crash::new(mkfs, "", |fs, _| committed(&World(fs)), |fs, _| synced(&World(fs)));
        assert!(crash::has_log(&crash.image), "the kernel left no log");
        let image = std::fs::read(&crash.image).expect("read the image");
        let mut base = Base::of(Arc::new(MemDevice::from_bytes(&image)));
        base.nodes.retain(|node| node.tree == TreeId::LOG);
        assert!(base.nodes.len() >= 8, "{} nodes of the log", base.nodes.len());
        base
    })
}

/// Mounts, and says what the volume's own check finds then; `None`: refused.
fn replayed(device: &Arc<Layered>) -> Option<Vec<String>> {
    device.forget_writes();
    match BtrfsFs::open_device(device.clone(), options()) {
        Ok(fs) => fs.destroy().expect("close"),
        Err(_) => {
            assert_eq!(device.writes(), 0, "refused, but written");
            return None;
        }
    }
    let open = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let volume = btrfs_volume::Volume::open(device.clone(), open).expect("open the volume");
    let options = btrfs_check::CheckOptions::default();
    let report = btrfs_check::check(Arc::new(volume), &options).expect("check");
    // Content whose checksums the log lost: that range cannot be read, and says so. And what
    // nobody reads of an extent is carried over as the log has it, and so is a link to nowhere.
    let told = ["csum-missing", "ram-bytes", "symlink-empty"];
    let lost = |f: &&btrfs_check::Finding| !told.contains(&f.kind.code());
    Some(report.findings.iter().filter(lost).map(ToString::to_string).collect())
}

#[test]
fn crafted_logs() {
    testkit::require!(kernel_btrfs);
    let base = logged();
    let mut failures = Failures::default();
    let mut fates: BTreeMap<&str, u64> = BTreeMap::new();
    let first = number("SPINNEY_HOSTILE_SEED", 0);
    for seed in first..first + number("SPINNEY_HOSTILE", 400) {
        let mut choices = Choices::seed(seed);
        let device = Arc::new(Layered::new(&base.device));
        let told = mutate::mutate(base, &device, &mut choices);
        if told.contains("superblock") {
            continue;
        }
        let shown = device.clone();
        let sort = watched(&format!("seed {seed}: {told}"), move || {
            let options = Options { read_only: true, ..options() };
            let shown = BtrfsFs::open_device(shown, options).map(|fs| walk(&fs).names.len());
            let sort = match replayed(&device) {
                None => "refused",
                Some(found) => {
                    assert!(shown.is_ok(), "read-only refuses what is replayed: {shown:?}");
                    assert_eq!(found, Vec::<String>::new(), "the replay did damage");
                    "replayed"
                }
            };
            if let Opening::Opened(opened) = drive(&device, &mut choices) {
                assert!(opened.after.is_some(), "opens only once");
            }
            sort
        });
        if let Some(sort) = failures.note(sort) {
            *fates.entry(sort).or_default() += 1;
        }
    }
    println!("{fates:?}, peak of memory {} MiB", memory::peak() >> 20);
    failures.assert_none();
    assert!(memory::peak() < 1536 << 20, "{} bytes of memory", memory::peak());
}

/// Each file's range without checksums answers EIO; the mount, all other files and all that
/// the log says besides stay, as with the kernel.
#[test]
fn a_log_without_checksums_costs_those_ranges_alone() {
    testkit::require!(kernel_btrfs);
    let base = logged();
    let device = Arc::new(Layered::new(&base.device));
    let mut gone = 0;
    for node in base.nodes.iter().filter(|node| node.level == 0) {
        let mut leaf = Leaf::of(&base.node_bytes(&*device, node.logical));
        let before = leaf.items.len();
        leaf.items.retain(|(key, _)| key.kind != kind::EXTENT_CSUM);
        gone += before - leaf.items.len();
        if !leaf.items.is_empty() {
            base.put_node(&device, node.logical, leaf.bytes());
        }
    }
    assert!(gone > 0, "the log had checksums");
    let open =
        btrfs_volume::OpenOptions { read_only: true, ignore_log: true, ..Default::default() };
    let volume = btrfs_volume::Volume::open(device.clone(), open).expect("open the volume");
    let report = btrfs_check::check(Arc::new(volume), &Default::default()).expect("check");
    let told =
        |f: &btrfs_check::Finding| f.tree == Some(TreeId::LOG) && f.kind.code() == "csum-missing";
    assert!(report.findings.iter().any(told), "check tells before the replay");
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("one file is not the mount");
    assert_eq!(fs.read_only_reason(), None);
    let cx = vfs::Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };
    let read = |dir: &[u8], name: &[u8]| {
        let dir = fs.lookup(&cx, fs.root(), dir).expect("directory").attr.ino;
        let file = fs.lookup(&cx, dir, name).expect("the log's names are there").attr.ino;
        let mut content = vec![0; 4096];
        fs.read(file, 0, &mut content).map_err(|error| error.errno())
    };
    assert_eq!(read(b"b", b"new file with a long name 30"), Err(libc::EIO), "logged content");
    assert!(read(b"a", b"one").is_ok(), "committed content");
    drop(fs);
    assert_eq!(replayed(&device), Some(Vec::new()));
}

/// An index that a directory used twice since the commit (its last name went, and the next
/// index was looked up anew) is that of the later name. The kernel's replay fails on it.
#[test]
fn an_index_used_twice_is_the_later_names() {
    testkit::require!(kernel_btrfs);
    let base = logged();
    let device = Arc::new(Layered::new(&base.device));
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    let whole = TreeSnapshot::of(&fs).expect("walk");
    drop(fs);
    let (old, new) = ("b/one", "b/new file with a long name 39");
    assert!(whole.node(old).is_some() && whole.node(new).is_some());
    let dir = whole.node("b").expect("a directory").attr.ino.0;
    let device = Arc::new(Layered::new(&base.device));
    let mut moved = 0;
    for node in base.nodes.iter().filter(|node| node.level == 0) {
        let mut leaf = Leaf::of(&base.node_bytes(&*device, node.logical));
        let bytes = &new.as_bytes()[2..];
        for (key, data) in &mut leaf.items {
            if key.kind == kind::INODE_REF && key.offset == dir && data.ends_with(bytes) {
                data[..8].copy_from_slice(&2u64.to_le_bytes());
                moved += 1;
            }
        }
        leaf.items.retain(|(key, data)| key.kind != kind::DIR_INDEX || !data.ends_with(bytes));
        base.put_node(&device, node.logical, leaf.bytes());
    }
    assert!(moved > 0, "the log has no such name");
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    let seen = TreeSnapshot::of(&fs).expect("walk");
    assert!(seen.node(old).is_none() && seen.node(new).is_some());
    assert_eq!(seen.nodes.len() + 1, whole.nodes.len());
    drop(fs);
    assert_eq!(replayed(&device), Some(Vec::new()));
}

/// Counts reads of what lies in the ranges.
struct Reads {
    of: Vec<Range<u64>>,
    count: AtomicU64,
}

impl RequestHook for Reads {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        if let Request::Read { offset, len } = request
            && self.of.iter().any(|of| offset < of.end && of.start < offset + len as u64)
        {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
        go_on()
    }
}

/// The logs of eight subvolumes are one tree: it is read once, and not once for each of them.
#[test]
fn a_log_whose_trees_share_nodes_is_refused_at_the_first() {
    testkit::require!(kernel_btrfs);
    let base = logged();
    let crafted = Layered::new(&base.device);
    let roots = base.superblock.fields.log_root;
    let mut leaf = Leaf::of(&base.node_bytes(&crafted, roots));
    let [(key, item)] = &leaf.items[..] else { panic!("one subvolume was logged") };
    let of = |subvolume| (Key { offset: subvolume, ..*key }, item.clone());
    leaf.items = (256..264).map(of).collect::<Vec<_>>();
    base.put_node(&crafted, roots, leaf.bytes());
    let size = u64::from(base.geometry.node_size);
    let copies = base.nodes.iter().flat_map(|node| base.copies(node.logical));
    let hook = Reads { of: copies.map(|at| at..at + size).collect(), count: AtomicU64::new(0) };
    let device = Arc::new(Hooked { below: crafted, hook });
    let options = Options { cache_bytes: 0, ..options() };
    let error = BtrfsFs::open_device(device.clone(), options).err().expect("refused");
    assert!(error.to_string().contains("two nodes of the log overlap"), "{error}");
    let (reads, nodes) = (device.hook.count.load(Ordering::SeqCst), base.nodes.len() as u64);
    assert!((nodes..nodes + 2).contains(&reads), "{reads} reads of {nodes} nodes");
}

/// Of a symbolic link that came along, kernels before 5.18 logged that it exists, and not its target;
/// `btrfs-convert` stores the NUL behind one.
fn odd_links(base: &Base, empty: &str, converted: &str) -> Arc<Layered> {
    let device = Arc::new(Layered::new(&base.device));
    let fs = BtrfsFs::open_device(device, options()).expect("open");
    let whole = TreeSnapshot::of(&fs).expect("walk");
    drop(fs);
    let inode = |path| whole.node(path).expect("a link").attr.ino.0;
    let (empty, converted) = (inode(empty), inode(converted));
    let device = Arc::new(Layered::new(&base.device));
    let mut edited = 0;
    for node in base.nodes.iter().filter(|node| node.level == 0) {
        let mut leaf = Leaf::of(&base.node_bytes(&*device, node.logical));
        let before = leaf.items.len();
        leaf.items.retain(|(key, _)| (key.objectid, key.kind) != (empty, kind::EXTENT_DATA));
        edited += before - leaf.items.len();
        for (key, data) in &mut leaf.items {
            if (key.objectid, key.kind) == (empty, kind::INODE_ITEM) {
                let mut item = InodeItem::read(data).expect("an inode");
                (item.generation, item.size) = (0, 0);
                *data = item.to_vec();
            }
            if (key.objectid, key.kind) == (converted, kind::EXTENT_DATA) {
                let len = (data.len() + 1 - FILE_EXTENT_INLINE_HEADER) as u64;
                data[8..16].copy_from_slice(&len.to_le_bytes());
                data.push(0);
                edited += 1;
            }
        }
        base.put_node(&device, node.logical, leaf.bytes());
    }
    assert_eq!(edited, 2, "the log had their targets");
    device
}

fn image_of(device: &Layered, path: &std::path::Path) {
    let file = std::fs::File::create(path).expect("create");
    file.set_len(device.len()).expect("length");
    let mut piece = vec![0; 1 << 20];
    for at in (0..device.len()).step_by(piece.len()) {
        device.read_at(at, &mut piece).expect("in range");
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(&piece, at).expect("write");
        }
    }
}

/// It is empty, as the kernel's replay leaves it, and no harm to what comes later.
#[test]
fn a_symbolic_link_whose_target_was_not_logged_is_empty() {
    testkit::require!(kernel_btrfs);
    let device = odd_links(logged(), "b/short", "b/symlink");
    let dir = TempDir::new("replay").expect("temp dir");
    let image = dir.join("crash.img");
    image_of(&device, &image);
    let seen = crash::judge(&image, &dir);
    assert!(["b/short", "b/symlink"].iter().all(|link| seen.node(link).is_some()));
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    let cx = vfs::Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };
    let in_b = |fs: &BtrfsFs, name: &str| {
        let b = fs.lookup(&cx, fs.root(), b"b").expect("a directory").attr.ino;
        (b, fs.lookup(&cx, b, name.as_bytes()).expect("a link").attr.ino)
    };
    let (b, link) = in_b(&fs, "short");
    assert_eq!(fs.readlink(link).expect("readlink"), []);
    // And then it comes along into a log of our own.
    fs.rename(&cx, b, b"short", b, b"renamed", RenameMode::Replace).expect("rename");
    fs.fsync(b, false).expect("fsync");
    fs.give_up("as a crash");
    drop(fs);
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open behind a crash");
    let (b, link) = in_b(&fs, "renamed");
    assert_eq!(fs.readlink(link).expect("readlink"), []);
    fs.unlink(&cx, b, b"renamed").expect("unlink");
    drop(fs);
    assert_eq!(replayed(&device), Some(Vec::new()));
}

/// Writes behind the first `left` fail and leave nothing.
struct FailsAfter {
    device: Arc<Layered>,
    left: AtomicU64,
}

impl BlockDevice for FailsAfter {
    fn len(&self) -> u64 {
        self.device.len()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buf)
    }
    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_medium(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let one_less = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) {
            Ok(_) => self.device.write_at(offset, buf),
            Err(_) => Err(io::Error::other("the power is gone")),
        }
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn name(&self) -> String {
        "breaks off".into()
    }
}

#[test]
fn a_replay_that_breaks_off_is_done_again() {
    testkit::require!(kernel_btrfs);
    let base = logged();
    let device = Arc::new(Layered::new(&base.device));
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    let whole = TreeSnapshot::of(&fs).expect("walk");
    let writes = device.writes();
    drop(fs);
    assert!(whole.node("b/symlink").is_some() && writes > 10, "{writes} writes");
    for left in 0..writes {
        let device = Arc::new(Layered::new(&base.device));
        let broken = FailsAfter { device: device.clone(), left: AtomicU64::new(left) };
        let opened = BtrfsFs::open_device(Arc::new(broken), options());
        assert!(opened.is_err() || left + 1 >= writes, "{left} writes are enough");
        drop(opened);
        let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
        common::assert_same(&whole, &TreeSnapshot::of(&fs).expect("walk"));
        drop(fs);
        assert_eq!(replayed(&device), Some(Vec::new()), "after {left} writes");
    }
}
