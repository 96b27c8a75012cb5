//! The example serves a file system that is not btrfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use testkit::oracle::TempDir;

/// Where cargo puts the examples of this build. `cargo test --test example` alone does not
/// build them.
fn program() -> PathBuf {
    let me = std::env::current_exe().expect("this test");
    let target = me.ancestors().nth(2).expect("target/PROFILE/deps/THIS");
    let program = target.join("examples/serve_hello");
    if !program.exists() {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--examples"]);
        if target.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success());
    }
    program
}

/// Ends with the mount.
struct Served(Child, PathBuf);

impl Drop for Served {
    fn drop(&mut self) {
        if is_mounted(&self.1) {
            let _ = Command::new("umount").arg("-l").arg(&self.1).status();
        }
        let _ = self.0.wait();
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_mounted(point: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").expect("mount table");
    table.lines().any(|line| line.split(' ').nth(1).map(Path::new) == Some(point))
}

#[test]
fn another_file_system_is_served() {
    testkit::require!(fuse);
    let dir = TempDir::new("fuse-hello").expect("scratch");
    let point = dir.join("mnt");
    fs::create_dir(&point).expect("mount point");
    let child = Command::new(program()).arg(&point).spawn().expect("the example");
    let served = Served(child, point.clone());
    until("mounted", || is_mounted(&point));
    let mut names: Vec<_> =
        fs::read_dir(&point).expect("list").map(|e| e.expect("entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["empty", "hello.txt"]);
    let text = fs::read_to_string(point.join("hello.txt")).expect("read");
    assert_eq!(text, "hello from a file system of its own\n");
    assert_eq!(fs::read(point.join("empty")).expect("read"), b"");
    let refused = fs::write(point.join("new"), "x").expect_err("read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(Command::new("umount").arg(&point).status().expect("umount").success());
    drop(served);
    assert!(!is_mounted(&point));
}
