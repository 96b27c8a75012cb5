//! Another baseline: the kernel's ext4 on a loop device, with its orphan file.

use super::image::{ImageSpec, Mounter};
use super::kernel::{mount_loop, unmount};
use std::io;
use std::path::Path;
use std::process::Command;

pub struct Ext4Mounter;

impl Mounter for Ext4Mounter {
    fn make(&mut self, spec: &ImageSpec, image: &Path) -> io::Result<()> {
        spec.make_empty(image)?;
        // No initialisation behind what is measured.
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        let mut mkfs = Command::new("mkfs.ext4");
        spec.run(mkfs.args(["-q", "-F", "-O", "orphan_file", "-E", lazy]).arg(image))
    }

    fn mount(&mut self, spec: &ImageSpec, image: &Path, at: &Path) -> io::Result<()> {
        mount_loop(spec, "ext4", None, image, at)
    }

    fn check(&mut self, spec: &ImageSpec, image: &Path) -> io::Result<()> {
        spec.run(Command::new("e2fsck").args(["-f", "-n"]).arg(image))
    }

    fn is_reference(&self) -> bool {
        true
    }

    fn unmount(&mut self, spec: &ImageSpec, at: &Path) -> io::Result<()> {
        unmount(spec, at)
    }
}
