//! The image mounted by `spinney mount` and closed by `spinney umount`.
//!
//! It relies on the contract of the command line: `mount` returns when the mount
//! answers, `umount` when the image is closed, `stats --json` prints its counters.

use super::image::{ImageSpec, Mounter};
use crate::counters::{self, Counters};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct SpinneyMounter {
    program: PathBuf,
    options: Option<String>,
}

impl SpinneyMounter {
    /// `options` is what goes behind `-o`.
    pub fn new(program: PathBuf, options: Option<String>) -> SpinneyMounter {
        SpinneyMounter { program, options }
    }
}

impl Mounter for SpinneyMounter {
    fn mount(&mut self, spec: &ImageSpec, image: &Path, at: &Path) -> io::Result<()> {
        let mut mount = Command::new(&self.program);
        mount.arg("mount");
        if let Some(options) = &self.options {
            mount.args(["-o", options]);
        }
        spec.run(mount.arg(image).arg(at))
    }

    fn unmount(&mut self, spec: &ImageSpec, at: &Path) -> io::Result<()> {
        spec.run(Command::new(&self.program).arg("umount").arg(at))
    }

    fn counters(&self, at: &Path) -> io::Result<Option<Counters>> {
        let output = Command::new(&self.program).args(["stats", "--json"]).arg(at).output()?;
        let counters = counters::parse(&String::from_utf8_lossy(&output.stdout));
        match counters.filter(|_| output.status.success()) {
            Some(counters) => Ok(Some(counters)),
            None => {
                let said = String::from_utf8_lossy(&output.stderr);
                let message = format!("spinney stats: {}: {}", output.status, said.trim());
                Err(io::Error::other(message))
            }
        }
    }

    fn can_be_aborted(&self) -> bool {
        true
    }
}
