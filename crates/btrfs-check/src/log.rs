//! The log that a crash left: every node of it is read and judged, and lies in space that
//! no tree uses.
//!
//! What its items say of files is not compared with the files: that is the replay's work,
//! and changes nothing until it succeeds. The references of its nodes are nobody's: no
//! extent item stands for them.

use crate::csums::Csums;
use crate::extents::ExtentTree;
use crate::refs::Usage;
use crate::source::Context;
use crate::walk::{TreeStart, walk};
use crate::{Finding, FindingKind, Phase};
use btrfs_disk::items::{
    Compression, FileExtent, FileExtentKind, InodeItem, RootItem, inode_flags,
};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Generation, TreeId};
use std::collections::HashSet;

pub(crate) fn check(cx: &mut Context<'_>, extents: Option<&ExtentTree>, csums: &Csums) {
    let sb = cx.volume.superblock().fields;
    if sb.log_root.0 == 0 {
        return;
    }
    cx.begin(Phase::Log, None);
    let log = |logical, level| TreeStart {
        id: TreeId::LOG,
        logical,
        generation: Generation(sb.generation.0 + 1),
        level,
        drop: None,
    };
    let (mut usage, mut trees) = (Usage::default(), Vec::new());
    walk(cx, &mut usage, &log(sb.log_root, sb.log_root_level), &mut |_, leaf| {
        for (key, data) in leaf.node.items() {
            if let (kind::ROOT_ITEM, Ok(item)) = (key.kind, RootItem::parse(data)) {
                trees.push(log(item.bytenr, item.level));
            }
        }
    });
    let (mut extents_of_log, mut sums) = (Vec::new(), Vec::new());
    for tree in &trees {
        let mut plain = HashSet::new();
        walk(cx, &mut usage, tree, &mut |cx, leaf| {
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
                        extents_of_log.extend(logged(key.objectid, data, sums));
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
    explain(cx, &extents_of_log);
    if csums.complete {
        lacking(cx, &extents_of_log, &sums, csums);
    }
    cx.report.totals.log_trees = trees.len() as u64;
    cx.report.totals.log_blocks = usage.blocks.len() as u64;
    if let Some(extents) = extents {
        outside(cx, &usage, extents);
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

/// Checksums that no committed file explains are those of what the log is about.
fn explain(cx: &mut Context<'_>, logged: &[Logged]) {
    cx.report.findings.retain(|finding| {
        let end = match (&finding.kind, finding.logical) {
            (FindingKind::CsumStray { len }, Some(at)) => at.0.saturating_add(*len),
            (FindingKind::CsumUnwritten { .. }, Some(at)) => at.0 + 1,
            _ => return true,
        };
        let at = finding.logical.map_or(0, |at| at.0);
        !logged.iter().any(|l| l.extent.0 <= at && end <= l.extent.1)
    });
}

/// Logged content must have its checksums, in the log or in the tree.
fn lacking(cx: &mut Context<'_>, logged: &[Logged], sums: &[(u64, u64)], csums: &Csums) {
    let sector = u64::from(cx.geometry.sector_size);
    for l in logged {
        let has = |at: u64| {
            sums.iter().any(|sum| (sum.0..sum.1).contains(&at)) || csums.covered(at, sector) > 0
        };
        let missing = (l.start..l.end).step_by(sector as usize).filter(|at| !has(*at)).count();
        if missing > 0 {
            let kind = FindingKind::CsumMissing { ino: l.ino, len: missing as u64 * sector };
            cx.add(Finding::new(kind).tree(TreeId::LOG).at(l.start));
        }
    }
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
