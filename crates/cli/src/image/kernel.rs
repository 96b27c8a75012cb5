//! Which mounts of this machine are of an image, also over loop devices.

use crate::mounts::{self, MountEntry};
use spinney::loop_devices;
use std::fs;
use std::path::{Path, PathBuf};

/// Whether a mount whose source is `source` is one of `image`: of the device or file itself,
/// or over a loop device.
pub fn is_source(image: &Path, source: &Path) -> bool {
    let Ok(image) = &image.canonicalize() else { return false };
    source == image
        || source.canonicalize().is_ok_and(|real| real == *image)
        || loop_devices(image).iter().any(|device| device == source)
}

/// Where the kernel's own file systems have `image` mounted so that they may write to it. That
/// is also where it is to be read only: a log that is pending is replayed all the same.
pub fn written_by_kernel(image: &Path) -> Option<PathBuf> {
    let devices = loop_devices(image);
    let theirs = |entry: &MountEntry| {
        !entry.is_fuse() && devices.contains(&entry.source) && may_write(entry)
    };
    let entry = mounts::all().unwrap_or_default().into_iter().find(theirs)?;
    // A device may have been given to another file before that was mounted.
    loop_devices(image).contains(&entry.source).then_some(entry.point)
}

fn may_write(entry: &MountEntry) -> bool {
    !(entry.is_read_only() && (leaves_log(&entry.fs_options) || is_read_only(&entry.source)))
}

/// The mount does not replay the log: `rescue=nologreplay:...`, once `nologreplay`. The
/// subvolume's name, which may look like anything, comes last.
fn leaves_log(options: &str) -> bool {
    let options = options.split(",subvol=").next().unwrap_or_default();
    options.split(',').any(|option| match option.strip_prefix("rescue=") {
        Some(words) => words.split(':').any(|word| word == "nologreplay"),
        None => option == "nologreplay",
    })
}

/// The device takes no writes.
fn is_read_only(device: &Path) -> bool {
    let name = device.file_name().unwrap_or_default();
    let told = fs::read_to_string(Path::new("/sys/block").join(name).join("ro"));
    told.is_ok_and(|text| text.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_the_log_alone_says_so() {
        for options in ["ro,rescue=usebackuproot:nologreplay,subvol=/", "ro,nologreplay"] {
            assert!(leaves_log(options), "{options}");
        }
        for options in ["ro,ssd,subvolid=5,subvol=/", "ro,subvol=/a,nologreplay", ""] {
            assert!(!leaves_log(options), "{options}");
        }
    }
}
