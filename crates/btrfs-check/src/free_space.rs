//! The free-space tree against the gaps between the extents of each block group.
//!
//! The tree knows nothing of superblock copies: their ranges count as free in it.
//! Entries of block groups that are gone are no finding in front of the first group, where
//! mkfs.btrfs leaves those of its temporary ones behind, and a note in front of the last one: no
//! block group ever comes to their addresses again. Behind it they meet the next one.

use crate::extents::{StoredBlockGroup, StoredExtent};
use crate::source::Context;
use crate::walk::Leaf;
use crate::{Finding, FindingKind};
use btrfs_disk::items::{FREE_SPACE_USING_BITMAPS, FreeSpaceInfo};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, FixedSize, Key, TreeId};

type Range = (u64, u64);

struct Group {
    start: u64,
    end: u64,
    info: FreeSpaceInfo,
    counted: u64,
}

impl Group {
    fn uses_bitmaps(&self) -> bool {
        self.info.flags & FREE_SPACE_USING_BITMAPS != 0
    }
}

#[derive(Default)]
pub(crate) struct FreeSpace {
    groups: Vec<Group>,
    /// Free ranges [start, end), ascending, neighbours merged.
    free: Vec<Range>,
}

impl FreeSpace {
    pub(crate) fn leaf(&mut self, cx: &mut Context<'_>, leaf: &Leaf<'_>) {
        for (key, data) in leaf.node.items() {
            if let Err(kind) = self.item(cx, key, data) {
                cx.add(Finding::new(kind).tree(leaf.tree).key(key));
            }
        }
    }

    fn item(&mut self, cx: &Context<'_>, key: Key, data: &[u8]) -> Result<(), FindingKind> {
        let malformed = |why: String| FindingKind::ItemMalformed { why };
        let end = key.objectid.saturating_add(key.offset);
        if key.kind == kind::FREE_SPACE_INFO {
            let info = FreeSpaceInfo::read(data).map_err(|c: Corrupt| malformed(c.what))?;
            self.groups.push(Group { start: key.objectid, end, info, counted: 0 });
            return Ok(());
        }
        let bitmap = match key.kind {
            kind::FREE_SPACE_EXTENT => false,
            kind::FREE_SPACE_BITMAP => true,
            _ => return Err(FindingKind::ItemUnknown),
        };
        let Some(group) = self.groups.last_mut().filter(|g| end <= g.end) else {
            return Err(FindingKind::FreeSpaceStray);
        };
        if bitmap != group.uses_bitmaps() {
            return Err(malformed("extents in a block group of bitmaps, or the reverse".into()));
        }
        let sector = u64::from(cx.geometry.sector_size);
        if !bitmap {
            group.counted += 1;
            return if push(&mut self.free, (key.objectid, end)).is_some() {
                Ok(())
            } else {
                Err(FindingKind::FreeSpaceOverlap)
            };
        }
        let mut fine = true;
        for run in runs(data, key.offset / sector) {
            let range = (key.objectid + run.0 * sector, key.objectid + run.1 * sector);
            // A run that goes on from the bitmap in front is one with it, except
            // across block groups.
            let joined = push(&mut self.free, range);
            fine &= joined.is_some();
            if joined != Some(true) || range.0 == group.start {
                group.counted += 1;
            }
        }
        if fine { Ok(()) } else { Err(FindingKind::FreeSpaceOverlap) }
    }

