//! Writes to all mirrors, flushes, and the superblock's commit.
//!
//! Order of a commit: the caller has flushed everything that the new superblock names;
//! `commit_superblock` writes the first copy, flushes, then writes the other copies,
//! which become durable with the next flush. So at most one copy is in flight at any
//! time: a torn one never leaves the volume without a valid superblock, and the first
//! copy (the only one that the kernel reads) is never older than another.

use crate::counters::add;
use crate::superblock::super_copies;
use crate::{SUPER_EXCLUDED, Volume};
use btrfs_disk::{Corrupt, Error, Logical, Physical, Result, Superblock};
use std::sync::Arc;

impl Volume {
    /// Writes `bufs`, one behind the other, to every copy of `logical`.
    pub fn write(&self, logical: Logical, bufs: &[&[u8]]) -> Result<()> {
        self.check_writable()?;
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        let mapping = self.map(logical, len)?;
        for at in mapping.copies() {
            if touches_superblock(*at, len) {
                let what = "the range holds a superblock copy and must not be allocated";
                return Err(Corrupt::new(what).at(logical).into());
            }
        }
        let _shared = self.repair.read();
        mapping.copies().iter().try_for_each(|at| self.write_physical(*at, bufs))
    }

    /// Writes the sealed bytes of one or more adjacent nodes; the same path as data.
    pub fn write_node_bytes(&self, logical: Logical, bufs: &[&[u8]]) -> Result<()> {
        self.write(logical, bufs)
    }

    pub(crate) fn write_physical(&self, at: Physical, bufs: &[&[u8]]) -> Result<()> {
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        add(&self.counters.writes, 1);
        add(&self.counters.written_bytes, len);
        let result = match bufs {
            [one] => self.dev.write_at(at.0, one),
            many => self.dev.write_vectored_at(at.0, many),
        };
        result.map_err(|source| {
            add(&self.counters.write_errors, 1);
            Error::io(format!("{}: write of {len} bytes at {at}", self.dev.name()), source)
        })
    }

    /// Returns when every earlier write is durable; a volume that is never written has
    /// none.
    pub fn flush(&self) -> Result<()> {
        if !self.writable() {
            return Ok(());
        }
        add(&self.counters.flushes, 1);
        self.dev.flush().map_err(|source| {
            add(&self.counters.flush_errors, 1);
            Error::io(format!("{}: flush", self.dev.name()), source)
        })
    }

    /// Makes `sb` the volume's superblock; durable when this returns. The caller has
    /// flushed what it points to.
    pub fn commit_superblock(&self, sb: Superblock) -> Result<()> {
        self.check_writable()?;
        let _one = self.commit.lock();
        self.write_copies(&sb)?;
        *self.superblock.write() = Arc::new(sb);
        Ok(())
    }

    /// `sb` is what the next commit goes on from, but is not written: that commit comes
    /// before anything else that writes superblocks.
    pub fn adopt_superblock(&self, sb: Superblock) {
        *self.superblock.write() = Arc::new(sb);
    }

    /// Makes the last committed superblock lead to a log tree; durable when this returns.
    /// `superblock` goes on to tell the last commit: the log is void with the next one. The
    /// caller has flushed the log.
    ///
    /// The other copies follow, for the next flush to make durable: should the first one be
    /// torn by the write after this, they lead to this log.
    pub fn write_log_root(&self, root: Logical, level: u8) -> Result<()> {
        self.check_writable()?;
        let _one = self.commit.lock();
        let mut sb = self.superblock();
        (sb.fields.log_root, sb.fields.log_root_level) = (root, level);
        self.write_copies(&sb)
    }

    /// The first copy, flush, the others.
    fn write_copies(&self, sb: &Superblock) -> Result<()> {
        let mut copies = super_copies(sb.fields.dev_item.total_bytes);
        if let Some(first) = copies.next() {
            self.write_physical(Physical(first), &[&sb.to_bytes(first)?])?;
        }
        self.flush()?;
        for at in copies {
            self.write_physical(Physical(at), &[&sb.to_bytes(at)?])?;
        }
        Ok(())
    }

    /// Tells the device that a range's content is no longer needed.
    pub fn discard(&self, logical: Logical, len: u64) -> Result<()> {
        self.check_writable()?;
        let mapping = self.map(logical, len)?;
        let _shared = self.repair.read();
        mapping.copies().iter().try_for_each(|at| self.discard_physical(*at, len))
    }

    /// The same for a range of the device; copies of the superblock stay.
    pub fn discard_physical(&self, at: Physical, len: u64) -> Result<()> {
        self.check_writable()?;
        for (start, len) in around_superblocks(at.0, len) {
            self.dev.discard(start, len).map_err(|source| {
                add(&self.counters.write_errors, 1);
                let what = format!("{}: discard of {len} bytes at {start}", self.dev.name());
                Error::io(what, source)
            })?;
        }
        Ok(())
    }
}

pub(crate) fn touches_superblock(at: Physical, len: u64) -> bool {
    super_copies(u64::MAX).any(|copy| copy < at.0 + len && at.0 < copy + SUPER_EXCLUDED)
}

/// The parts of a physical range that hold no superblock copy: (start, length).
fn around_superblocks(start: u64, len: u64) -> Vec<(u64, u64)> {
    let end = start + len;
    let mut out = Vec::new();
    let mut at = start;
    for copy in super_copies(u64::MAX).filter(|c| *c < end && start < c + SUPER_EXCLUDED) {
        if copy > at {
            out.push((at, copy - at));
        }
        at = copy + SUPER_EXCLUDED;
    }
    if at < end {
        out.push((at, end - at));
    }
    out
}
