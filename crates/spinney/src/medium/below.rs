//! What a block device lies on: the file behind a loop device, and the disk that a partition is of.
//!
//! As the kernel tells in `/sys`; systems without that have none. A device over several others is one that
//! lies on none of them.

use blockdev::Span;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Nobody stacks so many.
const DEEPEST: usize = 8;

/// A file or a device that others may lie on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ground {
    /// By device and inode number.
    File(u64, u64),
    /// By its number.
    Device(u64),
}

impl Ground {
    pub(crate) fn of(meta: &Metadata) -> Option<Ground> {
        match meta.file_type() {
            kind if kind.is_block_device() => Some(Ground::Device(meta.rdev())),
            kind if kind.is_file() => Some(Ground::File(meta.dev(), meta.ino())),
            _ => None,
        }
    }
}

/// Where bytes lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) ground: Ground,
    /// Of all, if `None`.
    part: Option<Span>,
}

impl Place {
    /// Where `part` of `ground` (or all) lies, as far down as it is told which part of that it is.
    pub(crate) fn of(ground: Ground, part: Option<Span>) -> Place {
        let mut place = Place { ground, part };
        for _ in 0..DEEPEST {
            let Ground::Device(number) = place.ground else { break };
            let Some((lower, part)) = sys_of_number(number).and_then(|sys| lower(&sys)) else {
                break;
            };
            let meta = lower.metadata().ok();
            let Some(ground) = meta.and_then(|meta| Ground::of(&meta)) else { break };
            place = Place { ground, part: within(place.part, part) };
        }
        place
    }

    /// Whether a byte lies in both.
    pub(crate) fn shares(&self, other: &Place) -> bool {
        let apart = matches!((self.part, other.part), (Some(one), Some(two)) if !one.overlaps(two));
        self.ground == other.ground && !apart
    }
}

/// Whether both are the same file or device.
pub(super) fn same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| path.metadata().ok().and_then(|meta| Ground::of(&meta));
    of(one).is_some_and(|one| of(other) == Some(one))
}

/// What the device `path` lies on, then what that lies on, and so on; each with the part of it, where it is not all.
pub(super) fn all(path: &Path) -> Vec<(PathBuf, Option<Span>)> {
    let (mut found, mut at, mut part) = (Vec::new(), path.to_owned(), None);
    while found.len() < DEEPEST
        && let Some((lower, of_it)) = next(&at)
    {
        part = within(part, of_it);
        at.clone_from(&lower);
        found.push((lower, part));
    }
    found
}

/// `inner` of something that is itself `outer` of something else.
fn within(inner: Option<Span>, outer: Option<Span>) -> Option<Span> {
    let Some(outer) = outer else { return inner };
    let inner = inner.unwrap_or(Span { start: 0, len: outer.len });
    let start = outer.start.saturating_add(inner.start);
    Some(Span { start, len: inner.len.min(outer.len.saturating_sub(inner.start)) })
}

fn next(path: &Path) -> Option<(PathBuf, Option<Span>)> {
    let sys = sys_of(path)?;
    lower(&sys).or_else(|| {
        let mut slaves = fs::read_dir(sys.join("slaves")).ok()?.flatten();
        match (slaves.next(), slaves.next()) {
            // Which part is not told.
            (Some(one), None) => Some((Path::new("/dev").join(one.file_name()), None)),
            _ => None,
        }
    })
}

/// What a device lies on that the kernel tells of at `sys`, where it tells which part of that it is.
fn lower(sys: &Path) -> Option<(PathBuf, Option<Span>)> {
    if let Ok(backing) = fs::read(sys.join("loop/backing_file")) {
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        let (start, len) = (number(sys, "loop/offset"), number(sys, "loop/sizelimit"));
        let len = if len == 0 { i64::MAX.unsigned_abs().saturating_sub(start) } else { len };
        let part = (start > 0 || number(sys, "loop/sizelimit") > 0).then_some(Span { start, len });
        return Some((OsStr::from_bytes(backing).into(), part));
    }
    if !sys.join("partition").exists() {
        return None;
    }
    let disk = Path::new("/dev").join(sys.parent()?.file_name()?);
    // In the kernel's tables a sector has 512 bytes, whatever the device's has.
    let sectors = |name| number(sys, name).saturating_mul(512);
    Some((disk, Some(Span { start: sectors("start"), len: sectors("size") })))
}

/// Those that the kernel made of the device `path`.
pub(super) fn partitions(path: &Path) -> Vec<PathBuf> {
    let Some(sys) = sys_of(path) else { return Vec::new() };
    let parts = fs::read_dir(sys).into_iter().flatten().flatten();
    let parts = parts.filter(|entry| entry.path().join("partition").exists());
    parts.map(|entry| Path::new("/dev").join(entry.file_name())).collect()
}

fn number(sys: &Path, name: &str) -> u64 {
    let told = fs::read_to_string(sys.join(name)).ok();
    told.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Where the kernel tells of a block device.
fn sys_of(path: &Path) -> Option<PathBuf> {
    let meta = path.metadata().ok().filter(|meta| meta.file_type().is_block_device())?;
    sys_of_number(meta.rdev())
}

#[cfg(target_os = "linux")]
fn sys_of_number(device: u64) -> Option<PathBuf> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    Path::new("/sys/dev/block").join(format!("{major}:{minor}")).canonicalize().ok()
}

#[cfg(not(target_os = "linux"))]
fn sys_of_number(_: u64) -> Option<PathBuf> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_file_share_what_they_overlap_in() {
        let place =
            |start, len| Place { ground: Ground::File(1, 2), part: Some(Span { start, len }) };
        let all = Place { part: None, ..place(0, 0) };
        assert!(place(0, 8).shares(&place(7, 1)) && !place(0, 8).shares(&place(8, 8)));
        assert!(all.shares(&place(8, 8)) && place(8, 8).shares(&all) && all.shares(&all));
        assert!(!all.shares(&Place { ground: Ground::Device(2), ..all }));
        // A part of a part.
        let (inner, outer) = (Span { start: 4, len: 90 }, Span { start: 100, len: 50 });
        assert_eq!(within(Some(inner), Some(outer)), Some(Span { start: 104, len: 46 }));
        assert_eq!(within(None, Some(outer)), Some(outer));
        assert_eq!(within(Some(inner), None), Some(inner));
    }
}
