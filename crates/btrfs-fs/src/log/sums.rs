//! Checksums of logged extents: those that no tree has yet, each of them once.

use super::state::TreeLog;
use crate::data::sums::max_item;
use crate::engine::Engine;
use crate::view::View;
use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::items::FileExtentFields;
use btrfs_disk::key::kind::EXTENT_CSUM;
use btrfs_disk::{Key, Logical};
use btrfs_tree::Edit;
use std::collections::BTreeMap;

/// Adds the checksums that an extent item needs and the log does not have.
pub fn log_sums(
    engine: &Engine,
    view: &View<'_>,
    log: &mut TreeLog,
    compressed: bool,
    fields: &FileExtentFields,
    edits: &mut BTreeMap<Key, Edit>,
) {
    let extent = fields.disk_bytenr;
    let (start, len) = match compressed {
        true => (extent.0, fields.disk_num_bytes),
        false => (extent.0.saturating_add(fields.offset), fields.num_bytes),
    };
    let size = engine.geometry.csum.size();
    for (from, to) in missing(log, engine.sector(), size, start, start.saturating_add(len)) {
        let count = ((to - from) / engine.sector()) as usize;
        let (mut out, mut known) = (vec![0; count * size], vec![false; count]);
        view.pending_sums(extent, Logical(from), engine.sector(), size, &mut out, &mut known);
        put_runs(engine, log, from, &out, &known, edits);
    }
}

/// The parts of [start, end) that the log has no checksums of.
fn missing(log: &TreeLog, sector: u64, size: usize, start: u64, end: u64) -> Vec<(u64, u64)> {
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
    engine: &Engine,
    log: &mut TreeLog,
    start: u64,
    sums: &[u8],
    known: &[bool],
    edits: &mut BTreeMap<Key, Edit>,
) {
    let size = engine.geometry.csum.size();
    let most = max_item(engine) / size;
    let mut at = 0;
    while at < known.len() {
        let run = known[at..].iter().take_while(|k| **k).count().min(most);
        if run == 0 {
            at += 1;
            continue;
        }
        let first = start + at as u64 * engine.sector();
        let part = sums[at * size..(at + run) * size].to_vec();
        let key = Key::new(EXTENT_CSUM_OBJECTID, EXTENT_CSUM, first);
        edits.insert(key, Edit::Put(part.clone().into()));
        log.sums.insert(first, part);
        at += run;
    }
}
