//! The image mounted by `spinney mount` and closed by `spinney umount`.
//!
//! It relies on the contract of the command line: `mount` returns when the mount
//! answers, `umount` when the image is closed.

use super::image::{ImageSpec, Mounter};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct SpinneyMounter {
    program: PathBuf,
    options: Option<String>,
    abort: Option<PathBuf>,
}

impl SpinneyMounter {
    /// `options` is what goes behind `-o`.
    pub fn new(program: PathBuf, options: Option<String>) -> SpinneyMounter {
        SpinneyMounter { program, options, abort: None }
    }
}

impl Mounter for SpinneyMounter {
    fn mount(&mut self, spec: &ImageSpec, image: &Path, at: &Path) -> io::Result<()> {
        let mut mount = Command::new(&self.program);
        mount.arg("mount");
        if let Some(options) = &self.options {
            mount.args(["-o", options]);
        }
        spec.run(mount.arg(image).arg(at))?;
        self.abort = Some(abort_file(fs::metadata(at)?.dev()));
        Ok(())
    }

    fn unmount(&mut self, spec: &ImageSpec, at: &Path) -> io::Result<()> {
        spec.run(Command::new(&self.program).arg("umount").arg(at))?;
        self.abort = None;
        Ok(())
    }

    fn rewarm(&self) -> io::Result<()> {
        // Dropping the caches dropped the program too. The kernel's own code is never
        // cold; without this, our cold numbers would show the disk it is installed on.
        fs::read(&self.program).map(drop)
    }

    fn abort_switch(&self) -> Option<PathBuf> {
        self.abort.clone()
    }
}

/// The kernel names a FUSE connection by its device number in its own encoding.
fn abort_file(dev: u64) -> PathBuf {
    let connection = u64::from(libc::major(dev)) << 20 | u64::from(libc::minor(dev));
    PathBuf::from(format!("/sys/fs/fuse/connections/{connection}/abort"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_is_named_as_the_kernel_does() {
        let plain = abort_file(libc::makedev(0, 52));
        assert_eq!(plain, Path::new("/sys/fs/fuse/connections/52/abort"));
        let on_loop = abort_file(libc::makedev(7, 3));
        assert_eq!(on_loop, Path::new("/sys/fs/fuse/connections/7340035/abort"));
    }
}
