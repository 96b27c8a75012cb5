//! What the tests of the program share: running it, and images of their own.
#![allow(dead_code, unused_imports)]

pub mod alike;
pub mod mount;
pub mod origins;
pub mod streams;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use testkit::compare::TreeSnapshot;
pub use testkit::oracle::{KernelMount, SCRUB, TempDir, assert_clean, mkfs_btrfs};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_spinney");
pub const MIB: u64 = 1 << 20;

/// Names the directory where scrubs are written down.
const PLACE: &str = "SPINNEY_SCRUB_RECORDS";

thread_local! {
    /// Goes with the test, which has a thread of its own.
    static RECORDS: TempDir = TempDir::new("scrubs").expect("scratch directory");
}

/// Where scrubs of this test are written down, and no other's.
pub fn records() -> PathBuf {
    RECORDS.with(|dir| dir.path().to_owned())
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn spinney<S: AsRef<OsStr>>(words: &[S]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(words).stdin(Stdio::null()).env("LC_ALL", "C").env(PLACE, records());
    command.output().expect("spinney runs")
}

/// Standard output of a command that must succeed and complain about nothing.
pub fn fine<S: AsRef<OsStr>>(words: &[S]) -> String {
    let output = spinney(words);
    let shown: Vec<_> = words.iter().map(|w| w.as_ref().to_string_lossy()).collect();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{shown:?}: {said}");
    // Who makes a mount namespace has every mount for a while: `umount` waits, and tells of it.
    let others = |line: &str| line.contains("it is mounted in another mount namespace, too");
    assert!(said.lines().all(others), "{shown:?}: {said}");
    text(&output.stdout)
}

/// Exit code and standard error of a command that must fail.
pub fn failing<S: AsRef<OsStr>>(words: &[S]) -> (i32, String) {
    let output = spinney(words);
    let shown: Vec<_> = words.iter().map(|w| w.as_ref().to_string_lossy()).collect();
    assert!(!output.status.success(), "{shown:?} succeeded: {}", text(&output.stdout));
    (output.status.code().expect("exit code"), text(&output.stderr))
}

pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// `image:/path` as a word.
pub fn at(image: &Path, path: &str) -> String {
    format!("{}:{path}", image.display())
}

/// Where each copy of the bytes at a logical address lies.
pub fn copies(image: &Path, logical: u64) -> Vec<u64> {
    let map = sh(&format!("btrfs-map-logical -b 4096 -l {logical} {}", image.display()));
    assert!(map.status.success(), "{}", text(&map.stderr));
    let place = |line: &str| line.split(' ').nth(5).and_then(|at| at.parse().ok());
    let places: Vec<u64> = text(&map.stdout).lines().filter_map(place).collect();
    assert!(!places.is_empty(), "nothing lies at {logical}");
    places
}

/// The numbers behind `word`, each at the beginning of a line of what a dump tells.
pub fn told_behind(dump: &str, word: &str) -> Vec<u64> {
    let at = |line: &str| line.trim().strip_prefix(word)?.split(' ').next()?.parse().ok();
    dump.lines().filter_map(at).collect()
}

/// A fresh image by `mkfs.btrfs`, in a directory that goes with it.
pub struct Image {
    pub dir: TempDir,
    pub path: PathBuf,
}

impl Image {
    pub fn new(name: &str) -> Image {
        Image::with(name, &[])
    }

    pub fn with(name: &str, options: &[&str]) -> Image {
        let dir = TempDir::new(name).expect("scratch directory");
        let path = dir.join("disk.img");
        mkfs_btrfs(&path, 512 * MIB, options).expect("mkfs.btrfs");
        Image { dir, path }
    }

    pub fn at(&self, path: &str) -> String {
        at(&self.path, path)
    }

    pub fn word(&self) -> String {
        self.path.display().to_string()
    }
}

/// Waits until `done`, at most for a while.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn sh(script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null()).env("LC_ALL", "C").env(PLACE, records());
    command.output().expect("sh")
}

/// All but the places of subvolumes in snapshots, which have one inode for all.
pub fn without_stand_ins(tree: &TreeSnapshot) -> TreeSnapshot {
    let stand_in = |path: &str| path.starts_with("/snap-") && path.ends_with("/nested");
    let mut tree = tree.clone();
    tree.nodes.retain(|path, _| !stand_in(&format!("{path:?}")));
    tree
}

/// Why this machine cannot mount as an ordinary user, if it cannot.
pub fn no_ordinary_users() -> Option<&'static str> {
    let set_uid =
        |path: &str| fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o4000 != 0);
    if !set_uid("/usr/bin/fusermount3") && !set_uid("/bin/fusermount3") {
        return Some("fusermount3 is not installed with set-user-ID");
    }
    (!sh("setpriv --help").status.success()).then_some("no setpriv here")
}

/// Runs it in the image's directory, which is his from now on, with the program and `mnt` beside.
pub fn as_ordinary_user(image: &Image, script: &str) {
    let dir = image.dir.path().display();
    let done = sh(&format!(
        "set -e; cd {dir}; cp {PROGRAM} spinney; mkdir mnt; chown -R 65534:65534 .; chmod 755 .
         exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec '{script}'"
    ));
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
}

/// /dev/fuse with the permissions that it has where udev makes it. One test at a time, since
/// it puts the old ones back.
pub struct OpenToAll {
    before: u32,
    _held: fs::File,
}

impl OpenToAll {
    pub fn new() -> OpenToAll {
        let device = fs::File::open("/dev/fuse").unwrap();
        device.lock().unwrap();
        let before = fs::metadata("/dev/fuse").unwrap().permissions().mode();
        fs::set_permissions("/dev/fuse", Permissions::from_mode(0o666)).unwrap();
        OpenToAll { before, _held: device }
    }
}

impl Drop for OpenToAll {
    fn drop(&mut self) {
        let _ = fs::set_permissions("/dev/fuse", Permissions::from_mode(self.before));
    }
}
