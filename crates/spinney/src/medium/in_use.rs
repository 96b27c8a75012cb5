//! Whether the kernel has an image or device mounted, here or elsewhere.
//!
//! A lock keeps other Spinneys away; the kernel takes no such lock on a file behind a
//! loop device, so the loop devices of the machine are looked through. Systems without
//! `/sys/block` have none of them, and nobody is found.

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
pub(super) fn holder(path: &Path, reader: bool) -> Option<String> {
    let mut found = None;
    for _ in 0..TRIES {
        found = match super::is_block_device(path) {
            true => held(path, reader),
            false => loop_devices(path).iter().find_map(|device| held(device, reader)),
        };
        if found.is_none() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    found
}

/// The loop devices of this machine whose backing file is `image`.
pub fn loop_devices(image: &Path) -> Vec<PathBuf> {
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
    if let Some((point, _)) = mounts.iter().find(|(_, read_only)| !(reader && *read_only)) {
        return Some(format!("{} is mounted on {point}", device.display()));
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

/// Where `device` is mounted, and whether only to be read. What a user's FUSE mount names as its
/// source is what he says.
fn mounts_of(device: &Path) -> Vec<(String, bool)> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let real = device.canonicalize().ok();
    let mount = |line: &str| {
        let mut fields = line.split(' ');
        let source = fields.next().filter(|source| source.starts_with("/dev/"))?;
        if Path::new(source).canonicalize().ok() != real {
            return None;
        }
        let point = fields.next()?.to_owned();
        let mut options = fields.nth(1)?.split(',');
        let user = options.clone().find_map(|option| option.strip_prefix("user_id="));
        let read_only = options.any(|option| option == "ro");
        user.is_none_or(|user| user == "0").then_some((point, read_only))
    };
    table.lines().filter_map(mount).collect()
}
