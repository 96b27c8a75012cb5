//! Whether the kernel has an image or device mounted, here or elsewhere.
//!
//! A lock keeps other Spinneys away; the kernel takes no such lock on a file behind a
//! loop device, so the loop devices of the machine are looked through. Systems without
//! `/sys/block` have none of them, and nobody is found.

use super::mount_table::MountTable;
use blockdev::Span;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A mount that is just ending holds its loop device a little longer.
/// Chosen, not measured.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// Who has `path`, or the part of it, mounted or else exclusively. To a reader, mounts that do not
/// write are nobody.
pub(super) fn holder(path: &Path, part: Option<Span>, reader: bool) -> Option<String> {
    let mut found = None;
    for _ in 0..TRIES {
        found = match super::is_block_device(path) {
            true => held(path, reader),
            false => loops(path).iter().find_map(|device| device.holder(part, reader)),
        };
        if found.is_none() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    found
}

/// The loop devices of this machine whose backing file is `image`, and their partitions: those that
/// have a byte of `part` (of all), each with what it has: up to the last number of all where nothing
/// limits it.
pub fn devices_over(image: &Path, part: Option<Span>) -> Vec<(PathBuf, Span)> {
    let all = loops(image)
        .into_iter()
        .flat_map(|device| std::iter::once((device.path, device.span)).chain(device.partitions));
    all.filter(|(_, span)| part.is_none_or(|part| part.overlaps(*span))).collect()
}

/// A loop device over an image.
struct Loop {
    path: PathBuf,
    /// What it has of the image.
    span: Span,
    /// Those that the kernel made of it.
    partitions: Vec<(PathBuf, Span)>,
}

impl Loop {
    fn holder(&self, part: Option<Span>, reader: bool) -> Option<String> {
        if part.is_some_and(|part| !part.overlaps(self.span)) {
            return None;
        }
        let Some(part) = part.filter(|_| !self.partitions.is_empty()) else {
            return held(&self.path, reader);
        };
        // Who has one of the partitions makes all of the device busy, which says nothing of the others.
        let mut within = self.partitions.iter().filter(|(_, span)| part.overlaps(*span)).peekable();
        if within.peek().is_none() {
            return held(&self.path, reader);
        }
        let all = mounted(&self.path, reader).err();
        all.or_else(|| within.find_map(|(path, _)| held(path, reader)))
    }
}

fn loops(image: &Path) -> Vec<Loop> {
    let Ok(meta) = image.metadata() else { return Vec::new() };
    // Who looks at a file waits for its file system, which may not answer: others than the image's are left alone.
    let (table, real) = (MountTable::read(), image.canonicalize());
    let may_be_same = |file: &Path| match (&table, &real) {
        (Some(table), Ok(real)) => table.may_be_together(file, real),
        _ => true,
    };
    let same = |file: &Path| {
        may_be_same(file)
            && file.metadata().is_ok_and(|m| (m.dev(), m.ino()) == (meta.dev(), meta.ino()))
    };
    let Ok(blocks) = fs::read_dir("/sys/block") else { return Vec::new() };
    let loops = blocks
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"loop")));
    let of_image = loops.filter(|path| {
        let backing = fs::read(path.join("loop/backing_file")).unwrap_or_default();
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        !backing.is_empty() && same(Path::new(std::ffi::OsStr::from_bytes(backing)))
    });
    of_image.filter_map(|path| loop_of(&path)).collect()
}

/// A number that the kernel tells of a device.
fn number(path: PathBuf) -> u64 {
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Of `/sys/block/loopN`.
fn loop_of(sys: &Path) -> Option<Loop> {
    let offset = number(sys.join("loop/offset"));
    let node = |sys: &Path| Some(Path::new("/dev").join(sys.file_name()?));
    // In the kernel's tables a sector has 512 bytes, whatever the device's has.
    let sectors = |sys: &Path, name: &str| number(sys.join(name)).saturating_mul(512);
    let parts = fs::read_dir(sys).into_iter().flatten().flatten().map(|entry| entry.path());
    let partitions = parts.filter(|path| path.join("partition").exists()).filter_map(|path| {
        let start = offset.saturating_add(sectors(&path, "start"));
        Some((node(&path)?, Span { start, len: sectors(&path, "size") }))
    });
    // Without a limit it has what comes behind a file that grows, too.
    let len = match number(sys.join("loop/sizelimit")) {
        0 => u64::MAX - offset,
        limit => limit,
    };
    let span = Span { start: offset, len };
    Some(Loop { path: node(sys)?, span, partitions: partitions.collect() })
}

fn held(device: &Path, reader: bool) -> Option<String> {
    match mounted(device, reader) {
        Err(where_to) => return Some(where_to),
        Ok(true) => return None,
        Ok(false) => {}
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

/// Whether it is mounted in a way that is nobody's business; else where it is.
fn mounted(device: &Path, reader: bool) -> Result<bool, String> {
    let mounts = mounts_of(device);
    match mounts.iter().find(|(_, read_only)| !(reader && *read_only)) {
        Some((point, _)) => Err(format!("{} is mounted on {point}", device.display())),
        None => Ok(!mounts.is_empty()),
    }
}

/// Where `device` is mounted, and whether only to be read. What a user's FUSE mount names as its
/// source is what he says.
fn mounts_of(device: &Path) -> Vec<(String, bool)> {
    // Somebody may have a mount point that is no text. Devices of ours are, and so are options.
    let table = fs::read("/proc/self/mounts").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
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
