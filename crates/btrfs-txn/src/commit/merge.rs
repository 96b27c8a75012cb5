//! A sealed delta merged into the trees: edits of each subvolume, references of data,
//! checksums; then the space side settles, and everything but the superblock is written.

use super::stretch::Stretch;
use super::sums::{self, SumFormat};
use super::trees::{self, Drops};
use crate::delta::{Delta, Move};
use crate::{Core, Defect, Root, Throttle, Trees, Urgency};
use btrfs_disk::items::{RootItem, Timespec};
use btrfs_disk::{Error, Generation, Key, Logical, Result, Superblock, TreeId};
use btrfs_space::{Extent, ExtentKind, MetadataReservation, MovedNodes, RefOwner, Settle, Settled};
use btrfs_tree::NodeStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// New trees on the volume, which no superblock leads to yet.
pub struct Merged {
    /// The epoch's, which is the new superblock's.
    pub generation: Generation,
    /// All trees, those that did not change among them.
    pub trees: Trees,
    /// Those that may be others than before, or gone.
    pub touched: Vec<TreeId>,
    /// What nothing refers to any more once the superblock is durable.
    pub freed: Vec<Extent>,
    /// To be written: what it leads to is durable.
    pub superblock: Superblock,
    /// Bytes of new nodes, once the trees of files and checksums had theirs, and in the end.
    pub taken: (u64, u64),
}

/// `NoSpace`: nothing was written, and the space is as it was before. `built` is told the bytes of
/// new nodes as soon as there come no more, before they are written.
pub fn run(
    core: &Core,
    sealed: &Delta,
    reservation: Option<MetadataReservation>,
    urgency: Urgency,
    built: impl FnOnce(u64),
) -> Result<Merged> {
    let start = Instant::now();
    let generation = sealed.generation;
    let superblock = (*core.volume.superblock()).clone();
    let begin = match trees::forgets_quotas(sealed) {
        true => Settle::without_quotas,
        false => Settle::new,
    };
    let _building = Building(core);
    let mut settle = begin(&core.space, &core.store, superblock, generation, reservation)?;
    let found = match merge_files(core, &mut settle, sealed, urgency) {
        Err(Error::NoSpace) => return Err(settle.no_room()),
        other => other?,
    };
    let taken_by_files = settle.taken_by_files();
    core.stats.commit_merge_ns.add(start.elapsed().as_nanos() as u64);
    let settling = Instant::now();
    let mut settled = settle.finish()?;
    core.note_building(settled.taken);
    // Who changes something meanwhile needs not wait until all is written for what is left of it.
    drop(settled.reservation.take());
    built(settled.taken);
    core.stats.commit_settle_ns.add(settling.elapsed().as_nanos() as u64);
    core.stats.quota_extents.add(settled.quota_extents);
    let taken = (taken_by_files, settled.taken);
    found.drops.remember();
    let merged = write(core, generation, settled, taken)?;
    found.moves.into_iter().for_each(|(wanted, made)| wanted.done(made));
    Ok(merged)
}

/// However it ends, nothing is built and unwritten behind it: the memory is others' again.
struct Building<'c>(&'c Core);

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.0.note_building(0);
    }
}

/// What was found on the way, to be remembered once the commit has succeeded.
struct Found {
    drops: Drops,
    moves: Vec<(Arc<Move>, MovedNodes)>,
}

/// The trees of files and checksums.
fn merge_files(
    core: &Core,
    settle: &mut Settle<'_, NodeStore>,
    sealed: &Delta,
    urgency: Urgency,
) -> Result<Found> {
    let mut throttle = Throttle::new(core, urgency);
    trees::create(settle, sealed)?;
    merge_items(core, settle, sealed, &mut throttle)?;
    let drops = trees::finish(settle, sealed)?;
    let mut landed = merge_extents(settle, sealed, &mut throttle);
    throttle.pause();
    if core.injection.has(Defect::CommitSkipsASum) {
        landed.pop_last();
    }
    let fate = settle.drain_data()?;
    let moves = trees::moves(sealed);
    landed.extend(moved_sums(settle, &moves));
    let edits = {
        let root = settle.root(TreeId::CSUM)?;
        let format = sum_format(core);
        let mut stillborn = fate.stillborn;
        // Came and went, but the log refers to them: free with this commit, not before.
        let retained = sealed.extents.retained();
        settle.retire(&retained)?;
        throttle.pause();
        stillborn.extend(retained);
        let fate = sums::Obsolete {
            freed: &fate.freed,
            stillborn: &stillborn,
            stale: &sealed.extents.stale_sums(),
        };
        sums::edits(&settle.reader(), &root, &format, &landed, &fate)?
    };
    throttle.pause();
    settle.apply_tree(TreeId::CSUM, edits)?;
    throttle.pause();
    let made: Vec<_> = settle.moved_nodes().cloned().collect();
    Ok(Found { drops, moves: moves.into_iter().zip(made).collect() })
}

