//! Log edits to the volume: nodes, flush, the first superblock, flush.
//!
//! Invariants: nodes that the superblock on the volume leads to are never rewritten or
//! given back before a newer superblock is durable; a failed write poisons the volume.
//! A log refers to chunks that its own commit knows, and to no others.

use super::project::Edits;
use super::state::LogState;
use super::{Fallback, Logged, TreeLog};
use btrfs_disk::items::{FileExtent, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::{Error, FixedSize, Generation, Key, Logical, Node, Result, TreeId};
use btrfs_space::{Extent, MetadataReservation, Priority};
use btrfs_tree::{DirtyNodes, Edit, NodeSink, TreeRoot};
use btrfs_txn::Core;
use std::sync::Arc;

/// Where the log's nodes come from.
struct Sink<'a> {
    core: &'a Core,
    reservation: MetadataReservation,
    /// To be used first; `saves`: what is not needed goes there.
    spare: Vec<Logical>,
    saves: bool,
    /// Taken in this write.
    taken: Vec<Logical>,
    /// Of earlier writes, replaced by this one.
    replaced: Vec<Logical>,
}

impl NodeSink for Sink<'_> {
    fn detach(&mut self, _: TreeId, old: &Arc<Node>) -> Result<()> {
        self.replaced.push(old.logical());
        Ok(())
    }

    fn alloc(&mut self, _: TreeId, _: u8, _: Key) -> Result<Logical> {
        if let Some(logical) = self.spare.pop() {
            self.taken.push(logical);
            return Ok(logical);
        }
        let size = u64::from(self.core.geometry.node_size);
        let extent = self.reservation.alloc_node(&self.core.space, size)?;
        self.taken.push(extent.logical);
        Ok(extent.logical)
    }

    fn free_dirty(&mut self, _: TreeId, logical: Logical, _: u8) -> Result<()> {
        if self.saves {
            // It stays one of the log's.
            self.spare.push(logical);
            return Ok(());
        }
        self.taken.retain(|taken| *taken != logical);
        let len = u64::from(self.core.geometry.node_size);
        self.core.space.release(Extent { logical, len })
    }
}

/// A log that is written but that no superblock leads to yet.
#[must_use]
pub(crate) struct Written {
    pub root: TreeRoot,
    /// Nodes that the log before had in place of its own.
    replaced: Vec<Logical>,
}

/// Writes the edits' nodes. What the device does not take is the volume's end; a fallback leaves
/// the log on the volume as it was, and the caller commits.
pub(crate) fn write(
    log: &TreeLog,
    state: &mut LogState,
    generation: Generation,
    edits: Edits,
    priority: Priority,
) -> Logged<Written> {
    let core = &*log.core;
    let base = Generation(generation.0 - 1);
    if !knows_extents(core, base, &edits) {
        return Err(Fallback::NewChunk.into());
    }
    let reservation = reserve(core, state, &edits, priority)?;
    let spare = state.spare.as_mut().map(std::mem::take).unwrap_or_default();
    let (taken, replaced, saves) = (Vec::new(), Vec::new(), state.spare.is_some());
    let mut sink = Sink { core, reservation, spare, saves, taken, replaced };
    let mut dirty = DirtyNodes::new();
    let built = build(log, state, generation, edits, &mut dirty, &mut sink);
    let Sink { taken, replaced, spare, .. } = sink;
    state.blocks.extend(&taken);
    if let Some(rest) = &mut state.spare {
        *rest = spare;
    }
    let root = match built {
        Ok(root) => root,
        Err(Error::NoSpace) => return Err(Fallback::NoSpace.into()),
        // A node that the log has on the volume. A commit is the end of this log, and reads none of it.
        Err(error) if error.is_damage() => return Err(Fallback::damaged(&error).into()),
        Err(error) => return Err(error.into()),
    };
    // A node in a chunk that was made for it is of no use to a replay.
    if !taken.iter().all(|logical| core.space.is_recorded(*logical, base)) {
        return Err(Fallback::NewChunk.into());
    }
    log.stats.log_nodes.add(dirty.write_all(&core.store)? as u64);
    Ok(Written { root, replaced })
}

