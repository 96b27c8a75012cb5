//! Writes to all mirrors, flushes, and the superblock's commit.
//!
//! Order of a commit: the caller has flushed everything that the new superblock names;
//! `commit_superblock` writes the first copy, flushes, then writes the other copies,
//! which become durable with the next flush. So at most one copy is in flight at any
//! time: a torn one never leaves the volume without a valid superblock, and the first
//! copy (the only one that the kernel reads) is never older than another.
//!
//! A crash between the first copy and the others leaves these behind. Before the first is
//! written over again they must say what it says, durably: they are what the volume falls
//! back to should that write be torn, and what an older one leads to (nodes that its
//! successor freed, a log without the last fsync) may be overwritten by then. But one that
//! the device refuses is done without, and tried again with the next: a bad sector under it
//! is no reason to give up a volume whose first copy can be written, as the kernel has it.
//! The first one is written once more behind them: if a flush of it failed, which leaves the same,
//! the machine's cache shows it, and the medium has an older one. All of this comes before the first write
//! of a mount, for that may go to blocks that only the newer superblock calls free.

use crate::counters::add;
use crate::superblock::{Copies, FIRST, super_copies};
use crate::{SUPER_EXCLUDED, Volume, superblock};
use btrfs_disk::{Corrupt, Error, Logical, Physical, Result, Superblock};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::warn;

/// What a refused write means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    /// The volume itself: whoever devices are given up by gives this one up.
    Structure,
    /// What can be done without: content that nothing refers to yet, a copy of what is elsewhere.
    /// `through` as in `BlockDevice::write_apart`.
    Apart { through: bool },
}

impl Volume {
    /// Writes `bufs`, one behind the other, to every copy of `logical`.
    pub fn write(&self, logical: Logical, bufs: &[&[u8]]) -> Result<()> {
        self.write_copies_of(logical, bufs, Of::Structure)
    }

    /// The same for file content that nothing refers to yet: a device that refuses it can be
    /// used on. With `through` it is with the device when this returns.
    pub fn write_content(&self, logical: Logical, bufs: &[&[u8]], through: bool) -> Result<()> {
        self.write_copies_of(logical, bufs, Of::Apart { through })
    }

    /// As `BlockDevice::tells_late`.
    pub fn tells_late(&self) -> bool {
        self.dev.tells_late()
    }

    /// Writes the sealed bytes of one or more adjacent nodes.
    pub fn write_node_bytes(&self, logical: Logical, bufs: &[&[u8]]) -> Result<()> {
        self.write(logical, bufs)
    }

    fn write_copies_of(&self, logical: Logical, bufs: &[&[u8]], of: Of) -> Result<()> {
        self.check_writable()?;
        self.mend_first()?;
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        let mapping = self.map(logical, len)?;
        for at in mapping.copies() {
            if touches_superblock(*at, len) {
                let what = "the range holds a superblock copy and must not be allocated";
                return Err(Corrupt::new(what).at(logical).into());
            }
        }
        let _shared = self.repair.read();
        self.check_going()?;
        mapping.copies().iter().try_for_each(|at| self.write_one(*at, bufs, of))
    }

    /// Over a bad copy. A device that refuses it is no worse than it was.
    pub(crate) fn write_repair(&self, at: Physical, bytes: &[u8]) -> Result<()> {
        self.write_one(at, &[bytes], Of::Apart { through: true })
    }

    fn write_physical(&self, at: Physical, bufs: &[&[u8]]) -> Result<()> {
        self.write_one(at, bufs, Of::Structure)
    }

    fn write_one(&self, at: Physical, bufs: &[&[u8]], of: Of) -> Result<()> {
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        add(&self.counters.writes, 1);
        add(&self.counters.written_bytes, len);
        let result = match (of, bufs) {
            (Of::Apart { through }, bufs) => self.dev.write_apart(at.0, bufs, through),
            (Of::Structure, [one]) => self.dev.write_at(at.0, one),
            (Of::Structure, many) => self.dev.write_vectored_at(at.0, many),
        };
        result.map_err(|source| {
            add(&self.counters.write_errors, 1);
            Error::io(format!("{}: write of {len} bytes at {at}", self.dev.name()), source)
        })
    }

