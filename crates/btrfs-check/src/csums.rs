//! The checksum tree: which bytes have checksums, and whether they should.

use crate::extents::StoredExtent;
use crate::source::Context;
use crate::walk::Leaf;
use crate::{Finding, FindingKind};
use btrfs_disk::TreeId;
use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::key::kind;

#[derive(Default)]
pub(crate) struct Csums {
    /// Checksummed ranges [start, end), ascending, neighbours merged.
    ranges: Vec<(u64, u64)>,
    /// Whether the whole tree could be read.
    pub complete: bool,
}

impl Csums {
    pub(crate) fn leaf(&mut self, cx: &mut Context<'_>, leaf: &Leaf<'_>) {
        let size = cx.geometry.csum.size();
        let sector = u64::from(cx.geometry.sector_size);
        for (key, data) in leaf.node.items() {
            let mut add = |kind| cx.add(Finding::new(kind).tree(leaf.tree).key(key));
            if (key.objectid, key.kind) != (EXTENT_CSUM_OBJECTID, kind::EXTENT_CSUM) {
                add(FindingKind::ItemUnknown);
                continue;
            }
            let len = (data.len() / size) as u64 * sector;
            if !self.push(key.offset, key.offset.saturating_add(len)) {
                add(FindingKind::CsumOverlap);
            }
        }
    }

    /// False if the range overlaps the last one.
    fn push(&mut self, start: u64, end: u64) -> bool {
        match self.ranges.last_mut() {
            Some(last) if last.1 >= start => {
                let apart = last.1 == start;
                last.1 = last.1.max(end);
                apart
            }
            _ => {
                self.ranges.push((start, end));
                true
            }
        }
    }

    /// How many bytes of the range have checksums.
    pub(crate) fn covered(&self, start: u64, len: u64) -> u64 {
        let end = start.saturating_add(len);
        let first = self.ranges.partition_point(|range| range.1 <= start);
        self.ranges[first..]
            .iter()
            .take_while(|range| range.0 < end)
            .map(|range| range.1.min(end) - range.0.max(start))
            .sum()
    }

    pub(crate) fn total(&self) -> u64 {
        self.ranges.iter().map(|range| range.1 - range.0).sum()
    }

    /// Finds checksums outside of every data extent; `explained`: of a range from and up to, those that are in order.
    pub(crate) fn strays(
        &self,
        cx: &mut Context<'_>,
        extents: &[StoredExtent],
        explained: &dyn Fn(u64, u64) -> bool,
    ) {
        let mut data = extents.iter().filter(|extent| !extent.is_block()).peekable();
        for (start, end) in &self.ranges {
            let mut at = *start;
            while at < *end {
                while data.next_if(|extent| extent.end() <= at).is_some() {}
                let (from, to) = match data.peek() {
                    Some(extent) if extent.start < *end => (extent.start, extent.end()),
                    _ => (*end, *end),
                };
                if at < from && !explained(at, from) {
                    let kind = FindingKind::CsumStray { len: from - at };
                    cx.add(Finding::new(kind).tree(TreeId::CSUM).at(at));
                }
                at = to.max(at + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_counts_parts_of_ranges() {
        let mut csums = Csums::default();
        assert!(csums.push(4096, 8192));
        assert!(csums.push(8192, 12288), "neighbours are merged, not overlapping");
        assert!(csums.push(20480, 24576));
        assert!(!csums.push(20480, 28672));
        assert_eq!(csums.covered(0, 4096), 0);
        assert_eq!(csums.covered(0, 8192), 4096);
        assert_eq!(csums.covered(4096, 8192), 8192);
        assert_eq!(csums.covered(8192, 1 << 20), 4096 + 8192);
        assert_eq!(csums.total(), 8192 + 8192);
    }
}
