//! Scratch directories, loop mounts that clean up after themselves, and outside judges.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use testkit::oracle::KernelMount;

pub const MIB: u64 = 1 << 20;

pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(format!("/tmp/btrfs-image/{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("scratch directory");
        Scratch(dir)
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

pub fn run(command: &mut Command) -> String {
    let (ok, text) = try_run(command);
    assert!(ok, "{command:?} failed:\n{text}");
    text
}

/// Success, and everything that the program said.
pub fn try_run(command: &mut Command) -> (bool, String) {
    let output = command.output().expect("program starts");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.success(), text)
}

pub fn have(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        println!("SKIPPED: {program} is not installed");
    }
    there
}

/// `btrfs check` must be silent about trouble.
pub fn check(image: &Path) {
    let text = run(Command::new("btrfs").args(["check", "--readonly"]).arg(image));
    assert!(text.contains("no error found"), "{text}");
    for word in ["warning", "WARNING", "ERROR", "mismatch"] {
        assert!(!text.contains(word), "{text}");
    }
}

/// A kernel mount of an image.
pub struct Mount {
    kernel: KernelMount,
    pub dir: PathBuf,
}

impl Mount {
    /// `None`, with the reason printed, where this machine cannot mount.
    pub fn new(image: &Path) -> Option<Mount> {
        testkit::require!(kernel_btrfs);
        let kernel = KernelMount::new(image, "").expect("mount");
        let dir = kernel.path().to_path_buf();
        Some(Mount { kernel, dir })
    }

    /// Unmounts, so that the image is whole.
    pub fn done(self) {
        self.kernel.unmount().expect("unmounted");
    }
}
