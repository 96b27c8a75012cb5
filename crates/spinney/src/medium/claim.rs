//! Files and devices of this machine that are about to be written over or removed: by mistake one may be
//! an image that is in use, as that which is being read.

use super::{in_use, patiently};
use crate::error::{Cause, Error, Result};
use btrfs_disk::superblock::COPIES;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Refuses `file`, which was opened at `path`, if it is an image or device in use, also by this program.
/// Else it is locked while it is open: nobody opens it as an image meanwhile.
pub(crate) fn claim(file: &File, path: &Path) -> Result<()> {
    let refused = |who: String| Err(Error::new(path.display(), Cause::InUse(Some(who))));
    let meta = file.metadata().map_err(|e| Error::host(path, e))?;
    let is_device = meta.file_type().is_block_device();
    if !is_device && !meta.is_file() {
        return Ok(());
    }
    // What ends in front of the first superblock is no image; trees are full of such, and others may have locked them.
    if !is_device && meta.len() <= COPIES[0] {
        return Ok(());
    }
    match patiently(|| blockdev::lock(file, true, None)) {
        Err(e) if e.kind() == ErrorKind::ResourceBusy => {
            return refused("as an image, or by another program".into());
        }
        // Where nothing can be locked nothing is.
        _ => {}
    }
    in_use::holder(path, None, false).map_or(Ok(()), refused)
}

/// The same of a file whose name is to go. What is no file loses nothing by that, and of what may not
/// be read nobody can be asked.
pub(crate) fn claim_name(path: &Path) -> Result<()> {
    if !path.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
        return Ok(());
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => claim(&file, path),
        Err(_) => Ok(()),
    }
}
