//! Image files, loop devices and kernel mounts that go away again, also when a test fails.

use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::oracle::KernelMount;

/// Runs a bash script; its output is the panic's message if it fails.
pub fn bash(script: &str) -> String {
    let out =
        Command::new("bash").args(["-euo", "pipefail", "-c", script]).output().expect("bash runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{script}\n{text}\n{}", String::from_utf8_lossy(&out.stderr));
    text
}

fn has(command: &str) -> bool {
    Command::new("bash")
        .args(["-c", &format!("command -v {command}")])
        .output()
        .is_ok_and(|out| out.status.success())
}

/// Why this machine cannot make real images, if it cannot.
pub fn missing() -> Option<String> {
    for tool in ["mkfs.btrfs", "btrfs", "losetup", "xfs_io", "setfattr", "setfacl", "chattr"] {
        if !has(tool) {
            return Some(format!("no {tool}"));
        }
    }
    let euid = bash("id -u");
    if euid.trim() != "0" {
        return Some("not root".to_string());
    }
    let kernel = bash("modprobe btrfs 2>/dev/null || true; cat /proc/filesystems");
    if !kernel.contains("btrfs") {
        return Some("the kernel has no btrfs".to_string());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("no loop devices".to_string());
    }
    None
}

/// True (and says so) if the test cannot run here.
pub fn skipped() -> bool {
    match missing() {
        Some(why) => {
            println!("SKIPPED: {why}");
            true
        }
        None => false,
    }
}

/// A directory of its own under /tmp, removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let dir = PathBuf::from(format!("/tmp/btrfs-disk/{name}.{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("scratch directory");
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An image with a fresh volume.
pub struct Image {
    pub path: PathBuf,
}

impl Image {
    pub fn make(scratch: &Scratch, name: &str, size: &str, mkfs: &str) -> Image {
        Image::make_by("mkfs.btrfs", scratch, name, size, mkfs)
    }

    /// By another `mkfs.btrfs` than the machine's.
    pub fn make_by(program: &str, scratch: &Scratch, name: &str, size: &str, mkfs: &str) -> Image {
        let path = scratch.0.join(format!("{name}.img"));
        let file = path.display();
        bash(&format!("rm -f {file}; truncate -s {size} {file}; {program} -q -f {mkfs} {file}"));
        Image { path }
    }

    pub fn mount(&self, options: &str) -> Mount {
        Mount::new(&self.path, options)
    }
}

/// A kernel mount of an image through a loop device; closed when it is dropped.
pub struct Mount {
    pub dir: PathBuf,
    kernel: Option<KernelMount>,
}

impl Mount {
    fn new(image: &Path, options: &str) -> Mount {
        let options = if options.is_empty() { "noatime" } else { options };
        let kernel = KernelMount::new(image, options).expect("mount");
        Mount { dir: kernel.path().to_path_buf(), kernel: Some(kernel) }
    }

    /// Runs a script inside the mounted directory.
    pub fn run(&self, script: &str) -> String {
        bash(&format!("cd {}\n{script}", self.dir.display()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let ended = self.kernel.take().map_or(Ok(()), KernelMount::unmount);
        if !std::thread::panicking() {
            ended.expect("unmounted");
        }
    }
}
