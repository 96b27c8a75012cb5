//! The extent tree against what the trees really use, in both directions.
//!
//! Where a tree could not be read wholly, what nobody seems to use may be in use by the
//! part that is lost; such findings are left out, since the unreadable block is one.

use crate::chunks::Layout;
use crate::extents::{ExtentTree, StoredExtent};
use crate::refs::{RefRecord, Usage, merge};
use crate::source::Context;
use crate::{Finding, FindingKind};
use btrfs_disk::TreeId;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};

/// Which sides are known wholly.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub extent_tree: bool,
    pub trees: bool,
}

pub(crate) fn compare(
    cx: &mut Context<'_>,
    stored: &mut ExtentTree,
    used: &[RefRecord],
    usage: &Usage,
    known: Known,
) {
    merge(&mut stored.refs);
    let mut compare = Compare { cx, usage, known };
    let mut used = Groups { records: used };
    let mut refs = Groups { records: &stored.refs };
    for extent in &stored.extents {
        while let Some(group) = used.take_before(extent.start) {
            compare.missing(group);
        }
        let used = used.take(extent.start);
        compare.extent(extent, refs.take(extent.start), used);
    }
    while let Some(group) = used.take_any() {
        compare.missing(group);
    }
}

/// Sorted records, taken extent by extent.
struct Groups<'a> {
    records: &'a [RefRecord],
}

impl<'a> Groups<'a> {
    fn take_any(&mut self) -> Option<&'a [RefRecord]> {
        let start = self.records.first()?.start;
        Some(self.take(start))
    }

    fn take_before(&mut self, start: u64) -> Option<&'a [RefRecord]> {
        if self.records.first()?.start >= start {
            return None;
        }
        self.take_any()
    }

    fn take(&mut self, start: u64) -> &'a [RefRecord] {
        let skip = self.records.iter().take_while(|r| r.start < start).count();
        let rest = &self.records[skip..];
        let len = rest.iter().take_while(|r| r.start == start).count();
        self.records = &rest[len..];
        &rest[..len]
    }
}

struct Compare<'c, 'a> {
    cx: &'c mut Context<'a>,
    usage: &'c Usage,
    known: Known,
}

fn total(refs: &[RefRecord]) -> u64 {
    refs.iter().fold(0u64, |sum, r| sum.saturating_add(r.count))
}

impl Compare<'_, '_> {
    fn add(&mut self, start: u64, kind: FindingKind) {
        self.cx.add(Finding::new(kind).tree(TreeId::EXTENT).at(start));
    }

    fn missing(&mut self, used: &[RefRecord]) {
        if self.known.extent_tree {
            let node_size = u64::from(self.cx.geometry.node_size);
            let len = if used[0].len == 0 { node_size } else { used[0].len };
            let kind = FindingKind::ExtentMissing { len, references: total(used) };
            self.add(used[0].start, kind);
        }
    }

    fn extent(&mut self, extent: &StoredExtent, stored: &[RefRecord], used: &[RefRecord]) {
        let sum = total(stored);
        if sum != extent.refs {
            let kind = FindingKind::ExtentRefTotal { stored: extent.refs, sum };
            self.add(extent.start, kind);
        }
        if used.is_empty() {
            if self.known.trees {
                let kind = FindingKind::ExtentUnreferenced { len: extent.len, stored: sum };
                self.add(extent.start, kind);
            }
            return;
        }
        self.shape(extent, used);
        self.owners(extent.start, stored, used);
    }

    /// Kind, length and level. (The sharing flag shows in the references of the children.)
    fn shape(&mut self, extent: &StoredExtent, used: &[RefRecord]) {
        let start = extent.start;
        for record in used {
            let is_block = record.len == 0;
            if is_block != extent.is_block() {
                let why = format!("{} uses it as the other kind", record.owner);
                return self.add(start, FindingKind::ExtentFlags { flags: extent.flags, why });
            }
            if !is_block && record.len != extent.len {
                let kind = FindingKind::ExtentLength { stored: extent.len, used: record.len };
                return self.add(start, kind);
            }
        }
        let Some(block) = self.usage.blocks.get(&start).copied() else { return };
        if block.level != extent.level {
            let kind = FindingKind::ExtentLevel { stored: extent.level, used: block.level };
            self.add(start, kind);
        }
    }

