//! A directory that somebody else set up. It is never emptied or unmounted; only the
//! workloads' own directory below it comes and goes.
//!
//! Cold here means: synced, and the kernel's caches dropped. What a server in
//! userspace caches survives that, so for such a mount let this program mount.

use super::{Side, drop_caches, with_context};
use crate::target::{PosixDir, Target};
use std::io;
use std::path::PathBuf;

pub struct DirSide {
    label: String,
    path: PathBuf,
}

impl DirSide {
    pub fn new(label: &str, path: PathBuf) -> DirSide {
        DirSide { label: label.to_string(), path }
    }
}

impl Side for DirSide {
    fn label(&self) -> &str {
        &self.label
    }

    fn reset(&mut self) -> io::Result<()> {
        self.target().map(drop)
    }

    fn target(&mut self) -> io::Result<Box<dyn Target>> {
        let dir = with_context(PosixDir::open(&self.path), self.path.display())?;
        Ok(Box::new(dir))
    }

    fn make_cold(&mut self) -> io::Result<()> {
        self.target()?.sync()?;
        drop_caches()
    }

    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}
