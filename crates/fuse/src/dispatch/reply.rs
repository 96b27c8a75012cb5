//! Building replies: a bounded writer, and the engine's plain data as wire records.
//!
//! Timeouts are infinite: the mount is the only writer of the volume, so what the
//! kernel was told stays true until an operation that passes through the kernel
//! changes it. `dispatch/mod.rs` lists the exceptions. Where the file system says that an answer does
//! not last (`vfs::FileSystem::lasts`), they are zero.

use super::failure::{Answer, Failure};
use crate::abi::{Wire, record};
use crate::nodeid::NodeIds;
use vfs::{Attr, Entry, Errno};

/// Seconds; the kernel caps it to its largest time.
pub(super) const FOREVER: u64 = u64::MAX >> 2;

/// Writes a reply from the front of a buffer.
pub(super) struct Out<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl<'a> Out<'a> {
    pub(super) fn new(buf: &'a mut [u8]) -> Out<'a> {
        Out { buf, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn put<T: Wire>(&mut self, value: &T) -> Answer<()> {
        let used = value.write(&mut self.buf[self.len..]).ok_or(Failure::from(Errno::ERANGE))?;
        self.len += used;
        Ok(())
    }

    /// In place of all that was written.
    pub(super) fn put_first<T: Wire>(&mut self, value: &T) -> Answer<()> {
        self.len = 0;
        self.put(value)
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Answer<()> {
        let end = self.len + bytes.len();
        let room = self.buf.get_mut(self.len..end).ok_or(Failure::from(Errno::ERANGE))?;
        room.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    pub(super) fn remaining(&self) -> usize {
        self.buf.len() - self.len
    }

    /// Hands out `len` bytes behind what is written; `advance` keeps what was filled.
    pub(super) fn space(&mut self, len: usize) -> Answer<&mut [u8]> {
        self.buf.get_mut(self.len..self.len + len).ok_or(Failure::from(Errno::EINVAL))
    }

    pub(super) fn advance(&mut self, filled: usize) {
        self.len = (self.len + filled).min(self.buf.len());
    }
}

/// `st_blksize` as a power of two that the kernel can take the logarithm of.
fn block_size(blksize: u32) -> u32 {
    match blksize {
        0 => 4096,
        other => other.next_power_of_two().clamp(512, 1 << 20),
    }
}

pub(super) fn attr(attr: &Attr) -> record::Attr {
    record::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs as u64,
        mtime: attr.mtime.secs as u64,
        ctime: attr.ctime.secs as u64,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: block_size(attr.blksize),
        flags: 0,
    }
}

/// How long an answer holds: for ever, or not at all.
fn valid(lasts: bool) -> u64 {
    if lasts { FOREVER } else { 0 }
}

pub(super) fn attr_out(a: &Attr, lasts: bool) -> record::AttrOut {
    record::AttrOut { attr_valid: valid(lasts), attr_valid_nsec: 0, dummy: 0, attr: attr(a) }
}

pub(super) fn entry_out(
    entry: &Entry,
    nodes: &NodeIds,
    lasts: bool,
    attr_lasts: bool,
) -> record::EntryOut {
    let nodeid = nodes.to_node(entry.attr.ino);
    record::EntryOut {
        nodeid,
        generation: if nodeid == crate::abi::ROOT_ID { 0 } else { entry.generation },
        entry_valid: valid(lasts),
        attr_valid: valid(attr_lasts),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: attr(&entry.attr),
    }
}

fn sx_time(time: vfs::Timestamp) -> record::SxTime {
    record::SxTime { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 }
}

pub(super) fn statx_out(a: &Attr, lasts: bool) -> record::StatxOut {
    let stat = record::Statx {
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        blksize: block_size(a.blksize),
        attributes: a.attributes,
        attributes_mask: vfs::attributes::ALL,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: a.mode() as u16,
        ino: a.ino.0,
        size: a.size,
        blocks: a.blocks,
        atime: sx_time(a.atime),
        btime: sx_time(a.btime),
        ctime: sx_time(a.ctime),
        mtime: sx_time(a.mtime),
        rdev_major: (a.rdev & 0xfff00) >> 8,
        rdev_minor: (a.rdev & 0xff) | ((a.rdev >> 12) & 0xfff00),
        ..Default::default()
    };
    record::StatxOut { attr_valid: valid(lasts), stat, ..Default::default() }
}