    /// Both lists are sorted by owner.
    fn owners(&mut self, start: u64, mut stored: &[RefRecord], mut used: &[RefRecord]) {
        loop {
            match (stored.first(), used.first()) {
                (None, None) => return,
                (Some(s), Some(u)) if s.owner == u.owner => {
                    // Different lengths of one owner were reported as such.
                    let same = used.iter().take_while(|r| r.owner == u.owner).count();
                    let counted = total(&used[..same]);
                    self.counts(start, s, counted);
                    (stored, used) = (&stored[1..], &used[same..]);
                }
                (Some(s), u) if u.is_none_or(|u| s.owner < u.owner) => {
                    self.counts(start, s, 0);
                    stored = &stored[1..];
                }
                (_, Some(u)) => {
                    let kind = FindingKind::ReferenceMissing { owner: u.owner, counted: u.count };
                    self.add(start, kind);
                    used = &used[1..];
                }
                (Some(_), None) => unreachable!("the arm above takes it"),
            }
        }
    }

    fn counts(&mut self, start: u64, record: &RefRecord, counted: u64) {
        let (owner, stored) = (record.owner, record.count);
        if counted == stored || (counted < stored && !self.known.trees) {
            return;
        }
        let kind = match counted {
            0 => FindingKind::ReferenceStray { owner, stored },
            _ => FindingKind::ReferenceCount { owner, stored, counted },
        };
        self.add(start, kind);
    }
}

/// Where extents lie: no overlap, in a block group of their kind, off the superblocks;
/// and what every block group and the superblock count of them.
pub(crate) fn placement(cx: &mut Context<'_>, stored: &ExtentTree, layout: &Layout, known: Known) {
    let mut used = vec![0u64; stored.block_groups.len()];
    let mut furthest: Option<&StoredExtent> = None;
    for extent in &stored.extents {
        let mut add = |kind| cx.add(Finding::new(kind).tree(TreeId::EXTENT).at(extent.start));
        if let Some(other) = furthest.filter(|other| other.end() > extent.start) {
            add(FindingKind::ExtentsOverlap { other: other.start });
        }
        if furthest.is_none_or(|other| other.end() < extent.end()) {
            furthest = Some(extent);
        }
        let index = stored.block_groups.partition_point(|g| g.start <= extent.start);
        match index.checked_sub(1).filter(|i| stored.block_groups[*i].end() >= extent.end()) {
            None if !known.extent_tree => {}
            None => add(FindingKind::ExtentPlacement { why: "is in no block group".into() }),
            Some(index) => {
                used[index] = used[index].saturating_add(extent.len);
                let flags = stored.block_groups[index].item.flags;
                if let Some(why) = misplaced(extent, flags, layout) {
                    add(FindingKind::ExtentPlacement { why });
                }
            }
        }
    }
    if known.extent_tree {
        totals(cx, stored, &used);
    }
}

fn misplaced(extent: &StoredExtent, flags: u64, layout: &Layout) -> Option<String> {
    use btrfs_disk::ids::block_group::{DATA, METADATA, SYSTEM};
    let wanted = if extent.is_block() { METADATA | SYSTEM } else { DATA };
    if flags & wanted == 0 {
        return Some(format!("lies in a block group of the wrong type {flags:#x}"));
    }
    let on_super = layout.physical(extent.start, extent.len).into_iter().any(|(at, len)| {
        COPIES.iter().any(|copy| at < copy + SUPER_SIZE as u64 && *copy < at.saturating_add(len))
    });
    on_super.then(|| "lies on a superblock copy".into())
}

fn totals(cx: &mut Context<'_>, stored: &ExtentTree, used: &[u64]) {
    for (group, counted) in stored.block_groups.iter().zip(used) {
        if group.item.used != *counted {
            let kind = FindingKind::BlockGroupUsed { stored: group.item.used, counted: *counted };
            cx.add(Finding::new(kind).at(group.start));
        }
    }
    let counted = stored.extents.iter().fold(0u64, |sum, e| sum.saturating_add(e.len));
    let stored = cx.volume.superblock().fields.bytes_used;
    if stored != counted {
        cx.add(Finding::new(FindingKind::SuperBytesUsed { stored, counted }));
    }
}
