//! The log that a crash left: every node of it is read and judged, and lies in space that
//! no tree uses.
//!
//! What its items say of files is not compared with the files: that is the replay's work,
//! and changes nothing until it succeeds. The references of its nodes are nobody's: no
//! extent item stands for them.

use crate::extents::ExtentTree;
use crate::refs::Usage;
use crate::source::Context;
use crate::walk::{TreeStart, walk};
use crate::{Finding, FindingKind, Phase};
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Generation, TreeId};

pub(crate) fn check(cx: &mut Context<'_>, extents: Option<&ExtentTree>) {
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
    for tree in &trees {
        walk(cx, &mut usage, tree, &mut |_, _| ());
    }
    cx.report.totals.log_trees = trees.len() as u64;
    cx.report.totals.log_blocks = usage.blocks.len() as u64;
    if let Some(extents) = extents {
        outside(cx, &usage, extents);
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