    /// What was written so far is to go to the medium soon. Once in [`crate::WRITE_WINDOW`] bytes is
    /// often enough. Nothing is durable by it.
    pub fn start_writing(&self) -> Result<()> {
        if !self.writable() {
            return Ok(());
        }
        self.dev.start_writing().map_err(|source| {
            add(&self.counters.write_errors, 1);
            Error::io(format!("{}: writing to the medium", self.dev.name()), source)
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

    /// The volume has what the incompat `bits` stand for: so says every superblock from now on, of
    /// a commit as of a log. To be called before anything that a commit or a log may take has it.
    pub fn announce(&self, bits: u64) {
        if self.announced.load(Ordering::Relaxed) & bits != bits {
            self.announced.fetch_or(bits, Ordering::SeqCst);
        }
    }

    /// As `announce`, of the compat_ro `bits`.
    pub fn announce_ro(&self, bits: u64) {
        self.announced_ro.fetch_or(bits, Ordering::SeqCst);
    }

    fn say_announced(&self, sb: &mut Superblock) {
        sb.fields.incompat_flags |= self.announced.load(Ordering::SeqCst);
        sb.fields.compat_ro_flags |= self.announced_ro.load(Ordering::SeqCst);
    }

    /// Makes `sb` the volume's superblock; durable when this returns. The caller has
    /// flushed what it points to.
    pub fn commit_superblock(&self, mut sb: Superblock) -> Result<()> {
        self.check_writable()?;
        let mut copies = self.commit.lock();
        self.mend(&mut copies)?;
        self.say_announced(&mut sb);
        self.write_copies(&mut copies.refused, &sb, |_| true)?;
        let sb = Arc::new(sb);
        *self.written.write() = sb.clone();
        *self.superblock.write() = sb;
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
        let mut copies = self.commit.lock();
        self.mend(&mut copies)?;
        let mut sb = Superblock::clone(&self.superblock());
        (sb.fields.log_root, sb.fields.log_root_level) = (root, level);
        self.say_announced(&mut sb);
        self.write_copies(&mut copies.refused, &sb, |_| true)?;
        *self.written.write() = Arc::new(sb);
        Ok(())
    }

    /// Rewrites the superblock copies that differed from the one that the volume was opened
    /// by, unless a commit has done so; durable when this returns. For mounts that may have
    /// nothing else to write: the caller has found nothing to refuse the volume for.
    pub fn mend_superblocks(&self) -> Result<()> {
        self.check_writable()?;
        self.mend(&mut self.commit.lock())
    }

    /// For who writes what a superblock is to lead to.
    fn mend_first(&self) -> Result<()> {
        match self.copies_differ.load(Ordering::Acquire) {
            true => self.mend(&mut self.commit.lock()),
            false => Ok(()),
        }
    }

    /// Copies that are right are not touched, since of them may be but one; other than the first one: a flush of
    /// it that failed may be why they differ, and then it is right in a cache alone. It comes when the others are
    /// durable, so that at any moment one is.
    fn mend(&self, Copies { stale, refused }: &mut Copies) -> Result<()> {
        let Some(of_these) = stale else { return Ok(()) };
        let (opened, mut copies) = (&of_these.opened, of_these.copies.clone());
        superblock::may_be_refused(refused, &copies);
        self.flush()?;
        self.write_others(refused, opened, |at| copies.contains(&at))?;
        self.flush()?;
        self.write_first(opened)?;
        self.flush()?;
        if !refused.is_empty() {
            let device = self.dev.name();
            warn!(%device, offsets = ?refused, "superblock copies are refused, and done without");
        }
        copies.retain(|at| !refused.contains(at));
        if !copies.is_empty() {
            add(&self.counters.superblock_repairs, copies.len() as u64);
            warn!(
                device = %self.dev.name(), offsets = ?copies, generation = opened.generation().0,
                "superblock copies that a crash or damage left behind were rewritten"
            );
        }
        *stale = None;
        self.copies_differ.store(false, Ordering::Release);
        Ok(())
    }

    /// The first copy, flush, the others; of each only if it is `wanted`. With `commit` held. Others than the
    /// first one may be `refused`.
    pub(crate) fn write_copies(
        &self,
        refused: &mut Vec<u64>,
        sb: &Superblock,
        wanted: impl Fn(u64) -> bool,
    ) -> Result<()> {
        if wanted(FIRST) {
            self.write_first(sb)?;
        }
        // Also where the first one is right already: the device may have it in a cache alone.
        self.flush()?;
        self.write_others(refused, sb, wanted)
    }

    fn write_first(&self, sb: &Superblock) -> Result<()> {
        self.check_going()?;
        self.write_physical(Physical(FIRST), &[&sb.to_bytes(FIRST)?])
    }

    fn write_others(
        &self,
        refused: &mut Vec<u64>,
        sb: &Superblock,
        wanted: impl Fn(u64) -> bool,
    ) -> Result<()> {
        self.check_going()?;
        let all = super_copies(sb.fields.dev_item.total_bytes);
        for at in all.filter(|at| *at != FIRST && wanted(*at)) {
            self.write_other_copy(refused, at, &sb.to_bytes(at)?);
        }
        Ok(())
    }

    /// One that was refused before tells at once whether it is again, also where a device tells late.
    fn write_other_copy(&self, refused: &mut Vec<u64>, at: u64, bytes: &[u8]) {
        let through = refused.contains(&at);
        let Err(error) = self.write_one(Physical(at), &[bytes], Of::Apart { through }) else {
            return refused.retain(|place| *place != at);
        };
        add(&self.counters.superblock_refusals, 1);
        if !through {
            refused.push(at);
            warn!(%error, "a copy of the superblock is refused, and done without");
        }
    }

    /// Tells the device that a range's content is no longer needed, in all copies; how many of its bytes that are.
    pub fn discard(&self, logical: Logical, len: u64) -> Result<u64> {
        self.check_writable()?;
        let mapping = self.map(logical, len)?;
        mapping.copies().iter().map(|at| self.discard_physical(*at, len)).sum()
    }

    /// The same for a range of the device; copies of the superblock stay.
    pub fn discard_physical(&self, at: Physical, len: u64) -> Result<u64> {
        self.check_writable()?;
        let _shared = self.repair.read();
        self.check_going()?;
        // Whoever read by old roots ends when he likes. The device is no worse off, and is told by a trim.
        if self.is_held() {
            return Ok(0);
        }
        let mut told = 0;
        for (start, len) in around_superblocks(at.0, len) {
            self.dev.discard(start, len).map_err(|source| {
                // No write error: nothing that is in use is worse off.
                let what = format!("{}: discard of {len} bytes at {start}", self.dev.name());
                Error::io(what, source)
            })?;
            told += len;
        }
        Ok(told)
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
