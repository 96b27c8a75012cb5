//! Whether the kernel has an image or device mounted, here or elsewhere.
//!
//! A lock keeps other Spinneys away; the kernel takes no such lock on a file behind a
//! loop device, so the loop devices of the machine are looked through.

use crate::mounts::{self, MountEntry};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A mount that is just ending holds its loop device a little longer.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// Who has `path` mounted or else exclusively. To a reader, mounts that do not write are
/// nobody.
pub fn holder(path: &Path, reader: bool) -> Option<String> {
    let mut found = None;
    for _ in 0..TRIES {
        found = match super::is_block(path) {
            true => held(path, reader),
            false => loops_over(path).iter().find_map(|device| held(device, reader)),
        };
        if found.is_none() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    found
}

/// Whether a mount whose source is `source` is one of `image`: of the device or file itself,
/// or over a loop device.
pub fn is_source(image: &Path, source: &Path) -> bool {
    let Ok(image) = &image.canonicalize() else { return false };
    source == image
        || source.canonicalize().is_ok_and(|real| real == *image)
        || loops_over(image).iter().any(|device| device == source)
}

/// Where the kernel's own file systems have `image` mounted so that they may write to it. That
/// is also where it is to be read only: a log that is pending is replayed all the same.
pub fn written_by_kernel(image: &Path) -> Option<PathBuf> {
    let devices = loops_over(image);
    let theirs = |entry: &MountEntry| {
        !entry.is_fuse() && devices.contains(&entry.source) && may_write(entry)
    };
    let entry = mounts::all().unwrap_or_default().into_iter().find(theirs)?;
    // A device may have been given to another file before that was mounted.
    loops_over(image).contains(&entry.source).then_some(entry.point)
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

/// Loop devices whose backing file is `image`.
fn loops_over(image: &Path) -> Vec<PathBuf> {
    let Ok(meta) = image.metadata() else { return Vec::new() };
    let same =
        |file: &Path| file.metadata().is_ok_and(|m| (m.dev(), m.ino()) == (meta.dev(), meta.ino()));
    let Ok(blocks) = fs::read_dir("/sys/block") else { return Vec::new() };
    let loops = blocks
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"loop")));
    loops
        .filter(|path| {
            let backing = fs::read(path.join("loop/backing_file")).unwrap_or_default();
            let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
            !backing.is_empty() && same(Path::new(std::ffi::OsStr::from_bytes(backing)))
        })
        .filter_map(|path| Some(Path::new("/dev").join(path.file_name()?)))
        .collect()
}

fn held(device: &Path, reader: bool) -> Option<String> {
    let mounts = mounts_of(device);
    if let Some(entry) = mounts.iter().find(|entry| !(reader && entry.is_read_only())) {
        return Some(format!("{} is mounted on {}", device.display(), entry.point.display()));
    }
    if !mounts.is_empty() {
        return None;
    }
    // Mounts in other namespaces, RAID members and the like.
    let opened = fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device);
    match opened {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            Some(format!("another program holds {}", device.display()))
        }
        _ => None,
    }
}

/// Where `device` is mounted. What a user's FUSE mount names as its source is what he says.
fn mounts_of(device: &Path) -> Vec<MountEntry> {
    let real = device.canonicalize().ok();
    let is_it = |entry: &MountEntry| {
        entry.user().is_none_or(|user| user == 0)
            && entry.source.starts_with("/dev")
            && entry.source.canonicalize().ok() == real
    };
    mounts::all().unwrap_or_default().into_iter().filter(is_it).collect()
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
