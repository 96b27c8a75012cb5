//! The image opened by the engine in this process: no kernel, no FUSE.

use super::{ImageSpec, Side};
use crate::counters::Counters;
use crate::target::{Target, Tracked, VfsTarget};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vfs::FileSystem;

/// The engine in this process, whichever it is.
#[derive(Clone, Copy)]
pub struct Engine {
    /// Opens the file system in an image, read-write, with options as `mount -o` has them.
    pub open: fn(&Path, &str) -> io::Result<Arc<dyn FileSystem>>,
    /// The first of the options that means nothing to an engine without a mount.
    pub stranger: fn(&str) -> Option<String>,
}

pub struct LibrarySide {
    label: String,
    spec: ImageSpec,
    image: PathBuf,
    engine: Engine,
    options: String,
    fs: Option<Arc<dyn FileSystem>>,
    tracked: Tracked,
}

impl LibrarySide {
    pub fn new(label: &str, spec: ImageSpec, engine: Engine, options: &str) -> LibrarySide {
        let image = spec.scratch.join(format!("{label}.img"));
        let (label, options) = (label.to_string(), options.to_string());
        LibrarySide { label, spec, image, engine, options, fs: None, tracked: Tracked::Off }
    }

    /// The same with one more note of each truncation.
    pub fn tracked(mut self, tracked: Tracked) -> LibrarySide {
        self.tracked = tracked;
        self
    }

    fn open(&mut self) -> io::Result<()> {
        self.fs = Some((self.engine.open)(&self.image, &self.options)?);
        Ok(())
    }

    fn shut(&mut self) -> io::Result<()> {
        match self.fs.take() {
            Some(fs) => fs.destroy().map_err(|e| io::Error::other(e.to_string())),
            None => Ok(()),
        }
    }
}

impl Side for LibrarySide {
    fn label(&self) -> &str {
        &self.label
    }

    fn is_library(&self) -> bool {
        true
    }

    fn reset(&mut self) -> io::Result<()> {
        if let Err(error) = self.shut() {
            eprintln!("{}: {error}", self.label);
        }
        self.spec.make(&self.image)?;
        self.open()
    }

    fn target(&mut self) -> io::Result<Box<dyn Target>> {
        match &self.fs {
            Some(fs) => Ok(Box::new(VfsTarget::tracked(fs.clone(), self.tracked))),
            None => Err(io::Error::other(format!("{} is not open", self.label))),
        }
    }

    fn pause(&mut self) -> io::Result<()> {
        self.shut()?;
        self.spec.settle_below()
    }

    fn resume(&mut self) -> io::Result<()> {
        if self.fs.is_some() { Ok(()) } else { self.open() }
    }

    fn make_cold(&mut self) -> io::Result<()> {
        self.shut()?;
        self.spec.make_cold(&self.image)?;
        self.open()
    }

    fn counters(&mut self) -> io::Result<Option<Counters>> {
        let list = self.fs.as_ref().map(|fs| fs.stats());
        Ok(list.map(|list| list.iter().map(|stat| (stat.name.to_string(), stat.value)).collect()))
    }

    fn verify(&mut self) -> io::Result<()> {
        self.shut()?;
        self.spec.check(&self.image)
    }

    fn close(&mut self) -> io::Result<()> {
        let result = self.shut();
        match fs::remove_file(&self.image) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => result,
        }
    }
}

impl Drop for LibrarySide {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            eprintln!("{}: {error}", self.label);
        }
    }
}
