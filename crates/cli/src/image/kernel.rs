//! Which mounts of this machine are of an image, also over loop devices.

use super::{ImageFile, identity};
use crate::mounts::{self, MountEntry};
use crate::sys;
use spinney::{Span, devices_over};
use std::fs;
use std::path::{Path, PathBuf};

/// Whether a mount whose source is `source` is one of `image` and of nothing else: of the device
/// or file (or part) itself, or over a loop device.
pub fn is_source(image: &Path, source: &Path) -> bool {
    let (Ok((file, part)), false) = (identity(image), source.as_os_str().is_empty()) else {
        return false;
    };
    if identity(source).is_ok_and(|(real, other)| real == file && other == part) {
        return true;
    }
    // A device has whole sectors.
    let exact = |span: Span| match part {
        None => (span.start, span.end()) == (0, u64::MAX),
        Some(part) => (span.start, span.len / 512) == (part.start, part.len / 512),
    };
    let over = devices_over(&file, part);
    over.iter().any(|(device, span)| device == source && exact(*span))
}

/// Where Spinney has `image`, and nothing else, mounted: for this user or for root, since what other mounts say of
/// their source is what their users say.
pub fn point_of(image: &Path) -> Option<PathBuf> {
    let (user, _) = sys::user_and_group();
    let ours = |entry: &MountEntry| {
        entry.kind.ends_with(".spinney")
            && entry.user().is_some_and(|who| who == 0 || who == user)
            && entry.root == Path::new("/")
            && is_source(image, &entry.source)
            && mounts::reach(entry).is_some()
    };
    mounts::all().ok()?.into_iter().find(ours).map(|entry| entry.point)
}

/// Whether a mount whose source is `source` has a byte of `image`.
pub fn is_part_of_source(image: &Path, source: &Path) -> bool {
    let Ok((file, part)) = identity(image) else { return false };
    let meets = |other: Option<Span>| match (part, other) {
        (Some(part), Some(other)) => part.overlaps(other),
        _ => true,
    };
    identity(source).is_ok_and(|(real, other)| real == file && meets(other))
        || devices_over(&file, part).iter().any(|(device, _)| device == source)
}

/// Where the kernel's own file systems have a byte of `image` mounted so that they may write to it. That
/// is also where it is to be read only: a log that is pending is replayed all the same.
pub fn written_by_kernel(image: &Path) -> Option<PathBuf> {
    let place = ImageFile::of(image);
    let part = place.span(false).ok()?;
    let over = || devices_over(&place.file, part).into_iter().map(|(device, _)| device);
    let devices: Vec<PathBuf> = over().collect();
    let theirs = |entry: &MountEntry| {
        !entry.is_fuse() && devices.contains(&entry.source) && may_write(entry)
    };
    let entry = mounts::all().unwrap_or_default().into_iter().find(theirs)?;
    // A device may have been given to another file before that was mounted.
    over().any(|device| device == entry.source).then_some(entry.point)
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
    let told = fs::read_to_string(Path::new("/sys/class/block").join(name).join("ro"));
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
