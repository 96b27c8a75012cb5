//! Between the inode item and what `stat` tells.

use super::State;
use btrfs_disk::Error;
use btrfs_disk::items::{InodeItem, Timespec, inode_flags};
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::attributes::{APPEND, COMPRESSED, IMMUTABLE, NODUMP, VERITY};
use vfs::{Attr, FileKind, Ino, Timestamp};

pub(crate) fn time_of(t: Timespec) -> Timestamp {
    Timestamp { secs: t.sec, nanos: t.nanos() }
}

pub(crate) fn stamp(t: Timestamp) -> Timespec {
    Timespec { sec: t.secs, nsec: t.nanos }
}

pub(crate) fn kind_of(item: &InodeItem) -> Result<FileKind, Error> {
    FileKind::from_mode(item.mode)
        .ok_or_else(|| Error::corrupt(format!("inode with mode {:o}", item.mode)))
}

/// `pending`: bytes of content that will need new extents.
pub(crate) fn attr_of(ino: Ino, state: &State, sector: u32, pending: u64) -> Result<Attr, Error> {
    let item = &state.item;
    let flag = |bit: u64, attribute: u64| if item.flags & bit != 0 { attribute } else { 0 };
    let blocks = state.blocks(sector, pending);
    state.reported.set(blocks);
    Ok(Attr {
        ino,
        kind: kind_of(item)?,
        perm: (item.mode & 0o7777) as u16,
        nlink: item.nlink,
        uid: item.uid,
        gid: item.gid,
        rdev: to_linux_dev(item.rdev),
        size: item.size,
        blocks,
        blksize: sector,
        atime: time_of(item.atime),
        mtime: time_of(item.mtime),
        ctime: time_of(item.ctime),
        btime: time_of(item.otime),
        attributes: flag(inode_flags::COMPRESS, COMPRESSED)
            | flag(inode_flags::IMMUTABLE, IMMUTABLE)
            | flag(inode_flags::APPEND, APPEND)
            | flag(inode_flags::NODUMP, NODUMP)
            | flag(inode_flags::RO_VERITY, VERITY),
    })
}

impl State {
    /// In units of 512 bytes; content without an extent counts too.
    pub(crate) fn blocks(&self, sector: u32, pending: u64) -> u64 {
        rounded_up(self.item.nbytes, sector).saturating_add(pending) / 512
    }

    /// Immutable and append-only inodes and directories keep their names.
    pub(crate) fn keeps_names(&self) -> bool {
        self.item.flags & (inode_flags::IMMUTABLE | inode_flags::APPEND) != 0
    }
}

/// The block count that a caller may remember. It is the one attribute that changes behind
/// callers' backs: when content gets its extents.
#[derive(Debug)]
pub(crate) struct ReportedBlocks(AtomicU64);

const NOTHING: u64 = u64::MAX;
/// No file has so many.
const UNKNOWN: u64 = u64::MAX - 1;

impl Default for ReportedBlocks {
    fn default() -> ReportedBlocks {
        ReportedBlocks(AtomicU64::new(NOTHING))
    }
}

impl ReportedBlocks {
    /// A caller may remember any.
    pub(super) fn unknown() -> ReportedBlocks {
        ReportedBlocks(AtomicU64::new(UNKNOWN))
    }

    fn set(&self, blocks: u64) {
        self.0.store(blocks, Ordering::Relaxed);
    }

    /// As `unknown`, from now on.
    pub(crate) fn may_be_any(&self) {
        self.0.store(UNKNOWN, Ordering::Relaxed);
    }

    /// The caller forgets by himself (see `vfs::Observer`).
    pub(crate) fn clear(&self) {
        self.0.store(NOTHING, Ordering::Relaxed);
    }

    /// True, once, if a caller may remember something else than `blocks`.
    pub(crate) fn is_outdated(&self, blocks: impl FnOnce() -> u64) -> bool {
        let reported = self.0.load(Ordering::Relaxed);
        if reported == NOTHING || reported == blocks() {
            return false;
        }
        self.clear();
        true
    }
}

/// The item may claim any number of bytes.
fn rounded_up(bytes: u64, sector: u32) -> u64 {
    bytes.checked_next_multiple_of(u64::from(sector)).unwrap_or(u64::MAX)
}

/// The item holds the kernel's internal `dev_t`, major << 20 | minor; `stat` and FUSE use
/// the "new" 32-bit encoding.
fn to_linux_dev(dev: u64) -> u32 {
    let (major, minor) = ((dev >> 20) as u32, (dev & 0xF_FFFF) as u32);
    (minor & 0xFF) | (major & 0xFFF) << 8 | (minor & !0xFF) << 12
}

/// The inverse, for `mknod`.
pub(crate) fn from_linux_dev(dev: u32) -> u64 {
    let major = u64::from(dev >> 8 & 0xFFF);
    let minor = u64::from((dev & 0xFF) | (dev >> 12 & 0xF_FF00));
    major << 20 | minor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reported_is_outdated_once() {
        let reported = ReportedBlocks::default();
        assert!(!reported.is_outdated(|| unreachable!("nobody asked")));
        reported.set(8);
        assert!(
            !reported.is_outdated(|| 8)
                && reported.is_outdated(|| 16)
                && !reported.is_outdated(|| 16)
        );
        reported.set(8);
        reported.clear();
        assert!(!reported.is_outdated(|| 16));
    }
}
