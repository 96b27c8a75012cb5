//! Images, volumes and judges for the engine's tests.
#![allow(dead_code)]

pub mod asleep;
pub mod dump;
pub mod existing;
pub mod forge;
pub mod full;
pub mod kernel;
pub mod likeness;
pub mod places;
pub mod unreadable;

use blockdev::{BlockDevice, FileDevice};
use btrfs_check::FindingKind;
use btrfs_fs::{BalanceState, BalanceStatus, BtrfsFs, Options};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::oracle::{self, TempDir};
use vfs::{Context, FileKind, FileSystem, Ino};

pub const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };

/// 0: it went well.
pub fn errno<T>(result: vfs::Result<T>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

/// Tells all to stop, also where the thread that has it panics.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A counter of the engine's.
pub fn stat(fs: &dyn FileSystem, name: &str) -> u64 {
    fs.stats().into_iter().find(|s| s.name == name).expect("a counter").value
}

/// What lost its name is gone, also what is erased in the background; not what a commit still has.
pub fn wait_until_erased(fs: &dyn FileSystem) {
    let start = std::time::Instant::now();
    while stat(fs, "inodes.to_erase") > 0 {
        assert!(start.elapsed().as_secs() < 100, "nobody erases it");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A new file in the top directory.
pub fn new_file(fs: &dyn FileSystem, name: &str, content: &[u8]) -> Ino {
    let made = fs.mknod(&CX, fs.root(), name.as_bytes(), FileKind::File, 0o644, 0);
    let ino = made.expect("create").attr.ino;
    fs.write(&CX, ino, 0, content, Default::default()).expect("write");
    ino
}

/// What a name in a directory stands for, with a lookup's reference.
pub fn find(fs: &BtrfsFs, dir: Ino, name: &str) -> Option<Ino> {
    fs.lookup(&CX, dir, name.as_bytes()).ok().map(|entry| entry.attr.ino)
}

/// All of the file of that name.
pub fn read(fs: &BtrfsFs, dir: Ino, name: &str) -> Vec<u8> {
    let ino = find(fs, dir, name).unwrap_or_else(|| panic!("{name} is not there"));
    let mut content = vec![0; fs.getattr(ino).expect("there").size as usize];
    assert_eq!(fs.read(ino, 0, &mut content).expect("read"), content.len());
    fs.forget(ino, 1);
    content
}

/// Names of files, and what is in them.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What is in a subvolume.
pub fn files_of(fs: &BtrfsFs, sub: &str) -> Files {
    let dir = find(fs, fs.root(), sub).expect("there");
    let mut names = Vec::new();
    let listed = fs.readdir(dir, 0, &mut |entry| {
        if entry.kind == FileKind::File {
            names.push(String::from_utf8(entry.name.to_vec()).expect("UTF-8"));
        }
        true
    });
    listed.expect("list");
    let files = names.into_iter().map(|name| (name.clone(), read(fs, dir, &name))).collect();
    fs.forget(dir, 1);
    files
}

/// Where the copies of `logical` lie on the device.
pub fn copies(image: &Image, logical: u64) -> Vec<u64> {
    let open = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let device = Arc::new(open_device(&image.path, true));
    let chunks = btrfs_volume::Volume::open(device, open).expect("open").chunks();
    let chunk = chunks.iter().find(|c| (c.logical.0..c.end()).contains(&logical)).expect("there");
    chunk.stripes.iter().map(|(_, at)| at.0 + logical - chunk.logical.0).collect()
}

/// The image as a crash would leave it now, beside it.
pub fn crashed(image: &Image, name: &str) -> PathBuf {
    let copy = image.path.with_file_name(name);
    let status = std::process::Command::new("cp")
        .args(["--reflink=auto", "--sparse=always"])
        .args([&image.path, &copy])
        .status();
    assert!(status.expect("cp").success());
    copy
}

/// Nothing half done: not poisoned, and all judges see what we saw.
pub fn close_and_judge(image: &Image, fs: BtrfsFs) {
    assert_eq!(fs.read_only_reason(), None);
    let expected = snapshot(&fs);
    fs.destroy().expect("close");
    drop(fs);
    judge(&image.path, &expected);
    check_ourselves(&image.path);
    assert_same(&expected, &snapshot(&image.open()));
}

/// What a balance has come to, when it is not running any more; before `limit`.
pub fn end_of_balance(fs: &BtrfsFs, limit: Duration) -> BalanceStatus {
    let end = Instant::now() + limit;
    loop {
        let status = fs.balance_status().expect("status");
        if status.state != BalanceState::Running {
            return status;
        }
        assert!(Instant::now() < end, "the balance ends");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Seeds of a random test, `count` from `first` on unless `SPINNEY_SEED` and `SPINNEY_SEEDS`
/// say others.
pub fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let first = number("SPINNEY_SEED", first);
    first..first + number("SPINNEY_SEEDS", count)
}

/// Steps of each, unless `SPINNEY_STEPS` says how many.
pub fn steps(default: usize) -> usize {
    number("SPINNEY_STEPS", default as u64) as usize
}

pub struct Image {
    pub path: PathBuf,
    _dir: TempDir,
}

impl Image {
    /// An image that `mkfs.btrfs` made.
    pub fn new(size: u64, options: &[&str]) -> Image {
        let dir = TempDir::new("btrfs-fs").expect("temp dir");
        let path = dir.join("disk.img");
        oracle::mkfs_btrfs(&path, size, options).expect("mkfs.btrfs");
        Image { path, _dir: dir }
    }

    /// An image that our own mkfs made, with a block-group tree.
    pub fn with_block_group_tree(size: u64) -> Image {
        let dir = TempDir::new("btrfs-fs").expect("temp dir");
        let path = dir.join("disk.img");
        let device = FileDevice::create(&path, size).expect("create image");
        let mut options = btrfs_image::mkfs::MkfsOptions::default();
        options.features.block_group_tree = true;
        btrfs_image::mkfs::make(&device, &options).expect("mkfs");
        Image { path, _dir: dir }
    }

    /// As it is now, in a place of its own.
    pub fn copy(&self, name: &str) -> Image {
        let dir = TempDir::new("btrfs-fs").expect("temp dir");
        let path = dir.join("disk.img");
        std::fs::rename(crashed(self, name), &path).expect("move");
        Image { path, _dir: dir }
    }

    pub fn open(&self) -> BtrfsFs {
        self.open_with(Options { background: false, ..Options::default() })
    }

    /// Each commit is judged by our own check, before the next one begins.
    pub fn open_checked(&self, options: Options) -> BtrfsFs {
        let device: Arc<dyn BlockDevice> = Arc::new(Cached(open_device(&self.path, false)));
        let judged = device.clone();
        // What has landed may lie behind the size until what is in front of it has: a note.
        let look = move || check_device(judged.clone(), false, btrfs_check::Severity::Warning);
        let injection = btrfs_fs::Injection::after_commit(look);
        BtrfsFs::open_device(device, Options { injection, ..options }).expect("open volume")
    }

    pub fn open_with(&self, options: Options) -> BtrfsFs {
        open_image(&self.path, options)
    }
}

/// Odd seeds keep no inode in memory that can be loaded again, whether callers hold it or not.
pub fn inodes(seed: u64) -> Options {
    let default = Options::default();
    let inode_bytes = if seed % 2 == 1 { 0 } else { default.inode_bytes };
    Options { inode_bytes, ..default }
}

pub fn open_image(path: &Path, options: Options) -> BtrfsFs {
    let device = open_device(path, options.read_only);
    let device: Arc<dyn BlockDevice> = Arc::new(Cached(device));
    BtrfsFs::open_device(device, options).expect("open volume")
}

pub fn open_device(path: &Path, read_only: bool) -> FileDevice {
    FileDevice::open(path, read_only, false).expect("open image")
}

/// A file whose flushes do nothing: the machine under these tests does not crash, and all
/// who look at the image see what the page cache has.
pub struct Cached(pub FileDevice);

impl BlockDevice for Cached {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_only(&self) -> bool {
        self.0.read_only()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_medium(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, buf)
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> std::io::Result<()> {
        self.0.write_vectored_at(offset, bufs)
    }
    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.0.discard(offset, len)
    }
    fn name(&self) -> String {
        self.0.name()
    }
}

/// What the judges say of the image: `btrfs check` and our own, the kernel's mount with the
/// same content as `expected`, scrub.
pub fn judge(image: &Path, expected: &TreeSnapshot) {
    assert_sound(image);
    let seen = oracle::with_kernel(image, "ro,noatime", |mount| {
        TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
    })
    .expect("the kernel mounts the volume");
    assert_same(expected, &seen);
    oracle::with_kernel(image, "noatime", |mount| oracle::scrub(mount).expect("scrub"))
        .expect("the kernel mounts the volume read-write");
    assert_sound(image);
}

/// Neither `btrfs check` nor our own check finds anything.
pub fn assert_sound(image: &Path) {
    oracle::assert_clean(image);
    check_ourselves(image);
}

/// Our own check of the whole image.
pub fn check_ourselves(image: &Path) {
    check_device(Arc::new(open_device(image, true)), true, btrfs_check::Severity::Note);
}

/// Fails on what is `least` bad or worse.
pub fn check_device(device: Arc<dyn BlockDevice>, verify_data: bool, least: btrfs_check::Severity) {
    let options = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let volume = btrfs_volume::Volume::open(device, options).expect("open the volume");
    let options = btrfs_check::CheckOptions { verify_data, ..Default::default() };
    let report = btrfs_check::check(Arc::new(volume), &options).expect("check");
    // mkfs.btrfs leaves some behind in a few formats, and kernels before 5.18 left such links.
    let left = |kind: &FindingKind| {
        matches!(kind, FindingKind::FreeSpaceLeft | FindingKind::SymlinkEmpty { .. })
    };
    let bad = |finding: &&btrfs_check::Finding| finding.severity >= least && !left(&finding.kind);
    let findings = report.findings.iter().filter(bad);
    let found: Vec<String> = findings.map(ToString::to_string).collect();
    assert!(found.is_empty(), "our check finds {found:#?}");
}

/// What `btrfs check` says of an image in memory, content among it.
pub fn judge_image(image: &blocksim::Image) {
    testkit::require!(btrfs_progs);
    let dir = TempDir::new("judged").expect("temp dir");
    let path = dir.join("disk.img");
    image.export(&path).expect("export");
    oracle::assert_clean(&path);
}

/// Neither our own check nor `btrfs check` finds anything on a device, or what is less than `least`.
pub fn judge_device(device: Arc<dyn BlockDevice>, least: btrfs_check::Severity) {
    check_device(device.clone(), true, least);
    testkit::require!(btrfs_progs);
    let dir = TempDir::new("judged").expect("temp dir");
    let path = dir.join("disk.img");
    let file = FileDevice::create(&path, device.len()).expect("create image");
    let mut piece = vec![0; 1 << 20];
    for at in (0..device.len()).step_by(piece.len()) {
        let len = piece.len().min((device.len() - at) as usize);
        device.read_at(at, &mut piece[..len]).expect("read");
        if piece[..len].iter().any(|byte| *byte != 0) {
            file.write_at(at, &piece[..len]).expect("write");
        }
    }
    drop(file);
    oracle::assert_clean(&path);
}

/// Fails with a short list of what differs.
pub fn assert_same(expected: &TreeSnapshot, seen: &TreeSnapshot) {
    let differences = diff(expected, seen, &rules());
    let listed: Vec<String> = differences.iter().take(10).map(ToString::to_string).collect();
    assert!(differences.is_empty(), "{} differences: {listed:#?}", differences.len());
}

/// All that must survive a trip through the volume.
pub fn rules() -> Rules {
    Rules::default()
}

pub fn snapshot(fs: &dyn FileSystem) -> TreeSnapshot {
    TreeSnapshot::of(fs).expect("walk the volume")
}
