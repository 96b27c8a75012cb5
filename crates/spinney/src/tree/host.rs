//! What copies need of this machine's own directories and files: names, what may be written or replaced, and
//! something that is opened as what it was when it was looked at. It knows nothing of volumes.

use super::beside::next_name;
use crate::error::{Error, Result};
use crate::medium::{Claim, claim};
use btrfs_image::{HostDir, HostStat};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use vfs::FileKind;

/// The regular file `host` that has been looked at: another may have come in its place meanwhile, or a link,
/// or a pipe that gives nothing. Only with `follow` it may be what a link leads to.
pub(super) fn open_seen(host: &Path, seen: &fs::Metadata, follow: bool) -> Result<File> {
    let failed = |e: std::io::Error| Error::host(host, e);
    // Of a pipe nobody waits for the other end.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | if follow { 0 } else { libc::O_NOFOLLOW };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(host).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() || (meta.dev(), meta.ino()) != (seen.dev(), seen.ino()) {
        return Err(Error::refused(host.display(), "something else is there by now"));
    }
    Ok(file)
}

/// A name in an open directory, which something has or not.
#[derive(Clone, Copy)]
pub(super) struct HostName<'d> {
    pub(super) dir: &'d HostDir,
    pub(super) name: &'d [u8],
}

impl<'d> HostName<'d> {
    pub(super) fn new(dir: &'d HostDir, name: &'d [u8]) -> HostName<'d> {
        HostName { dir, name }
    }

    /// For messages.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(self.name)
    }

    pub(super) fn failed(&self, error: io::Error) -> Error {
        Error::host(&self.path(), error)
    }

    pub(super) fn refused(&self, why: &str) -> Error {
        Error::refused(self.path().display(), why)
    }

    /// What has the name itself.
    pub(super) fn stat(&self) -> Result<Option<HostStat>> {
        self.dir.stat(self.name, false).map_err(|e| self.failed(e))
    }

    /// The file, pipe or device, or what a link leads to, to be written: no image that is in use.
    pub(super) fn open_claimed(&self) -> Result<(File, Claim)> {
        let file = self.dir.open_through(self.name, true).map_err(|e| self.failed(e))?;
        let claim = claim(&file, &self.path())?;
        Ok((file, claim))
    }

    /// Refuses what something else cannot come in the place of: an image that is in use, and what may not be
    /// taken away. What was made beside it would stay.
    pub(super) fn may_be_replaced(&self) -> Result<()> {
        if self.dir.keeps(self.name).map_err(|e| self.failed(e))? {
            return Err(self.failed(io::Error::from_raw_os_error(libc::EPERM)));
        }
        // What is no file loses nothing by that. To open a pipe or a device does something to it: who waits to
        // write to the pipe goes on, a watchdog begins to run, a tape is wound back.
        if !self.stat()?.is_some_and(|stat| stat.is(FileKind::File)) {
            return Ok(());
        }
        match self.dir.open_file(self.name) {
            Ok(file) => claim(&file, &self.path()).map(drop),
            // Of what may not be read nobody can be asked.
            Err(_) => Ok(()),
        }
    }

    /// A name that nothing has, in the same directory.
    pub(super) fn beside(&self) -> Result<Vec<u8>> {
        loop {
            let name = next_name();
            if self.dir.stat(&name, false).map_err(|e| self.failed(e))?.is_none() {
                return Ok(name);
            }
        }
    }
}

/// Sorted.
pub(super) fn host_names(host: &Path) -> Result<Vec<Vec<u8>>> {
    let failed = |e: std::io::Error| Error::host(host, e);
    let mut names = Vec::new();
    for entry in fs::read_dir(host).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().as_bytes().to_vec());
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_was_looked_at_is_opened() {
        let dir = testkit::oracle::TempDir::new("open-seen").unwrap();
        let (path, other) = (dir.join("file"), dir.join("other"));
        fs::write(&path, "x").unwrap();
        fs::write(&other, "x").unwrap();
        let seen = fs::metadata(&path).unwrap();
        assert!(open_seen(&path, &seen, false).is_ok());
        assert!(open_seen(&other, &seen, true).is_err());
        let kept = dir.join("kept");
        fs::rename(&path, &kept).unwrap();
        std::os::unix::fs::symlink(&kept, &path).unwrap();
        assert!(open_seen(&path, &seen, true).is_ok() && open_seen(&path, &seen, false).is_err());
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(open_seen(&path, &seen, true).is_err());
    }
}
