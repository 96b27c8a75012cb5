//! Checksums of logged extents: those that no tree has yet, each of them once.

use super::state::SubvolLog;
use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::items::FileExtentFields;
use btrfs_disk::key::kind::EXTENT_CSUM;
use btrfs_disk::{Key, Logical};
use btrfs_tree::Edit;
use btrfs_txn::commit::max_sum_item;
use btrfs_txn::{Core, View};
use std::collections::BTreeMap;

/// Adds the checksums that an extent item needs and the log does not have.
pub(crate) fn log_sums(
    core: &Core,
    view: &View<'_>,
    log: &mut SubvolLog,
    compressed: bool,
    fields: &FileExtentFields,
    edits: &mut BTreeMap<Key, Edit>,
) {
    let extent = fields.disk_bytenr;
    let (start, len) = match compressed {
        true => (extent.0, fields.disk_num_bytes),
        false => (extent.0.saturating_add(fields.offset), fields.num_bytes),
    };
    let size = core.geometry.csum.size();
    for (from, to) in missing(log, core.sector(), size, start, start.saturating_add(len)) {
        let count = ((to - from) / core.sector()) as usize;
        let (mut out, mut known) = (vec![0; count * size], vec![false; count]);
        view.pending_sums(extent, Logical(from), core.sector(), size, &mut out, &mut known);
        put_runs(core, log, from, &out, &known, edits);
    }
}

/// The parts of [start, end) that the log has no checksums of.
fn missing(log: &SubvolLog, sector: u64, size: usize, start: u64, end: u64) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = start;
    let first = log.sums.range(..=start).next_back().map_or(start, |(from, _)| *from);
    for (from, sums) in log.sums.range(first..end) {
        let to = from + (sums.len() / size) as u64 * sector;
        if to <= at {
            continue;
        }
        if *from > at {
            parts.push((at, *from));
        }
        at = to;
    }
    if at < end {
        parts.push((at, end));
    }
    parts
}

fn put_runs(
    core: &Core,
    log: &mut SubvolLog,
    start: u64,
    sums: &[u8],
    known: &[bool],
    edits: &mut BTreeMap<Key, Edit>,
) {
    let size = core.geometry.csum.size();
    let most = max_sum_item(&core.geometry) / size;
    let mut at = 0;
    while at < known.len() {
        let run = known[at..].iter().take_while(|k| **k).count().min(most);
        if run == 0 {
            at += 1;
            continue;
        }
        let first = start + at as u64 * core.sector();
        let part = sums[at * size..(at + run) * size].to_vec();
        let key = Key::new(EXTENT_CSUM_OBJECTID, EXTENT_CSUM, first);
        edits.insert(key, Edit::Put(part.clone().into()));
        log.sums.insert(first, part);
        at += run;
    }
}