    /// `extents` and `block_groups` ascend. `known`: both trees could be read wholly.
    pub(crate) fn check(
        &self,
        cx: &mut Context<'_>,
        block_groups: &[StoredBlockGroup],
        extents: &[StoredExtent],
    ) {
        for group in &self.groups {
            let mut add = |kind| {
                cx.add(Finding::new(kind).tree(TreeId::FREE_SPACE).at(group.start));
            };
            let (stored, counted) = (u64::from(group.info.extent_count), group.counted);
            let here = block_groups.partition_point(|g| g.end() <= group.start);
            let found = block_groups.get(here).filter(|g| g.start < group.end);
            let behind = block_groups.last().is_none_or(|last| group.start >= last.end());
            let between = block_groups.first().is_some_and(|first| group.start >= first.end());
            if found.is_some_and(|g| (g.start, g.end()) == (group.start, group.end)) {
                if stored != counted {
                    add(FindingKind::FreeSpaceCount { stored, counted });
                }
            } else if found.is_some() || behind {
                add(FindingKind::FreeSpaceStray);
            } else if between {
                add(FindingKind::FreeSpaceLeft);
            }
        }
        for group in block_groups {
            if self.groups.binary_search_by_key(&group.start, |g| g.start).is_err() {
                let finding = Finding::new(FindingKind::FreeSpaceInfoMissing);
                cx.add(finding.tree(TreeId::FREE_SPACE).at(group.start));
            }
        }
        self.ranges(cx, block_groups, extents);
    }

    fn ranges(
        &self,
        cx: &mut Context<'_>,
        block_groups: &[StoredBlockGroup],
        extents: &[StoredExtent],
    ) {
        let mut used = Vec::with_capacity(extents.len());
        for extent in extents {
            // Overlaps are reported elsewhere.
            let _ = push(&mut used, (extent.start, extent.end()));
        }
        let mut all = Vec::with_capacity(block_groups.len());
        for group in block_groups {
            let _ = push(&mut all, (group.start, group.end()));
        }
        let gaps = subtract(&all, &used);
        let mut add = |kind, at| cx.add(Finding::new(kind).tree(TreeId::FREE_SPACE).at(at));
        let gone = subtract(&self.free, &all);
        for (start, end) in subtract(&subtract(&self.free, &gone), &gaps) {
            add(FindingKind::FreeSpaceInUse { len: end - start }, start);
        }
        for (start, end) in subtract(&gaps, &self.free) {
            add(FindingKind::FreeSpaceNotListed { len: end - start }, start);
        }
    }
}

/// Appends to an ascending list. `Some(true)`: joined to the last range; `None`: overlaps.
fn push(ranges: &mut Vec<Range>, range: Range) -> Option<bool> {
    match ranges.last_mut() {
        Some(last) if last.1 > range.0 => {
            last.1 = last.1.max(range.1);
            None
        }
        Some(last) if last.1 == range.0 => {
            last.1 = range.1;
            Some(true)
        }
        _ => {
            ranges.push(range);
            Some(false)
        }
    }
}

/// Runs of set bits, as [from, to) in bits, LSB first.
fn runs(bytes: &[u8], bits: u64) -> Vec<Range> {
    let mut out: Vec<Range> = Vec::new();
    for (index, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        for bit in (0..8).filter(|bit| byte >> bit & 1 != 0) {
            let at = index as u64 * 8 + bit;
            if at < bits {
                let _ = push(&mut out, (at, at + 1));
            }
        }
    }
    out
}

/// What of `a` is not in `b`; both ascend and are disjoint.
fn subtract(a: &[Range], b: &[Range]) -> Vec<Range> {
    let mut out = Vec::new();
    let mut b = b.iter().copied().peekable();
    for &(mut at, end) in a {
        while at < end {
            while b.next_if(|hole| hole.1 <= at).is_some() {}
            match b.peek() {
                Some(&(from, to)) if from < end => {
                    if at < from {
                        out.push((at, from));
                    }
                    at = to;
                }
                _ => {
                    out.push((at, end));
                    at = end;
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtract_leaves_what_is_only_in_the_first() {
        let a = [(0, 10), (20, 30), (40, 50)];
        assert_eq!(subtract(&a, &[]), a);
        assert_eq!(subtract(&a, &[(0, 100)]), []);
        assert_eq!(
            subtract(&a, &[(2, 4), (8, 22), (25, 26), (49, 60)]),
            [(0, 2), (4, 8), (22, 25), (26, 30), (40, 49)]
        );
    }

    #[test]
    fn runs_of_bits() {
        assert_eq!(runs(&[0b1000_0001, 0b0000_0001, 0], 24), [(0, 1), (7, 9)]);
        assert_eq!(runs(&[0xff], 5), [(0, 5)], "bits behind the end are not there");
    }
}
