//! Files that a stream or an archive goes to. What one had before goes when the first byte comes, and not when
//! somebody has mistyped what is to be sent; and no image that somebody has open is emptied.

use crate::error::{Error, Result};
use spinney::Claim;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Keeps what it has until something is written.
pub struct OutFile {
    file: File,
    path: PathBuf,
    /// It was not there before.
    made: bool,
    begun: bool,
    claim: Option<Claim>,
}

impl OutFile {
    /// `mode`: of a file that is not there yet.
    pub fn open(path: &Path, mode: u32) -> Result<OutFile> {
        let mut options = OpenOptions::new();
        options.write(true).mode(mode);
        let (file, made) = match options.clone().create_new(true).open(path) {
            Ok(file) => (file, true),
            // Also of a link that leads to nothing yet.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let there = options.create(true).truncate(false).open(path);
                (there.map_err(|e| Error::io(path, &e))?, false)
            }
            Err(e) => return Err(Error::io(path, &e)),
        };
        Ok(OutFile { file, path: path.to_owned(), made, begun: false, claim: None })
    }

    /// Refuses an image or device that is in use, also by this process: ask when those are open that are read.
    /// From then on nobody opens it as one until it is dropped.
    pub fn is_free(&mut self) -> Result<()> {
        self.claim = Some(spinney::claim(&self.file, &self.path)?);
        Ok(())
    }

    /// Whether something was written.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// What it has goes.
    pub fn empty(&mut self) -> io::Result<()> {
        self.begun = true;
        match self.file.metadata()?.is_file() {
            true => self.file.set_len(0),
            false => Ok(()),
        }
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.begun {
            self.empty()?;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if self.made && !self.begun {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
