//! Checksums of logged data: from the log into the delta, once all extents are known.
//!
//! Invariant of what goes into the delta: one run for each sector, keyed by the extent that
//! it belongs to; sectors whose checksum the checksum tree has already are left out, and
//! where it has another one, that one goes. A sector without any is damage, of that range
//! alone: its reads fail.
//!
//! Memory: one entry a sector that the log has checksums of.

use super::Replay;
use crate::error::IntoFs;
use crate::extents::sums;
use crate::ino::InodeId;
use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::key::kind::EXTENT_CSUM;
use btrfs_disk::{Key, Logical};
use btrfs_tree::{Cursor, TreeRoot};
use std::collections::BTreeMap;
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

/// Checksum by sector, with the extent that the sector belongs to.
type Found = BTreeMap<u64, (Logical, Box<[u8]>)>;

impl Sums {
    pub(crate) fn want(&mut self, wanted: Wanted) {
        self.wanted.push(wanted);
    }
}

impl Replay<'_> {
    pub(super) fn put_sums(&mut self) -> Result<()> {
        let mut found = Found::new();
        let mut all = std::mem::take(&mut self.sums.wanted);
        all.sort_unstable_by_key(|w| (w.log.logical, w.range));
        let mut covered = (Logical(0), 0);
        for mut wanted in all {
            if wanted.log.logical == covered.0 {
                wanted.range.0 = wanted.range.0.max(covered.1);
            }
            if wanted.range.0 < wanted.range.1 && self.lives(&wanted)? {
                self.collect(&wanted, &mut found)?;
                covered = (wanted.log.logical, wanted.range.1);
            }
        }
        let mut run: Option<Run> = None;
        for (at, (extent, sum)) in found {
            let goes_on = run.as_ref().is_some_and(|run| run.takes(at, extent));
            if !goes_on && let Some(run) = run.take() {
                self.put_run(&run)?;
            }
            let sector = self.core.sector();
            run.get_or_insert_with(|| Run { extent, at, end: at, sums: Vec::new() })
                .push(&sum, sector);
        }
        run.map_or(Ok(()), |run| self.put_run(&run))
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

    /// What the log has of the wanted range.
    fn collect(&self, wanted: &Wanted, found: &mut Found) -> Result<()> {
        let (sector, size) = (self.core.sector(), self.core.geometry.csum.size());
        let (from, to) = wanted.range;
        let key = |at| Key::new(EXTENT_CSUM_OBJECTID, EXTENT_CSUM, at);
        let mut cursor = Cursor::new(&self.core.store, &wanted.log);
        cursor.seek_back(&key(from)).fs()?;
        if cursor.item().is_none_or(|(found, _)| found.kind != EXTENT_CSUM) {
            cursor.seek(&key(from)).fs()?;
        }
        while let Some((item, sums)) = cursor.item() {
            if item.kind != EXTENT_CSUM || item.offset >= to {
                break;
            }
            for (i, sum) in sums.chunks_exact(size).enumerate() {
                let at = item.offset.saturating_add(i as u64 * sector);
                if (from..to).contains(&at) {
                    found.insert(at, (wanted.extent, sum.into()));
                }
            }
            cursor.next().fs()?;
        }
        self.complete(wanted, found)
    }

    /// What the log has no checksums of, the tree should have. Where neither does, that range
    /// cannot be verified and its reads fail, as they do for the kernel: one file's damage is
    /// no reason to give up all other fsyncs.
    fn complete(&self, wanted: &Wanted, found: &Found) -> Result<()> {
        let sector = self.core.sector();
        let (mut from, to) = wanted.range;
        for at in found.range(from..to).map(|(at, _)| *at).chain([to]) {
            while from < at {
                let count = ((at - from) / sector).min(RUN) as usize;
                let (mut sums, mut known) =
                    (vec![0; count * self.core.geometry.csum.size()], vec![false; count]);
                let view = &self.op.view;
                sums::stored(self.core, view, Logical(from), &mut sums, &mut known)?;
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
                from += count as u64 * sector;
            }
            from = at + sector;
        }
        Ok(())
    }

    /// Puts the parts of a run that the checksum tree does not have.
    fn put_run(&self, run: &Run) -> Result<()> {
        let (sector, size) = (self.core.sector(), self.core.geometry.csum.size());
        let count = run.sums.len() / size;
        let (mut stored, mut known) = (vec![0; run.sums.len()], vec![false; count]);
        let at = Logical(run.at);
        let view = &self.op.view;
        sums::stored(self.core, view, at, &mut stored, &mut known)?;
        let same =
            |i: usize| known[i] && stored[i * size..][..size] == run.sums[i * size..][..size];
        let mut first = 0;
        while first < count {
            let end = (first..count).find(|i| same(*i) != same(first)).unwrap_or(count);
            if !same(first) {
                let from = at.offset(first as u64 * sector);
                if known[first..end].contains(&true) {
                    self.op.replace_sums(from, (end - first) as u64 * sector);
                }
                self.op.put_sums(run.extent, from, run.sums[first * size..end * size].into());
            }
            first = end;
        }
        Ok(())
    }
}

/// Neighbouring sectors of one extent.
struct Run {
    extent: Logical,
    at: u64,
    end: u64,
    sums: Vec<u8>,
}

impl Run {
    fn takes(&self, at: u64, extent: Logical) -> bool {
        at == self.end && extent == self.extent && (self.end - self.at) >> 12 < RUN
    }

    fn push(&mut self, sum: &[u8], sector: u64) {
        self.sums.extend_from_slice(sum);
        self.end += sector;
    }
}
