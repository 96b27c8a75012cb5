//! The log that a crash left: every node of it is read and judged, once, and lies in space that
//! no tree uses. No two of its trees share a node.
//!
//! What its items say of files is not compared with the files: that is the replay's work,
//! and changes nothing until it succeeds. The references of its nodes are nobody's: no
//! extent item stands for them.

use crate::csums::Csums;
use crate::extents::ExtentTree;
use crate::refs::TreeStart;
use crate::refs::Usage;
use crate::source::Context;
use crate::walk::{Again, walk, walk_as};
use crate::{Finding, FindingKind, Phase};
use btrfs_disk::items::{
    Compression, FileExtent, FileExtentKind, InodeItem, RootItem, inode_flags,
};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Generation, TreeId};
use std::collections::HashSet;

/// What is in the log, as far as it can be read; nothing where there is none.
#[derive(Default)]
pub(crate) struct Log {
    usage: Usage,
    extents: Vec<Logged>,
    /// Ranges with checksums in the log.
    sums: Vec<(u64, u64)>,
    /// Whole extents that it refers to.
    held: Reach,
}

impl Log {
    pub(crate) fn read(cx: &mut Context<'_>) -> Log {
        let mut log = Log::default();
        let sb = cx.volume.superblock().fields;
        if sb.log_root.0 == 0 {
            return log;
        }
        cx.begin(Phase::Log, None);
        let start = |logical, level| TreeStart {
            id: TreeId::LOG,
            logical,
            generation: Generation(sb.generation.0 + 1),
            level,
            drop: None,
        };
        let (top, mut trees) = (start(sb.log_root, sb.log_root_level), Vec::new());
        walk(cx, &mut log.usage, &top, &mut |_, leaf| {
            for (key, data) in leaf.node.items() {
                if let (kind::ROOT_ITEM, Ok(item)) = (key.kind, RootItem::parse(data)) {
                    trees.push(start(item.bytenr, item.level));
                }
            }
        });
        for tree in &trees {
            log.tree(cx, tree);
        }
        log.held = Reach::new(log.extents.iter().map(|l| l.extent).collect());
        cx.report.totals.log_trees = trees.len() as u64;
        cx.report.totals.log_blocks = log.usage.blocks.len() as u64;
        log
    }

    fn tree(&mut self, cx: &mut Context<'_>, tree: &TreeStart) {
        let (mut plain, Log { usage, extents, sums, .. }) = (HashSet::new(), self);
        walk_as(Again::Refuse, cx, usage, tree, &mut |cx, leaf| {
            for (key, data) in leaf.node.items() {
                match key.kind {
                    kind::INODE_ITEM => {
                        let item = InodeItem::read(data);
                        if item.is_ok_and(|i| i.flags & inode_flags::NODATASUM != 0) {
                            plain.insert(key.objectid);
                        }
                    }
                    kind::EXTENT_DATA => {
                        let sums = !plain.contains(&key.objectid);
                        extents.extend(logged(key.objectid, data, sums));
                    }
                    kind::EXTENT_CSUM => {
                        let sectors = (data.len() / cx.geometry.csum.size()) as u64;
                        let len = sectors * u64::from(cx.geometry.sector_size);
                        sums.push((key.offset, key.offset.saturating_add(len)));
                    }
                    _ => {}
                }
            }
        });
    }

    /// Checksums of `start..end` that no committed file explains are those of what the log is about.
    pub(crate) fn explains(&self, start: u64, end: u64) -> bool {
        self.held.around(start, end)
    }

    /// Against what the trees say.
    pub(crate) fn check(&self, cx: &mut Context<'_>, extents: Option<&ExtentTree>, csums: &Csums) {
        if csums.complete {
            lacking(cx, &self.extents, &self.sums, csums);
        }
        if let Some(extents) = extents {
            outside(cx, &self.usage, extents);
        }
    }
}

/// What a file extent of the log refers to.
struct Logged {
    ino: u64,
    /// The part that has to have checksums; empty if none does.
    start: u64,
    end: u64,
    /// The whole extent.
    extent: (u64, u64),
}

