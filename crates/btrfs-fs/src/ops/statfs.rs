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
use btrfs_disk::ids::block_group::{DATA, DUP, METADATA, SYSTEM};
use btrfs_disk::items::{BlockGroupItem, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_space::{ClassTotals, Totals};
use btrfs_tree::Cursor;
use std::sync::atomic::Ordering;
use vfs::{Result, StatFs};

const MIB: u64 = 1 << 20;
const STRIPE: u64 = 64 << 10;

pub fn statfs(engine: &Engine) -> Result<StatFs> {
    let block = engine.sector();
    let device = engine.volume.superblock().fields.total_bytes;
    let totals = match &engine.read_only {
        Some(_) => stored_totals(engine)?,
        None => engine.space.totals(),
    };
    let copies = totals.data.copies;
    let blocks = device / copies / block;
    let classes: &[ClassTotals] = match totals.mixed {
        true => &[totals.data, totals.system],
        false => &[totals.data, totals.metadata, totals.system],
    };
    let used: u64 = classes.iter().map(|class| class.used * class.copies).sum();
    let underway = match &engine.read_only {
        Some(_) => 0,
        None => underway(engine, &totals.data),
    };
    let reserve = global_reserve(engine)?;
    let free = blocks.saturating_sub((used / copies + underway) / block);
    let available = (totals.data.total - totals.data.used).saturating_sub(underway);
    let to_come = match totals.unallocated {
        small if small <= copies * STRIPE => 0,
        unallocated => unallocated / copies,
    };
    let available = if metadata_is_full(engine, &totals) { 0 } else { available + to_come };
    Ok(StatFs {
        block_size: engine.geometry.sector_size,
        blocks,
        blocks_free: free.saturating_sub(reserve / block),
        blocks_available: available / block,
        files: 0,
        files_free: 0,
        name_max: vfs::NAME_MAX as u32,
    })
}

/// Data that no commit knows yet: in memory, or in extents of this epoch.
fn underway(engine: &Engine, data: &ClassTotals) -> u64 {
    let settled = data.used + data.pinned + data.excluded + data.free;
    data.total.saturating_sub(settled) + engine.dirty_bytes.load(Ordering::Relaxed)
}

/// Without metadata no data can be written either.
fn metadata_is_full(engine: &Engine, totals: &Totals) -> bool {
    /// What making a file asks for, about.
    const NODES: u64 = 256;
    let metadata = &totals.metadata;
    let free = metadata.free.saturating_sub(metadata.promised);
    let kept = totals.global_reserve + NODES * u64::from(engine.geometry.node_size);
    !totals.mixed && free + totals.unallocated / metadata.copies / 2 < kept
}

/// What the kernel keeps of metadata for itself: as much as the trees that grow with any
/// change have, but at least what deleting one file may need.
pub fn global_reserve(engine: &Engine) -> Result<u64> {
    const MOST_LEVELS: u64 = 8;
    const UNLINK: u64 = 6;
    let (used, trees) = accounts(engine)?;
    let insert = u64::from(engine.geometry.node_size) * MOST_LEVELS * 2;
    let delayed = 2 * insert * UNLINK;
    Ok(used.max(insert * (1 + trees + UNLINK) + delayed).min(512 * MIB))
}

/// Bytes and number of the trees that keep account of space.
pub fn accounts(engine: &Engine) -> Result<(u64, u64)> {
    let view = engine.view();
    let (mut used, mut trees) = (0, 0);
    for tree in [TreeId::EXTENT, TreeId::CSUM, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP] {
        if let Some(data) = view.get(TreeId::ROOT, &Key::new(tree.0, kind::ROOT_ITEM, 0)).fs()? {
            used += RootItem::parse(&data).fs()?.bytes_used;
            trees += 1;
        }
    }
    Ok((used, trees))
}

/// Bytes of all trees that the root tree names.
pub fn tree_bytes(engine: &Engine) -> Result<u64> {
    let roots = engine.roots();
    let Some(root) = roots.get(TreeId::ROOT) else { return Ok(0) };
    let mut cursor = Cursor::new(&engine.store, &root.root);
    cursor.first().fs()?;
    let mut used = 0;
    while let Some((key, data)) = cursor.item() {
        if key.kind == kind::ROOT_ITEM {
            used += RootItem::parse(data).fs()?.bytes_used;
        }
        cursor.next().fs()?;
    }
    Ok(used)
}

/// What the block group items say; for volumes that are only read.
fn stored_totals(engine: &Engine) -> Result<Totals> {
    let view = engine.view();
    let tree = match engine.roots().get(TreeId::BLOCK_GROUP) {
        Some(_) => TreeId::BLOCK_GROUP,
        None => TreeId::EXTENT,
    };
    let dev_item = engine.volume.superblock().fields.dev_item;
    let mut totals = Totals {
        unallocated: dev_item.total_bytes.saturating_sub(dev_item.bytes_used + MIB) / STRIPE
            * STRIPE,
        device: dev_item.total_bytes,
        ..Totals::default()
    };
    for class in [&mut totals.data, &mut totals.metadata, &mut totals.system] {
        class.copies = 1;
    }
    for chunk in engine.volume.chunks() {
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
