//! Where root's mount begins: the kernel has all of the volume, from its top level on, and what
//! is mounted is the subvolume in it, as with the kernel's btrfs. So another subvolume can be mounted
//! beside it (`again.rs`), and both are one mount for the kernel, with one cache.
//!
//! Where mounts cannot be made like that, and of a damaged volume, the subvolume is all that the kernel has.

use crate::sys::{self, Umount};
use btrfs_fs::{Options, Rescue};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Whether the volume is to be opened from its top on, to be mounted on `point`.
pub fn from_top(options: &Options, point: &Path) -> bool {
    let can = || directory(point).and_then(|point| sys::mount_apart(&point)).is_ok();
    sys::is_root() && options.rescue == Rescue::default() && can()
}

fn directory(point: &Path) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    OpenOptions::new().read(true).custom_flags(flags).open(point)
}

/// Of what is mounted on `point` only the directory `path` is left there.
pub fn at(point: &Path, path: &[u8]) -> io::Result<()> {
    let top = directory(point)?;
    let dir = sys::open_beneath(&top, path, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let mount = sys::mount_apart(&dir)?;
    // So there is no moment without a mount, which others would take for its end.
    if sys::place_mount(&mount, point, true).is_ok() {
        return sys::umount(point, Umount::Lazily);
    }
    sys::umount(point, Umount::Lazily)?;
    sys::place_mount(&mount, point, false)
}