fn logged(ino: u64, data: &[u8], sums: bool) -> Option<Logged> {
    let Ok(FileExtent::Extent { kind, compression, fields }) = FileExtent::parse(data) else {
        return None;
    };
    let at = fields.disk_bytenr.0;
    if at == 0 {
        return None;
    }
    let (start, len) = match compression {
        Compression::None => (at.saturating_add(fields.offset), fields.num_bytes),
        _ => (at, fields.disk_num_bytes),
    };
    let len = if sums && kind == FileExtentKind::Regular { len } else { 0 };
    let extent = (at, at.saturating_add(fields.disk_num_bytes));
    Some(Logged { ino, start, end: start.saturating_add(len), extent })
}

/// Ranges by their start, each with the furthest end of those up to it: whether one of them
/// holds another range whole is one search, however many there are.
#[derive(Default)]
struct Reach(Vec<(u64, u64)>);

impl Reach {
    fn new(mut ranges: Vec<(u64, u64)>) -> Reach {
        ranges.sort_unstable();
        let mut furthest = 0;
        for range in &mut ranges {
            furthest = range.1.max(furthest);
            range.1 = furthest;
        }
        Reach(ranges)
    }

    fn around(&self, start: u64, end: u64) -> bool {
        let behind = self.0.partition_point(|range| range.0 <= start);
        behind > 0 && self.0[behind - 1].1 >= end
    }
}

/// Logged content must have its checksums, in the log or in the tree.
fn lacking(cx: &mut Context<'_>, logged: &[Logged], sums: &[(u64, u64)], csums: &Csums) {
    let sums = merged(sums);
    for l in logged {
        let gaps = gaps(&sums, l.start, l.end);
        let missing: u64 = gaps.map(|(a, b)| (b - a) - csums.covered(a, b - a)).sum();
        if missing > 0 {
            let kind = FindingKind::CsumMissing { ino: l.ino, len: missing };
            cx.add(Finding::new(kind).tree(TreeId::LOG).at(l.start));
        }
    }
}

/// Ranges in order, those that touch as one.
fn merged(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match out.last_mut() {
            Some(last) if range.0 <= last.1 => last.1 = last.1.max(range.1),
            _ => out.push(range),
        }
    }
    out
}

/// What of `start..end` lies outside of the ranges (merged).
fn gaps(ranges: &[(u64, u64)], start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
    let first = ranges.partition_point(|range| range.1 <= start);
    let inside = ranges[first..].iter().copied().take_while(move |range| range.0 < end);
    let mut at = start;
    inside
        .chain([(end, end)])
        .map(move |(from, to)| {
            let gap = (at, from.max(at));
            at = to.max(at);
            gap
        })
        .filter(|gap| gap.0 < gap.1)
}

/// Nothing that the extent tree knows overlaps a node of the log.
fn outside(cx: &mut Context<'_>, usage: &Usage, extents: &ExtentTree) {
    let size = u64::from(cx.geometry.node_size);
    let mut nodes: Vec<u64> = usage.blocks.keys().copied().collect();
    nodes.sort_unstable();
    for at in nodes {
        let behind = extents.extents.partition_point(|extent| extent.start < at + size);
        let before = behind.checked_sub(1).map(|i| &extents.extents[i]);
        if before.is_some_and(|extent| extent.start.saturating_add(extent.len) > at) {
            let why = "a node of the log lies in space that is in use".into();
            let kind = FindingKind::NodePlacement { why };
            cx.add(Finding::new(kind).tree(TreeId::LOG).at(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_held_by_one_that_began_before() {
        let reach = Reach::new(vec![(40, 50), (0, 30), (10, 20)]);
        for (start, end, held) in
            [(0, 30, true), (12, 25, true), (25, 31, false), (40, 50, true), (30, 40, false)]
        {
            assert_eq!(reach.around(start, end), held, "{start}..{end}");
        }
        assert!(!Reach::new(Vec::new()).around(0, 1));
    }

    #[test]
    fn gaps_are_what_no_range_covers() {
        let ranges = merged(&[(20, 30), (0, 10), (25, 40), (10, 12)]);
        assert_eq!(ranges, [(0, 12), (20, 40)]);
        let of = |start, end| gaps(&ranges, start, end).collect::<Vec<_>>();
        assert_eq!(of(5, 50), [(12, 20), (40, 50)]);
        assert_eq!(of(14, 18), [(14, 18)]);
        assert_eq!((of(0, 12), of(22, 39), of(7, 7)), (vec![], vec![], vec![]));
    }
}
