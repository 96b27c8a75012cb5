//! Images made by mkfs.btrfs and the kernel, and what `btrfs check` says of them.
//!
//! Needs root, loop devices and btrfs-progs; `ready()` tells, and prints why not.

#![allow(dead_code)]

use blockdev::FileDevice;
use btrfs_check::{CheckOptions, Report, check};
use btrfs_volume::{OpenOptions, Volume};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use testkit::oracle::KernelMount;

pub const LOAD: &str = include_str!("load.sh");

/// True if kernel images can be made here; says why not otherwise.
pub fn ready() -> bool {
    let script = "test \"$(id -u)\" = 0 || { echo 'not root'; exit 1; }
        command -v mkfs.btrfs setfattr >/dev/null || { echo 'no mkfs.btrfs or setfattr'; exit 1; }
        grep -qw btrfs /proc/filesystems || modprobe btrfs 2>/dev/null \
            || { echo 'no btrfs in this kernel'; exit 1; }
        test -e /dev/loop-control || { echo 'no loop devices'; exit 1; }";
    let output = Command::new("sh").args(["-c", script]).output().expect("sh runs");
    if !output.status.success() {
        println!("SKIPPED: {}", String::from_utf8_lossy(&output.stdout).trim());
    }
    output.status.success()
}

/// A directory of this test's own, removed with everything in it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = PathBuf::from(format!("/tmp/btrfs-check/{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("scratch directory");
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a script; panics with its output if it fails.
pub fn sh(script: &str) -> String {
    let output = Command::new("bash").args(["-c", script]).output().expect("bash runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "script failed: {}\n{}\n{}",
        script.lines().next().unwrap_or(""),
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Makes an image and lets `load` run inside its mount.
pub struct Recipe<'a> {
    pub size: &'a str,
    pub mkfs: &'a str,
    pub mount: &'a str,
    /// Runs before the load, in the mounted root.
    pub before: &'a str,
    /// Runs after the load.
    pub after: &'a str,
}

impl Default for Recipe<'_> {
    fn default() -> Self {
        Recipe { size: "1G", mkfs: "", mount: "noatime", before: "", after: "" }
    }
}

pub fn make(image: &Path, recipe: &Recipe<'_>) {
    let Recipe { size, mkfs, mount, before, after } = recipe;
    mkfs_btrfs(image, size, &format!("mkfs.btrfs {mkfs}"));
    mounted(image, mount, &format!("{{ {before}\ntrue; }} && {{ {LOAD}\n{after}\ntrue; }}"));
}

/// A fresh volume of `size` (as `truncate` reads it), by the program and its options in `mkfs`.
pub fn mkfs_btrfs(image: &Path, size: &str, mkfs: &str) {
    sh(&format!(
        "image={}; rm -f $image; truncate -s {size} $image || exit 1
        said=$({mkfs} -q $image 2>&1 >/dev/null) || {{ echo \"$said\"; exit 1; }}",
        image.display()
    ));
}

/// Runs a script in the mount of `image`, which it knows as `$image`; what it printed. The
/// kernel has closed the volume when this returns.
pub fn mounted(image: &Path, options: &str, script: &str) -> String {
    let mount = KernelMount::new(image, options).expect("mount");
    let said = sh(&format!(
        "image={}; cd {} || exit 1
        {script}",
        image.display(),
        mount.path().display()
    ));
    mount.unmount().expect("unmounted");
    said
}

/// A sparse copy.
pub fn copy(from: &Path, to: &Path) {
    sh(&format!("cp --sparse=always {} {}", from.display(), to.display()));
}

pub fn open(image: &Path) -> Arc<Volume> {
    let device = FileDevice::open(image, true, true).expect("image opens");
    let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    Arc::new(Volume::open(Arc::new(device), options).expect("volume opens"))
}

pub fn ours(image: &Path, verify_data: bool) -> Report {
    let options = CheckOptions { verify_data, ..CheckOptions::default() };
    check(open(image), &options).expect("the check runs")
}

/// Whether `btrfs check` is content, and what it said.
pub fn theirs(image: &Path) -> (bool, String) {
    let output = Command::new("btrfs")
        .args(["check", "--force"])
        .arg(image)
        .output()
        .expect("btrfs check runs");
    let both = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&both).into_owned())
}

pub fn listing(report: &Report) -> String {
    let lines = report.findings.iter().take(20);
    lines.map(|f| format!("  {} {}: {f}\n", f.severity.name(), f.kind.code())).collect()
}

/// Both sides find nothing.
pub fn assert_sound(image: &Path, what: &str, verify_data: bool) -> Report {
    let report = ours(image, verify_data);
    assert!(
        report.findings.is_empty() && report.left_off == 0,
        "{what}: findings on a sound volume:\n{}",
        listing(&report)
    );
    let (fine, said) = theirs(image);
    assert!(fine, "{what}: btrfs check complains:\n{said}");
    report
}
