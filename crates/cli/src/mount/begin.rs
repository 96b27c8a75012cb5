//! Where root's mount begins: the kernel has all of the volume, from its top level on, and what
//! is mounted is the subvolume in it, as with the kernel's btrfs. So another subvolume can be mounted
//! beside it (`again.rs`), and both are one mount for the kernel, with one cache.
//!
//! Where mounts cannot be made like that, and of a damaged volume, the subvolume is all that the kernel has. What
//! can be made shows in part when it is (a profile may forbid one call alone, and a directory on the way be closed to
//! the root of a user namespace): then the volume is opened and mounted once more, as the subvolume.

use super::fault;
use crate::sys::{self, Umount};
use btrfs_fs::{Options, Rescue};
use fuse::Session;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use vfs::FsError;

/// Whether the volume is to be opened from its top on, to be mounted on `point`.
pub fn from_top(options: &Options, point: &Path) -> bool {
    let can = || directory(point).and_then(|point| sys::mount_apart(&point)).is_ok();
    sys::is_root() && options.rescue == Rescue::default() && can()
}

fn directory(point: &Path) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    OpenOptions::new().read(true).custom_flags(flags).open(point)
}

/// Why a mount does not begin at its subvolume.
pub struct Failed {
    pub error: io::Error,
    /// It does not stand on its point any more: what does is somebody else's.
    gone: bool,
}

impl Failed {
    /// What stands on the point still goes.
    pub fn take_away(&self, point: &Path) {
        if !self.gone {
            let _ = sys::umount(point, Umount::Lazily);
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed { error, gone: false }
    }
}

/// Of what is mounted on `point` only the directory `path` is left there; all of it where that is empty.
pub fn at(point: &Path, path: &[u8]) -> Result<(), Failed> {
    if path.is_empty() {
        return Ok(());
    }
    fault::at("way")?;
    let top = directory(point)?;
    let dir = sys::open_beneath(&top, path, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let mount = sys::mount_apart(&dir)?;
    let place =
        |step, beneath| fault::at(step).and_then(|()| sys::place_mount(&mount, point, beneath));
    // So there is no moment without a mount, which others would take for its end.
    if place("beneath", true).is_ok() {
        return Ok(sys::umount(point, Umount::Lazily)?);
    }
    sys::umount(point, Umount::Lazily)?;
    place("place", false).map_err(|error| Failed { error, gone: true })
}

/// Ends the session of which that failed, and closes the volume. What else is mounted on its point stays.
pub fn end(session: Session, failed: &Failed) -> vfs::Result<()> {
    if !failed.gone {
        let point = session.unmounter();
        let io = |source| FsError::Io { context: point.mountpoint().display().to_string(), source };
        point.unmount(true).map_err(io)?;
    }
    session.run()
}
