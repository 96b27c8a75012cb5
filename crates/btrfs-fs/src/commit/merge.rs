//! A sealed delta merged into the trees: edits of each subvolume, references of data,
//! checksums; then the space side settles, and everything but the superblock is written.

use super::ease::{Ease, Pace};
use super::sums::{self, SumFormat};
use crate::delta::Delta;
use crate::engine::Engine;
use crate::options::Sabotage;
use crate::reserve::Promise;
use crate::roots::Root;
use btrfs_disk::items::{RootItem, Timespec};
use btrfs_disk::{Error, Generation, Key, Logical, Result, Superblock, TreeId};
use btrfs_space::{Extent, ExtentKind, RefOwner};
use btrfs_space::{Settle, Settled};
use btrfs_tree::{Edit, NodeStore};
use std::collections::BTreeMap;
use std::time::Instant;

/// Edits that go into a tree before the commit looks up: a millisecond of work or two.
const STRETCH: usize = 1024;

pub struct Merged {
    pub generation: Generation,
    pub trees: BTreeMap<TreeId, Root>,
    pub freed: Vec<Extent>,
    /// To be written: what it leads to is durable.
    pub superblock: Superblock,
}

/// `NoSpace`: nothing was written, and the space is as it was before.
pub fn run(engine: &Engine, sealed: &Delta, promise: Promise, pace: Pace) -> Result<Merged> {
    let start = Instant::now();
    let generation = sealed.generation;
    let superblock = engine.volume.superblock();
    let proof = promise.proof();
    let reservation = promise.reservation;
    let mut settle =
        Settle::new(&engine.space, &engine.store, superblock, generation, reservation)?;
    match merge_files(engine, &mut settle, sealed, pace) {
        Err(Error::NoSpace) => return Err(settle.no_room()),
        other => other?,
    }
    proof.check_files(engine, settle.taken());
    engine.stats.commit_merge_ns.add(start.elapsed().as_nanos() as u64);
    let settling = Instant::now();
    let settled = settle.finish()?;
    proof.check(engine, settled.taken);
    engine.stats.commit_settle_ns.add(settling.elapsed().as_nanos() as u64);
    write(engine, generation, settled)
}

/// The trees of files and checksums.
fn merge_files(
    engine: &Engine,
    settle: &mut Settle<'_, NodeStore>,
    sealed: &Delta,
    pace: Pace,
) -> Result<()> {
    let mut ease = Ease::new(engine, pace);
    merge_items(engine, settle, sealed, &mut ease)?;
    let mut landed = merge_extents(settle, sealed, &mut ease);
    ease.pause();
    if engine.options.sabotage == Some(Sabotage::CommitSkipsASum) {
        landed.pop_last();
    }
    let fate = settle.drain_data()?;
    let edits = {
        let root = settle.root(TreeId::CSUM)?;
        let format = sum_format(engine);
        let mut stillborn = fate.stillborn;
        // Came and went, but the log refers to them: free with this commit, not before.
        let retained = sealed.extents.retained();
        settle.retire(&retained)?;
        ease.pause();
        stillborn.extend(retained);
        let fate = sums::Fate {
            freed: &fate.freed,
            stillborn: &stillborn,
            stale: &sealed.extents.stale_sums(),
        };
        sums::edits(&settle.reader(), &root, &format, &landed, &fate)?
    };
    ease.pause();
    settle.apply_tree(TreeId::CSUM, edits)?;
    ease.pause();
    Ok(())
}

fn sum_format(engine: &Engine) -> SumFormat {
    SumFormat {
        sector: engine.sector(),
        size: engine.geometry.csum.size(),
        max_item: crate::data::sums::max_item(engine),
    }
}

/// Each subvolume's edits, in key order.
fn merge_items(
    engine: &Engine,
    settle: &mut Settle<'_, NodeStore>,
    sealed: &Delta,
    ease: &mut Ease<'_>,
) -> Result<()> {
    let now = crate::inode::now();
    for (tree, objects) in sealed.items.objects(|| ease.pause()) {
        let mut edits: Vec<(Key, Edit)> = Vec::with_capacity(2 * STRETCH.min(objects.len()));
        let mut objects = objects.into_iter().peekable();
        while let Some(objectid) = objects.next() {
            edits.extend(
                sealed
                    .items
                    .object(tree, objectid)
                    .into_iter()
                    .map(|(key, slot)| (key, slot.value.map_or(Edit::Delete, Edit::Put))),
            );
            if edits.len() >= STRETCH || objects.peek().is_none() {
                engine.stats.commit_items.add(edits.len() as u64);
                settle.apply_tree(tree, edits.drain(..))?;
                ease.pause();
            }
        }
        if tree.is_subvolume() {
            stamp(settle.root_item(tree)?, sealed.generation, now);
        }
    }
    Ok(())
}

fn stamp(item: &mut RootItem, generation: Generation, now: Timespec) {
    item.ctransid = generation.0;
    item.ctime = now;
}

/// References of data extents; returns the checksums of what landed.
fn merge_extents(
    settle: &mut Settle<'_, NodeStore>,
    sealed: &Delta,
    ease: &mut Ease<'_>,
) -> BTreeMap<Logical, Box<[u8]>> {
    let (changes, landed) = sealed.extents.collect(|| ease.pause());
    let deltas = settle.deltas();
    for (extent, change) in changes {
        if change.fresh {
            deltas.born(extent, change.len, ExtentKind::Data);
        }
        for ((root, ino, offset), count) in change.counts {
            let owner = RefOwner::Data { root, ino, offset };
            deltas.add(extent, change.len, ExtentKind::Data, owner, count);
        }
    }
    landed
}

/// Nodes, flush.
fn write(engine: &Engine, generation: Generation, mut settled: Settled) -> Result<Merged> {
    let start = Instant::now();
    let nodes = settled.dirty.write_all(&engine.store)?;
    engine.volume.flush()?;
    engine.stats.commit_nodes.add(nodes as u64);
    engine.stats.commit_write_ns.add(start.elapsed().as_nanos() as u64);
    let mut trees = engine.roots().trees.clone();
    for (id, root) in settled.roots {
        match trees.get_mut(&id) {
            Some(known) => known.root = root,
            None => {
                trees.insert(id, Root { root, item: RootItem::default() });
            }
        }
    }
    let (freed, superblock) = (settled.pinned, settled.superblock);
    Ok(Merged { generation, trees, freed, superblock })
}
