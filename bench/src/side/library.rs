//! The image opened by the engine in this process: no kernel, no FUSE.

use super::{ImageSpec, Side, drop_caches};
use crate::target::{Target, VfsTarget};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vfs::FileSystem;

/// Opens the file system in an image, read-write.
pub type Opener = fn(&Path) -> io::Result<Arc<dyn FileSystem>>;

pub struct LibrarySide {
    label: String,
    spec: ImageSpec,
    image: PathBuf,
    opener: Opener,
    fs: Option<Arc<dyn FileSystem>>,
}

impl LibrarySide {
    pub fn new(label: &str, spec: ImageSpec, opener: Opener) -> LibrarySide {
        let image = spec.scratch.join(format!("{label}.img"));
        LibrarySide { label: label.to_string(), spec, image, opener, fs: None }
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
        self.fs = Some((self.opener)(&self.image)?);
        Ok(())
    }

    fn target(&mut self) -> io::Result<Box<dyn Target>> {
        match &self.fs {
            Some(fs) => Ok(Box::new(VfsTarget::new(fs.clone()))),
            None => Err(io::Error::other(format!("{} is not open", self.label))),
        }
    }

    fn make_cold(&mut self) -> io::Result<()> {
        self.shut()?;
        drop_caches()?;
        self.fs = Some((self.opener)(&self.image)?);
        Ok(())
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
