//! What this machine lets a test do, and how a test says that it did not run.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::command::run;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    pub root: bool,
    pub loop_devices: bool,
    /// The kernel has btrfs.
    pub btrfs: bool,
    /// `mkfs.btrfs` and `btrfs` are installed.
    pub btrfs_progs: bool,
    pub fuse: bool,
}

impl Capabilities {
    /// Why the kernel's btrfs cannot be used, if so.
    pub fn lacking_kernel_btrfs(&self) -> Option<&'static str> {
        let needs = [
            (self.root, "needs root"),
            (self.loop_devices, "no loop devices"),
            (self.btrfs, "the kernel has no btrfs"),
            (self.btrfs_progs, "btrfs-progs is not installed"),
        ];
        needs.into_iter().find(|(there, _)| !there).map(|(_, why)| why)
    }
}

fn kernel_has(name: &str) -> bool {
    let known = || fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let listed = || known().lines().any(|line| line.split_whitespace().last() == Some(name));
    listed() || (run("modprobe", &[name]).success() && listed())
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uid.and_then(|line| line.split_whitespace().nth(1)) == Some("0")
}

/// Looked up once per process.
pub fn capabilities() -> Capabilities {
    static FOUND: OnceLock<Capabilities> = OnceLock::new();
    *FOUND.get_or_init(|| Capabilities {
        root: is_root(),
        loop_devices: Path::new("/dev/loop-control").exists(),
        btrfs: kernel_has("btrfs"),
        btrfs_progs: run("mkfs.btrfs", &["--version"]).success()
            && run("btrfs", &["--version"]).success(),
        fuse: Path::new("/dev/fuse").exists() && kernel_has("fuse"),
    })
}

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Tests (or parts) that this process skipped.
pub fn skip_count() -> usize {
    SKIPPED.load(Ordering::Relaxed)
}

/// Tells that something was skipped: on standard output, in the count, and as a line
/// of the file that `SPINNEY_SKIPS` names. Use `skip!` or `require!`.
pub fn record_skip(place: &str, why: &str) {
    SKIPPED.fetch_add(1, Ordering::Relaxed);
    println!("SKIPPED: {why} ({place})");
    let Some(path) = std::env::var_os("SPINNEY_SKIPS") else { return };
    let file = fs::OpenOptions::new().append(true).create(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(format!("{place}: {why}\n").as_bytes()));
    if let Err(error) = written {
        println!("SKIPPED: cannot be noted in {}: {error}", Path::new(&path).display());
    }
}

/// Ends the test here, and says why. The message is built as by `format!`.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        $crate::oracle::record_skip(
            concat!(module_path!(), " ", file!(), ":", line!()),
            &format!($($why)*),
        );
        return Default::default();
    }};
}

/// Goes on only if the machine has what is named: `kernel_btrfs`, `fuse`, `root`, or
/// any condition with a reason.
#[macro_export]
macro_rules! require {
    (kernel_btrfs) => {
        if let Some(why) = $crate::oracle::capabilities().lacking_kernel_btrfs() {
            $crate::skip!("{why}");
        }
    };
    (btrfs_progs) => {
        $crate::require!(
            $crate::oracle::capabilities().btrfs_progs,
            "btrfs-progs is not installed"
        )
    };
    (fuse) => {
        $crate::require!(
            $crate::oracle::capabilities().fuse && $crate::oracle::capabilities().root,
            "no FUSE, or not root"
        )
    };
    (root) => {
        $crate::require!($crate::oracle::capabilities().root, "needs root")
    };
    ($condition:expr, $($why:tt)*) => {
        if !$condition {
            $crate::skip!($($why)*);
        }
    };
}