/// The superblock of the last commit leads to the log: durable when this returns.
pub(crate) fn publish(core: &Core, state: &mut LogState, written: Written) -> Result<()> {
    core.volume.flush()?;
    // Of an inode that a panic left half changed, its lock said nothing.
    core.health.writable()?;
    core.volume.write_log_root(written.root.logical, written.root.level)?;
    state.root = Some(written.root);
    state.give_back(core, written.replaced);
    Ok(())
}

/// Whether the commit `base` knows the chunks of all content that the edits refer to.
fn knows_extents(core: &Core, base: Generation, edits: &Edits) -> bool {
    if core.space.is_all_recorded(base) {
        return true;
    }
    let known = |key: &Key, edit: &Edit| match edit {
        Edit::Put(bytes) if key.kind == kind::EXTENT_DATA => match FileExtent::parse(bytes) {
            Ok(FileExtent::Extent { fields, .. }) if fields.disk_bytenr.0 != 0 => {
                core.space.is_recorded(fields.disk_bytenr, base)
            }
            _ => true,
        },
        _ => true,
    };
    edits.values().flatten().all(|(key, edit)| known(key, edit))
}

/// Room for what the edits can touch: a leaf each, its neighbour, the paths.
fn reserve(
    core: &Core,
    state: &LogState,
    edits: &Edits,
    priority: Priority,
) -> Logged<MetadataReservation> {
    let node = u64::from(core.geometry.node_size);
    let (mut count, mut bytes) = (0, 0);
    for edit in edits.values().flat_map(|edits| edits.values()) {
        count += 1;
        bytes += 32 + if let Edit::Put(data) = edit { data.len() as u64 } else { 0 };
    }
    let touched = (2 * count).min(state.blocks.len() as u64);
    let nodes = touched + 3 * bytes / node + 8 * (edits.len() as u64 + 1);
    match core.space.reserve_metadata(nodes * node, priority) {
        Ok(reservation) => Ok(reservation),
        Err(Error::NoSpace) => Err(Fallback::NoSpace.into()),
        Err(error) => Err(error.into()),
    }
}

/// Applies the edits to each subvolume's log, and their roots to the tree of roots.
fn build(
    log: &TreeLog,
    state: &mut LogState,
    generation: Generation,
    edits: Edits,
    dirty: &mut DirtyNodes,
    sink: &mut Sink<'_>,
) -> Result<TreeRoot> {
    let mut roots = Vec::new();
    for (tree, edits) in edits {
        let before = state.trees.entry(tree).or_default().root;
        log.stats.log_items.add(edits.len() as u64);
        let root = apply(&log.core, generation, before, edits, dirty, sink)?;
        state.trees.entry(tree).or_default().root = Some(root);
        let key = Key::new(TreeId::LOG.0, kind::ROOT_ITEM, tree.0);
        roots.push((key, Edit::Put(root_item(&root).to_vec().into())));
    }
    apply(&log.core, generation, state.root, roots, dirty, sink)
}

fn apply(
    core: &Core,
    generation: Generation,
    root: Option<TreeRoot>,
    edits: impl IntoIterator<Item = (Key, Edit)>,
    dirty: &mut DirtyNodes,
    sink: &mut Sink<'_>,
) -> Result<TreeRoot> {
    let root = match root {
        Some(root) => root,
        None => btrfs_tree::new_tree(&core.geometry, dirty, sink, generation, TreeId::LOG)?,
    };
    btrfs_tree::apply(&core.store, dirty, sink, generation, &root, edits)
}

/// The item that leads to one subvolume's log: of all its fields a replay reads these.
fn root_item(root: &TreeRoot) -> RootItem {
    RootItem {
        bytenr: root.logical,
        generation: root.generation,
        generation_v2: root.generation.0,
        level: root.level,
        ..RootItem::default()
    }
}
