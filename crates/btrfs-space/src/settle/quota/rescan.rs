//! A rescan: extents that are not counted yet, some in each commit, by ascending address.
//!
//! Invariant: what lies below the status' `rescan` is counted, as the commit leaves it; what is at
//! it and behind is not. So the kernel goes on where this stopped, and the other way round.
//!
//! What it does not know: who began it.

use super::account::Tally;
use super::states::States;
use crate::backrefs::Reachers;
use crate::items::Items;
use crate::refs::{ExtentKind, find_item};
use btrfs_disk::items::{QgroupStatus, extent_flags, qgroup_status};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, Logical, Result};

/// Extents that one commit counts.
/// Chosen, not measured.
const STEP: usize = 2048;

pub(super) fn go_on(
    states: &mut States<'_>,
    extents: &mut dyn Items,
    tally: &mut Tally,
    status: &mut QgroupStatus,
) -> Result<()> {
    let from = status.rescan;
    let mut next = Some(from);
    for _ in 0..STEP {
        let Some(at) = next else { break };
        next = match one(states, extents, tally, at)? {
            Some(found) => found.checked_add(1),
            None => None,
        };
    }
    // New ones are in no tree yet.
    let to = next.unwrap_or(u64::MAX);
    for (extent, len, kind) in states.deltas.changed() {
        let new = states.deltas.get(extent).is_some_and(|delta| delta.born);
        if !new || extent.0 < from || extent.0 >= to {
            continue;
        }
        if let Some((_, after)) = states.reachers(extent, kind)? {
            tally.moved(len, Reachers::from([]), after);
        }
    }
    status.rescan = to;
    if next.is_none() {
        // As the kernel leaves it; `to` is that already.
        debug_assert_eq!(status.rescan, u64::MAX, "all is counted");
        status.flags &= !(qgroup_status::RESCAN | qgroup_status::INCONSISTENT);
    }
    Ok(())
}

/// Counts the first extent of the last commit at `from` or behind, and says where it is.
fn one(
    states: &mut States<'_>,
    extents: &mut dyn Items,
    tally: &mut Tally,
    from: u64,
) -> Result<Option<u64>> {
    let mut key = Key::new(from, kind::EXTENT_ITEM, 0);
    let at = loop {
        let Some((found, _)) = extents.at_or_after(&key)? else { return Ok(None) };
        match found.kind {
            kind::EXTENT_ITEM | kind::METADATA_ITEM => break Logical(found.objectid),
            // What else is there: separate references, block groups.
            _ => match found.successor() {
                Some(next) => key = next,
                None => return Ok(None),
            },
        }
    };
    let Some((key, item)) = find_item(extents, at)? else { return Ok(None) };
    let of = match (key.kind, item.block_info) {
        (kind::METADATA_ITEM, _) => ExtentKind::Node { level: (key.offset & 0xff) as u8 },
        (_, Some((_, level))) => ExtentKind::Node { level },
        _ => ExtentKind::Data,
    };
    let is_data = item.fields.flags & extent_flags::DATA != 0;
    debug_assert_eq!(is_data, of == ExtentKind::Data, "the gate has seen the item");
    let len = if key.kind == kind::METADATA_ITEM { states.node_size } else { key.offset };
    let owners = states.owners_before(at)?;
    let after = states.reached_after(at, of, owners)?;
    tally.moved(len, Reachers::from([]), after);
    Ok(Some(at.0))
}
