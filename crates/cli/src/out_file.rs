//! Files that a stream or an archive goes to. What one had before goes when the first byte comes, and not when
//! somebody has mistyped what is to be sent; and no image that somebody has open is emptied.

use crate::error::{Error, Result};
use blockdev::Made;
use btrfs_image::settled;
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
    made: Option<Made>,
    begun: bool,
    claim: Option<Claim>,
}

impl OutFile {
    /// `mode`: of a file that is not there yet.
    pub fn open(path: &Path, mode: u32) -> Result<OutFile> {
        let (file, made) = match Made::file(path, mode) {
            Ok((file, made)) => (file, Some(made)),
            // Also of a link that leads to nothing yet.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let mut options = OpenOptions::new();
                options.write(true).mode(mode).create(true).truncate(false);
                (options.open(path).map_err(|e| Error::io(path, &e))?, None)
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

    /// What only a close would tell, too.
    fn flush(&mut self) -> io::Result<()> {
        settled(&self.file)
    }
}

/// Standard output, or what else has no name. As with an [`OutFile`] a flush tells what only a close would.
pub struct Settling(pub File);

impl Write for Settling {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        settled(&self.0)
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if let Some(made) = self.made.take().filter(|_| !self.begun) {
            let _ = made.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::oracle::TempDir;

    #[test]
    fn what_was_made_in_vain_goes_and_nothing_else() {
        let dir = TempDir::new("out-file").unwrap();
        let [own, away, others] = ["own", "away", "others"].map(|name| dir.join(name));
        for part in [&own, &others] {
            std::fs::create_dir(part).unwrap();
        }
        let (path, victim) = (own.join("stream"), others.join("stream"));
        std::fs::write(&victim, "theirs").unwrap();
        let made = OutFile::open(&path, 0o600).unwrap();
        std::fs::rename(&own, &away).unwrap();
        std::os::unix::fs::symlink(&others, &own).unwrap();
        drop(made);
        assert!(victim.exists() && !away.join("stream").exists());
        // What has something in it stays, as does what was there.
        let mut written = OutFile::open(&away.join("stream"), 0o600).unwrap();
        written.write_all(b"something").unwrap();
        drop((written, OutFile::open(&victim, 0o600).unwrap()));
        assert_eq!(std::fs::read(away.join("stream")).unwrap(), b"something");
        assert_eq!(std::fs::read(&victim).unwrap(), b"theirs");
    }
}
