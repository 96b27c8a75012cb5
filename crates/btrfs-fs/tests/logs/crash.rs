//! Logs that the kernel leaves: its volume, copied under its hands as a crash would leave
//! it; and the judgement that the kernel's replay and ours, written or not, agree.

use crate::common;
use crate::common::kernel::kernel;
use blockdev::{BlockDevice, FileDevice};
use btrfs_disk::Superblock;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use btrfs_fs::{BtrfsFs, Options};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::compare::{Rules, TimeRule, TreeSnapshot, diff};
use testkit::oracle::{self, KernelMount, TempDir};
use testkit::posix_ops::PosixFs;
use vfs::{FileKind, FileSystem};

/// No commit comes by itself while a test runs.
pub const MOUNT: &str = "noatime,commit=300";

pub fn copy(from: &Path, to: &Path) {
    let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
    oracle::sh("cp", &["--sparse=always", &*from, &*to]).expect("copy the image");
}

/// Copies a mounted image, once more where a commit came between: a crash has one moment.
pub fn copy_live(live: &Path, to: &Path) {
    let state = || {
        let fields = superblock(live).fields;
        (fields.generation, fields.log_root)
    };
    for _ in 0..10 {
        let before = state();
        copy(live, to);
        if state() == before {
            return;
        }
    }
    panic!("the volume is never at rest");
}

pub fn superblock(image: &Path) -> Superblock {
    let device = FileDevice::open(image, true, false).expect("open the image");
    let mut bytes = [0; SUPER_SIZE];
    device.read_at(COPIES[0], &mut bytes).expect("read the superblock");
    Superblock::parse(&bytes, COPIES[0]).expect("a superblock")
}

pub fn has_log(image: &Path) -> bool {
    superblock(image).fields.log_root.0 != 0
}

/// A crash of the kernel's btrfs: `base` is committed, `work` is not but for what it
/// syncs. The image is as of the end of `work`.
pub struct Crash {
    pub image: PathBuf,
    dir: TempDir,
}

impl Crash {
    pub fn new(
        mkfs: &[&str],
        options: &str,
        base: impl FnOnce(&PosixFs, &KernelMount),
        work: impl FnOnce(&PosixFs, &KernelMount),
    ) -> Crash {
        let dir = TempDir::new("replay").expect("temp dir");
        let (live, image) = (dir.join("live.img"), dir.join("crash.img"));
        oracle::mkfs_btrfs(&live, 256 << 20, mkfs).expect("mkfs.btrfs");
        let options = format!("{MOUNT},{options}");
        let mount = KernelMount::new(&live, options.trim_end_matches(',')).expect("mount");
        {
            let fs = PosixFs::open(mount.path()).expect("open the mount");
            base(&fs, &mount);
            fs.sync().expect("sync");
            work(&fs, &mount);
            copy_live(&live, &image);
        }
        mount.unmount().expect("unmount");
        std::fs::remove_file(&live).expect("remove");
        Crash { image, dir }
    }

    /// As `judge`; the log must be there.
    pub fn judge(&self) -> TreeSnapshot {
        assert!(has_log(&self.image), "the kernel left no log");
        judge(&self.image, &self.dir)
    }

    /// As `judge`, where all of `live` was synced and the kernel is not to replay.
    pub fn judge_without_kernel(&self, live: &TreeSnapshot) {
        assert!(has_log(&self.image), "the kernel left no log");
        let shown = open(&self.image, read_only()).expect("open read-only with a log");
        same("shown read-only", live, &TreeSnapshot::of(&shown).expect("walk"));
        drop(shown);
        let fs = open(&self.image, Options::default()).expect("open read-write with a log");
        same("replayed", live, &TreeSnapshot::of(&fs).expect("walk"));
        fs.destroy().expect("close");
        drop(fs);
        common::judge(&self.image, live);
        common::check_ourselves(&self.image);
    }
}

pub fn open(image: &Path, options: Options) -> Result<BtrfsFs, vfs::FsError> {
    let device: Arc<dyn BlockDevice> =
        Arc::new(common::Cached(common::open_device(image, options.read_only)));
    BtrfsFs::open_device(device, Options { background: false, ..options })
}

pub fn read_only() -> Options {
    Options { read_only: true, ..Options::default() }
}

/// The kernel's replay, our read-only view and our replay show the same; ours leaves a
/// sound volume, which the kernel reads as we do. Answers what they show.
pub fn judge(image: &Path, dir: &TempDir) -> TreeSnapshot {
    common::check_ourselves(image);
    let (by_kernel, by_us) = (dir.join("kernel.img"), dir.join("ours.img"));
    copy(image, &by_kernel);
    copy(image, &by_us);
    let look = |mount: &KernelMount| TreeSnapshot::of_dir(mount.path()).expect("walk the mount");
    let expected = kernel(&by_kernel, "noatime", look);
    let shown = {
        let fs = open(image, read_only()).expect("open read-only with a log");
        TreeSnapshot::of(&fs).expect("walk what is shown read-only")
    };
    assert_eq!(shown.contradictions(), Vec::<String>::new(), "read-only");
    same("shown read-only", &expected, &shown);
    let fs = open(&by_us, Options::default()).expect("open read-write with a log");
    assert!(!has_log(&by_us), "the log is replayed and still there");
    let replayed = TreeSnapshot::of(&fs).expect("walk what we replayed");
    same("replayed", &expected, &replayed);
    fs.destroy().expect("close");
    drop(fs);
    oracle::assert_clean(&by_us);
    common::check_ourselves(&by_us);
    let read = kernel(&by_us, "noatime", look);
    same("replayed, read by the kernel", &expected, &read);
    for path in [&by_kernel, &by_us] {
        std::fs::remove_file(path).expect("remove");
    }
    expected
}

/// Path for path, byte for byte. A replay that takes names out of a directory may give it
/// the time of the replay.
fn same(what: &str, expected: &TreeSnapshot, seen: &TreeSnapshot) {
    let rules = Rules { mtime: TimeRule::Set, ..Rules::default() };
    let differences = diff(expected, seen, &rules);
    let listed: Vec<String> = differences.iter().take(10).map(ToString::to_string).collect();
    assert!(differences.is_empty(), "{what}: {} differences: {listed:#?}", differences.len());
    for (path, node) in expected.nodes.iter().filter(|(_, n)| n.attr.kind != FileKind::Dir) {
        assert_eq!(node.attr.mtime, seen.nodes[path].attr.mtime, "{what}: mtime of {path:?}");
    }
}
