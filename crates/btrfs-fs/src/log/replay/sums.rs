//! Checksums of logged data: from the log into the delta, once all extents are known.
//!
//! Invariant of what goes into the delta: one run for each sector, keyed by the extent that
//! it belongs to; sectors whose checksum the checksum tree has already are left out, and
//! where it has another one, that one goes. Of several logs that have a sector the first one's stays.
//! A sector without any is damage, of that range alone: its reads fail.
//!
//! Memory: what is wanted, an entry for each logged extent, and one run of checksums at a time.

use super::Replay;
use crate::error::IntoFs;
use crate::extents::sums;
use crate::ino::InodeId;
use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::key::kind::EXTENT_CSUM;
use btrfs_disk::{Key, Logical};
use btrfs_tree::{Cursor, NodeStore, TreeRoot};
use vfs::Result;

/// Sectors in a run at most.
/// Chosen, not measured: 16 KiB of CRC-32C.
const RUN: u64 = 4096;

#[derive(Default)]
pub(super) struct Sums {
    wanted: Vec<Wanted>,
}

/// A part of an extent that a file uses.
pub(super) struct Wanted {
    pub log: TreeRoot,
    pub id: InodeId,
    pub extent: Logical,
    pub len: u64,
    /// First sector, and the one behind the last.
    pub range: (u64, u64),
}

impl Sums {
    pub(crate) fn want(&mut self, wanted: Wanted) {
        self.wanted.push(wanted);
    }
}

/// What is known of the checksums of some sectors.
struct Known {
    sums: Vec<u8>,
    known: Vec<bool>,
}

impl Replay<'_> {
    pub(super) fn put_sums(&mut self) -> Result<()> {
        let mut all = std::mem::take(&mut self.sums.wanted);
        all.sort_unstable_by_key(|w| (w.log.logical, w.range));
        let mut covered = (Logical(0), 0);
        for mut wanted in all {
            if wanted.log.logical == covered.0 {
                wanted.range.0 = wanted.range.0.max(covered.1);
            }
            if wanted.range.0 < wanted.range.1 && self.lives(&wanted)? {
                self.collect(&wanted)?;
                covered = (wanted.log.logical, wanted.range.1);
            }
        }
        Ok(())
    }

    /// Whether somebody still refers to the extent.
    fn lives(&self, wanted: &Wanted) -> Result<bool> {
        if self.core.health.is_read_only() {
            return Ok(true);
        }
        match self.op.view.layers.current.extents.change(wanted.extent) {
            Some(_) => Ok(true),
            None => self.extent_is_stored(wanted.extent, wanted.len),
        }
    }

    /// Puts what the log has of the wanted range.
    fn collect(&self, wanted: &Wanted) -> Result<()> {
        let (sector, size) = (self.core.sector(), self.core.geometry.csum.size());
        let (from, to) = wanted.range;
        let mut cursor = self.sums_from(wanted.log, from)?;
        let mut run = Run { at: from, end: from, sums: Vec::new() };
        while let Some((item, sums)) = cursor.item() {
            if item.kind != EXTENT_CSUM || item.offset >= to {
                break;
            }
            // Items are whole sectors, and do not overlap but in a log that somebody made up.
            let skipped = run.end.saturating_sub(item.offset).div_ceil(sector) as usize;
            for (i, sum) in sums.chunks_exact(size).enumerate().skip(skipped) {
                let at = item.offset.saturating_add(i as u64 * sector);
                if at >= to {
                    break;
                }
                if at != run.end || run.end - run.at >= RUN * sector {
                    self.put_run(wanted, &run)?;
                    self.complete(wanted, run.end, at)?;
                    run = Run { at, end: at, sums: Vec::new() };
                }
                run.sums.extend_from_slice(sum);
                run.end += sector;
            }
            cursor.next().fs()?;
        }
        self.put_run(wanted, &run)?;
        self.complete(wanted, run.end, to)
    }

    /// The log's checksums from the item on that may reach behind `at`.
    fn sums_from(&self, log: TreeRoot, at: u64) -> Result<Cursor<'_, NodeStore>> {
        let key = Key::new(EXTENT_CSUM_OBJECTID, EXTENT_CSUM, at);
        let mut cursor = Cursor::new(&self.core.store, &log);
        cursor.seek_back(&key).fs()?;
        if cursor.item().is_none_or(|(found, _)| found.kind != EXTENT_CSUM) {
            cursor.seek(&key).fs()?;
        }
        Ok(cursor)
    }

    /// What this replay has put already, of another log.
    fn put_before(&self, extent: Logical, at: u64, count: usize) -> Known {
        let (sector, size) = (self.core.sector(), self.core.geometry.csum.size());
        let (mut sums, mut known) = (vec![0; count * size], vec![false; count]);
        let view = &self.op.view;
        view.pending_sums(extent, Logical(at), sector, size, &mut sums, &mut known);
        Known { sums, known }
    }

    /// What the log has no checksums of, the tree should have. Where neither does, that range
    /// cannot be verified and its reads fail, as they do for the kernel: one file's damage is
    /// no reason to give up all other fsyncs.
    fn complete(&self, wanted: &Wanted, mut from: u64, to: u64) -> Result<()> {
        let sector = self.core.sector();
        while from < to {
            let count = (to - from).div_ceil(sector).min(RUN);
            let Known { mut sums, mut known } =
                self.put_before(wanted.extent, from, count as usize);
            sums::stored(
                self.core,
                &self.op.view.layers.roots,
                Logical(from),
                &mut sums,
                &mut known,
            )?;
            let lacking = known.iter().filter(|known| !**known).count() as u64 * sector;
            if lacking > 0 {
                let (subvolume, inode) = (wanted.id.tree.0, wanted.id.objectid);
                tracing::warn!(
                    subvolume,
                    inode,
                    extent = wanted.extent.0,
                    bytes = lacking,
                    "the log lacks checksums of a file's content: reads of it will fail"
                );
            }
            from += count * sector;
        }
        Ok(())
    }

    /// Puts the parts of a run that neither the checksum tree has nor another log had.
    fn put_run(&self, wanted: &Wanted, run: &Run) -> Result<()> {
        let (sector, size) = (self.core.sector(), self.core.geometry.csum.size());
        let count = run.sums.len() / size;
        let (mut stored, mut known) = (vec![0; run.sums.len()], vec![false; count]);
        let (view, at) = (&self.op.view, Logical(run.at));
        sums::stored(self.core, &view.layers.roots, at, &mut stored, &mut known)?;
        let before = self.put_before(wanted.extent, run.at, count).known;
        let same =
            |i: usize| known[i] && stored[i * size..][..size] == run.sums[i * size..][..size];
        let done: Vec<bool> = (0..count).map(|i| before[i] || same(i)).collect();
        let mut first = 0;
        while first < count {
            let end = (first..count).find(|i| done[*i] != done[first]).unwrap_or(count);
            if !done[first] {
                let from = at.offset(first as u64 * sector);
                if known[first..end].contains(&true) {
                    self.op.replace_sums(from, (end - first) as u64 * sector);
                }
                self.op.put_sums(wanted.extent, from, run.sums[first * size..end * size].into());
            }
            first = end;
        }
        Ok(())
    }
}

/// Neighbouring sectors, from `at` on.
struct Run {
    at: u64,
    end: u64,
    sums: Vec<u8>,
}
