//! What copies need of this machine's own directories and files: names, what may be written or replaced, and
//! something that is opened as what it was when it was looked at. It knows nothing of volumes.

use super::beside::next_name;
use crate::error::{Error, Result};
use crate::medium::{Claim, claim};
use btrfs_image::{HostDir, HostStat};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use vfs::FileKind;

/// The regular file that has been looked at: another may have come in its place meanwhile, or a link,
/// or a pipe that gives nothing. Only with `follow` it may be what a link leads to.
pub(super) fn open_seen(at: &HostName<'_>, seen: &HostStat, follow: bool) -> Result<File> {
    // Of a pipe nobody waits for the other end.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match follow {
        true => OpenOptions::new().read(true).custom_flags(flags).open(at.path()),
        false => at.dir.open_file(at.name),
    };
    let file = file.map_err(|e| at.failed(e))?;
    let stat = HostStat::of_file(&file).map_err(|e| at.failed(e))?;
    match stat.is(FileKind::File) && stat.key == seen.key {
        true => Ok(file),
        false => Err(at.refused("something else is there by now")),
    }
}

/// The same of a directory, to be listed: no link that came in its place.
pub(super) fn dir_seen(at: &HostName<'_>, seen: &HostStat, follow: bool) -> Result<HostDir> {
    let dir = if follow { HostDir::open(&at.path()) } else { at.dir.dir(at.name) };
    let dir = dir.map_err(|e| at.failed(e))?;
    let key = HostStat::of_file(dir.file()).map_err(|e| at.failed(e))?.key;
    let name_has =
        || at.dir.stat(at.name, follow).is_ok_and(|now| now.is_some_and(|now| now.key == key));
    // What is mounted when somebody enters came by the opening itself, and has the name now.
    match key == seen.key || name_has() {
        true => Ok(dir),
        false => Err(at.refused("something else is there by now")),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_what_was_looked_at_is_opened() {
        let top = testkit::oracle::TempDir::new("open-seen").unwrap();
        let dir = HostDir::open(top.path()).unwrap();
        let (path, at) = (top.join("name"), HostName::new(&dir, b"name"));
        for name in ["name", "other"] {
            fs::write(top.join(name), "x").unwrap();
        }
        let seen = at.stat().unwrap().unwrap();
        assert!(open_seen(&at, &seen, false).is_ok());
        assert!(open_seen(&HostName::new(&dir, b"other"), &seen, true).is_err());
        fs::rename(&path, top.join("kept")).unwrap();
        std::os::unix::fs::symlink("kept", &path).unwrap();
        assert!(open_seen(&at, &seen, true).is_ok() && open_seen(&at, &seen, false).is_err());
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(open_seen(&at, &seen, true).is_err() && open_seen(&at, &seen, false).is_err());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let seen = at.stat().unwrap().unwrap();
        assert!(dir_seen(&at, &seen, false).is_ok());
        fs::rename(&path, top.join("moved")).unwrap();
        std::os::unix::fs::symlink("moved", &path).unwrap();
        assert!(dir_seen(&at, &seen, true).is_ok() && dir_seen(&at, &seen, false).is_err());
    }
}
