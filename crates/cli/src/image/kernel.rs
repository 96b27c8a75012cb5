//! Which mounts of this machine are of an image, also over loop devices.

use crate::mounts::{self, MountEntry};
use spinney::loop_devices;
use std::path::{Path, PathBuf};

/// Whether a mount whose source is `source` is one of `image`: of the device or file itself,
/// or over a loop device.
pub fn is_source(image: &Path, source: &Path) -> bool {
    let Ok(image) = &image.canonicalize() else { return false };
    source == image
        || source.canonicalize().is_ok_and(|real| real == *image)
        || loop_devices(image).iter().any(|device| device == source)
}

/// Where the kernel's own file systems have `image` mounted, to write to it.
pub fn written_by_kernel(image: &Path) -> Option<PathBuf> {
    let devices = loop_devices(image);
    let theirs = |entry: &MountEntry| {
        !entry.is_fuse() && !entry.is_read_only() && devices.contains(&entry.source)
    };
    let entry = mounts::all().unwrap_or_default().into_iter().find(theirs)?;
    // A device may have been given to another file before that was mounted.
    loop_devices(image).contains(&entry.source).then_some(entry.point)
}