/// Checksums of the content that the commit moves.
fn moved_sums(settle: &Settle<'_, NodeStore>, moves: &[Arc<Move>]) -> BTreeMap<Logical, Box<[u8]>> {
    let mut sums = BTreeMap::new();
    for (wanted, made) in moves.iter().zip(settle.moved_nodes()) {
        let spans: BTreeMap<u64, u64> =
            made.content.iter().map(|c| (c.to.0, c.to.0 + c.from.len)).collect();
        let moved =
            |at: Logical| spans.range(..=at.0).next_back().is_some_and(|(_, end)| at.0 < *end);
        sums.extend(wanted.sums.iter().filter(|(at, _)| moved(*at)).cloned());
    }
    sums
}

fn sum_format(core: &Core) -> SumFormat {
    SumFormat {
        sector: core.sector(),
        size: core.geometry.csum.size(),
        max_item: sums::max_item(&core.geometry),
    }
}

/// Each subvolume's edits, in key order.
fn merge_items(
    core: &Core,
    settle: &mut Settle<'_, NodeStore>,
    sealed: &Delta,
    throttle: &mut Throttle<'_>,
) -> Result<()> {
    let now = core.now();
    let mut stretch = Stretch::default();
    for (tree, objects) in sealed.items.objects(|| throttle.pause()) {
        if tree == TreeId::QUOTA {
            settle.quotas_change()?;
        }
        let mut firsts = objects.into_iter().map(|objectid| Key::new(objectid, 0, 0));
        let mut next = firsts.next();
        while let Some(from) = next {
            next = stretch.take(&sealed.items, tree, &from).or_else(|| firsts.next());
            if stretch.is_full() || next.is_none() {
                merge_stretch(core, settle, tree, &stretch)?;
                stretch.clear();
                throttle.pause();
            }
        }
        if tree.is_subvolume() {
            stamp(settle.root_item(tree)?, sealed.generation, now);
        }
    }
    Ok(())
}

fn merge_stretch(
    core: &Core,
    settle: &mut Settle<'_, NodeStore>,
    tree: TreeId,
    stretch: &Stretch,
) -> Result<()> {
    let edits = stretch.edits();
    core.stats.commit_items.add(edits.len() as u64);
    if tree == TreeId::QUOTA {
        settle.quota_items_change(&edits);
    }
    settle.apply_borrowed(tree, &edits)?;
    core.note_building(settle.taken());
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
    throttle: &mut Throttle<'_>,
) -> BTreeMap<Logical, Box<[u8]>> {
    let (changes, landed) = sealed.extents.collect(|| throttle.pause());
    let deltas = settle.deltas();
    for (extent, change) in changes {
        if change.fresh {
            deltas.born(extent, change.len, ExtentKind::Data, change.owner);
        }
        for ((root, ino, offset), count) in change.counts {
            let owner = RefOwner::Data { root, ino, offset };
            deltas.add(extent, change.len, ExtentKind::Data, owner, count);
        }
    }
    landed
}

/// Nodes, flush.
fn write(
    core: &Core,
    generation: Generation,
    mut settled: Settled,
    taken: (u64, u64),
) -> Result<Merged> {
    let start = Instant::now();
    let nodes = settled.dirty.write_all(&core.store)?;
    core.note_building(0);
    core.volume.flush()?;
    core.stats.commit_nodes.add(nodes as u64);
    core.stats.commit_write_ns.add(start.elapsed().as_nanos() as u64);
    let mut trees = core.roots().trees.clone();
    let touched = settled.removed.iter().chain(settled.roots.keys()).copied().collect();
    for id in settled.removed {
        trees.remove(id);
    }
    for (id, root) in settled.roots {
        let item = settled.items.remove(&id).unwrap_or_default();
        trees.insert(id, Root { root, item });
    }
    let (freed, superblock) = (settled.pinned, settled.superblock);
    Ok(Merged { generation, trees, touched, freed, superblock, taken })
}
