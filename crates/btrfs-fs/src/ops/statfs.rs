//! Space as `df` tells it: the numbers that the kernel's btrfs gives for the same volume.
//!
//! Invariant: what a committed volume has free is reckoned from its block groups alone, so
//! it does not depend on who mounts it or how. What is written but not committed counts as
//! used; what is deleted but not committed is not free yet.
//!
//! Facts of the kernel's reckoning: all is divided by the copies that data has; the global
//! reserve for metadata is used space; unallocated space counts as data to come.

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::reserve::global_reserve;
use btrfs_disk::ids::block_group::{DATA, DUP, METADATA, SYSTEM};
use btrfs_disk::ids::{DEVICE_RESERVED, STRIPE_LEN};
use btrfs_disk::items::BlockGroupItem;
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key};
use btrfs_space::{ClassTotals, Totals};
use btrfs_volume::ChunkInfo;
use vfs::{Result, StatFs};

pub(crate) fn statfs(engine: &Engine) -> Result<StatFs> {
    let block = engine.core.sector();
    let device = engine.core.volume.superblock().fields.total_bytes;
    let totals = match engine.core.health.is_read_only() {
        true => stored_totals(engine)?,
        false => engine.core.space.totals(),
    };
    let copies = totals.data.copies;
    let blocks = device / copies / block;
    let classes: &[ClassTotals] = match totals.mixed {
        true => &[totals.data, totals.system],
        false => &[totals.data, totals.metadata, totals.system],
    };
    let used: u64 = classes.iter().map(|class| class.used * class.copies).sum();
    let underway = match engine.core.health.is_read_only() {
        true => 0,
        false => underway(engine, &totals.data),
    };
    let reserve = global_reserve(&engine.core)?;
    let free = blocks.saturating_sub((used / copies + underway) / block);
    let available = left(&totals.data).saturating_sub(underway);
    let to_come = match totals.unallocated {
        small if small <= copies * STRIPE_LEN => 0,
        unallocated => unallocated / copies,
    };
    let available = if metadata_is_full(engine, &totals) { 0 } else { available + to_come };
    Ok(StatFs {
        block_size: engine.core.geometry.sector_size,
        blocks,
        blocks_free: free.saturating_sub(reserve / block),
        blocks_available: available / block,
        files: 0,
        files_free: 0,
        name_max: vfs::NAME_MAX as u32,
    })
}

/// What is not used. Both were read by themselves: a chunk may have come between them, and a commit of what is in it.
fn left(data: &ClassTotals) -> u64 {
    data.total.saturating_sub(data.used)
}

/// Data that no commit knows yet: in memory, or in extents of this epoch.
fn underway(engine: &Engine, data: &ClassTotals) -> u64 {
    let settled = data.used + data.pinned + data.excluded + data.free;
    data.total.saturating_sub(settled) + engine.core.memory.dirty()
}

/// Without metadata no data can be written either.
fn metadata_is_full(engine: &Engine, totals: &Totals) -> bool {
    /// What making a file asks for, about.
    /// Chosen, not measured.
    const NODES: u64 = 256;
    let metadata = &totals.metadata;
    let free = metadata.free.saturating_sub(metadata.reserved);
    let kept = totals.global_reserve + NODES * u64::from(engine.core.geometry.node_size);
    !totals.mixed && free + totals.unallocated / metadata.copies / 2 < kept
}

/// What the block group items say; for volumes that are only read.
fn stored_totals(engine: &Engine) -> Result<Totals> {
    let view = engine.core.view();
    let tree = engine.core.roots().of_block_groups();
    let device = engine.core.volume.superblock().fields.dev_item.total_bytes;
    let chunks = engine.core.volume.chunks();
    let taken: u64 = chunks.iter().map(ChunkInfo::on_devices).sum();
    let mut totals = Totals {
        unallocated: device.saturating_sub(taken + DEVICE_RESERVED) / STRIPE_LEN * STRIPE_LEN,
        device,
        ..Totals::default()
    };
    for class in [&mut totals.data, &mut totals.metadata, &mut totals.system] {
        class.copies = 1;
    }
    for chunk in chunks {
        let key = Key::new(chunk.logical.0, kind::BLOCK_GROUP_ITEM, chunk.len);
        let Some(data) = view.get(tree, &key).fs()? else { continue };
        totals.mixed |= chunk.flags & (DATA | METADATA) == DATA | METADATA;
        let class = match chunk.flags {
            flags if flags & SYSTEM != 0 => &mut totals.system,
            flags if flags & DATA != 0 => &mut totals.data,
            _ => &mut totals.metadata,
        };
        let used = BlockGroupItem::read(&data).fs()?.used.min(chunk.len);
        class.total += chunk.len;
        class.used += used;
        class.free += chunk.len - used;
        class.copies = if chunk.flags & DUP != 0 { 2 } else { class.copies };
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_of_a_chunk_that_is_not_counted_yet_leaves_nothing() {
        let data = ClassTotals { total: 8 << 20, used: 9 << 20, ..ClassTotals::default() };
        assert_eq!(left(&data), 0);
        assert_eq!(left(&ClassTotals { used: 3 << 20, ..data }), 5 << 20);
    }
}
