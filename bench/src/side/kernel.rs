//! The baseline: the kernel's btrfs on a loop device.

use super::image::{ImageSpec, Mounter};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub struct KernelMounter {
    /// Mount options beside `loop,noatime`.
    pub options: Option<String>,
}

impl Mounter for KernelMounter {
    fn mount(&mut self, spec: &ImageSpec, image: &Path, at: &Path) -> io::Result<()> {
        mount_loop(spec, "btrfs", self.options.as_deref(), image, at)
    }

    fn is_reference(&self) -> bool {
        true
    }

    fn unmount(&mut self, spec: &ImageSpec, at: &Path) -> io::Result<()> {
        unmount(spec, at)
    }
}

/// The kernel's file system `kind` on a loop device.
pub(super) fn mount_loop(
    spec: &ImageSpec,
    kind: &str,
    more: Option<&str>,
    image: &Path,
    at: &Path,
) -> io::Result<()> {
    // The loop device goes with the mount: mount(8) sets it to clear itself.
    let mut options = "loop,noatime".to_string();
    if let Some(more) = more {
        options = format!("{options},{more}");
    }
    let mut mount = Command::new("mount");
    spec.run(mount.args(["-t", kind, "-o", &options]).arg(image).arg(at))
}

pub(super) fn unmount(spec: &ImageSpec, at: &Path) -> io::Result<()> {
    let mut last = Ok(());
    // Something on the host may look into a new mount for a moment and make it busy.
    for _ in 0..20 {
        last = spec.run(Command::new("umount").arg(at));
        if last.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    last
}
