//! What an fsync would cost without what makes it cheap: for measurements alone, behind the
//! feature `ablation`, which no shipped build has.
//!
//! Each switch takes one property away and leaves what the log says right, so that crash
//! tests hold with all of them. What each models, and how well, stands in bench/README.md.
//!
//! * `ordered`: the extents and checksums of the write are put into the file and the checksum
//!   tree first, one extent at a time, and the checksums are looked up there. The trees are
//!   copies in memory that nobody writes; a commit starts them anew.
//! * `search`: the log is searched for each inode that it is about to get, and what it has
//!   of the inode but for content is dropped and logged once more.
//! * `drop`: what leaves the log is looked up item by item, and so is the logged size.
//! * `names`: a name takes along all that came into its directory, and what went.

use super::committed::Committed;
use super::freeze::Work;
use super::project::{Edits, Project};
use super::state::LogState;
use crate::delta::Level;
use crate::ino::InodeId;
use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::key::kind;
use btrfs_disk::{Geometry, Key, Logical, Node, Result, TreeId};
use btrfs_tree::{Cursor, DirtyNodes, Edit, NodeSink, TreeRoot};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where nodes of trees stand that nobody will write: behind every volume.
const NOWHERE: u64 = 1 << 60;

/// The trees as a commit of now would have them, of what was logged since the last one.
#[derive(Default)]
pub struct Scratch {
    roots: BTreeMap<TreeId, TreeRoot>,
    dirty: DirtyNodes,
    taken: u64,
}

struct Sink<'a> {
    taken: &'a mut u64,
    node_size: u64,
}

impl NodeSink for Sink<'_> {
    fn detach(&mut self, _: TreeId, _: &Arc<Node>) -> Result<()> {
        Ok(())
    }

    fn alloc(&mut self, _: TreeId, _: u8, _: Key) -> Result<Logical> {
        *self.taken += 1;
        Ok(Logical(NOWHERE + *self.taken * self.node_size))
    }

    fn free_dirty(&mut self, _: TreeId, _: Logical, _: u8) -> Result<()> {
        Ok(())
    }
}

/// All switches but `names`, on finished edits.
pub fn project(
    project: &Project<'_>,
    work: &Work,
    state: &mut LogState,
    edits: &mut Edits,
) -> Result<()> {
    let ablate = project.engine.options.ablate;
    for (tree, edits) in edits.iter_mut() {
        let log = state.trees.get(tree).and_then(|log| log.root);
        for id in work.objects.keys().filter(|id| id.tree == *tree) {
            let Some(log) = log.filter(|_| has_any(edits, *id)) else { continue };
            if ablate.search {
                search(project, &log, *id, edits)?;
            }
            if ablate.drop {
                cut_back(project, &log, *id, edits)?;
            }
        }
        if ablate.ordered {
            ordered(project, *tree, &mut state.ordered, edits)?;
        }
    }
    Ok(())
}

fn items_of(id: InodeId) -> std::ops::RangeInclusive<Key> {
    Key::new(id.objectid, 0, 0)..=Key::new(id.objectid, u8::MAX, u64::MAX)
}

fn has_any(edits: &BTreeMap<Key, Edit>, id: InodeId) -> bool {
    edits.range(items_of(id)).next().is_some()
}

fn search(
    project: &Project<'_>,
    log: &TreeRoot,
    id: InodeId,
    edits: &mut BTreeMap<Key, Edit>,
) -> Result<()> {
    let (store, stats) = (&project.engine.store, &project.engine.stats);
    let mut found = Vec::new();
    let mut cursor = Cursor::new(store, log);
    stats.log_tree_reads.add(1);
    cursor.seek(&Key::new(id.objectid, 0, 0))?;
    let mine = |key: &Key| key.objectid == id.objectid && key.kind <= kind::XATTR_ITEM;
    while let Some((key, data)) = cursor.item().filter(|(key, _)| mine(key)) {
        found.push((key, Box::<[u8]>::from(data)));
        cursor.next()?;
    }
    stats.log_drops.add(u64::from(!found.is_empty()));
    for (key, data) in found {
        stats.log_tree_reads.add(1);
        btrfs_tree::get(store, log, &key)?;
        edits.entry(key).or_insert(Edit::Put(data));
    }
    Ok(())
}

fn cut_back(
    project: &Project<'_>,
    log: &TreeRoot,
    id: InodeId,
    edits: &mut BTreeMap<Key, Edit>,
) -> Result<()> {
    let (store, stats) = (&project.engine.store, &project.engine.stats);
    let goes = |(key, edit): (&Key, &Edit)| matches!(edit, Edit::Delete).then_some(*key);
    let gone: Vec<Key> = edits.range(items_of(id)).filter_map(goes).collect();
    let size = Key::new(id.objectid, kind::INODE_ITEM, 0);
    stats.log_tree_reads.add(1 + gone.len() as u64);
    btrfs_tree::get(store, log, &size)?;
    for key in gone {
        if btrfs_tree::get(store, log, &key)?.is_none() {
            edits.remove(&key);
        }
    }
    Ok(())
}

fn ordered(
    project: &Project<'_>,
    tree: TreeId,
    scratch: &mut Scratch,
    edits: &BTreeMap<Key, Edit>,
) -> Result<()> {
    let is_sum = |key: &Key| key.kind == kind::EXTENT_CSUM && key.objectid == EXTENT_CSUM_OBJECTID;
    for (key, edit) in edits {
        let into = match key.kind {
            kind::EXTENT_DATA => tree,
            _ if is_sum(key) => TreeId::CSUM,
            _ => continue,
        };
        insert(project, scratch, into, *key, edit.clone())?;
    }
    for key in edits.keys().filter(|key| is_sum(key)) {
        let Some(root) = scratch.roots.get(&TreeId::CSUM) else { continue };
        project.engine.stats.log_tree_reads.add(1);
        btrfs_tree::get(&scratch.dirty.over(&project.engine.store), root, key)?;
    }
    Ok(())
}

fn insert(
    project: &Project<'_>,
    scratch: &mut Scratch,
    tree: TreeId,
    key: Key,
    edit: Edit,
) -> Result<()> {
    let (engine, generation) = (project.engine, project.generation);
    let geometry: &Geometry = &engine.geometry;
    let committed = || project.committed.roots.get(tree).map(|root| root.root);
    let Scratch { roots, dirty, taken } = scratch;
    let mut sink = Sink { taken, node_size: u64::from(geometry.node_size) };
    let before = match roots.get(&tree).copied().or_else(committed) {
        Some(root) => root,
        // The subvolume is of this epoch.
        None => btrfs_tree::new_tree(geometry, dirty, &mut sink, generation, tree)?,
    };
    engine.stats.log_tree_reads.add(1);
    let one = [(key, edit)];
    let after = btrfs_tree::apply(&engine.store, dirty, &mut sink, generation, &before, one)?;
    roots.insert(tree, after);
    Ok(())
}

/// Wants the entries of all directories that have a name of what is logged. True: freeze
/// again.
pub fn names(work: &mut Work, committed: &Committed<'_>) -> Result<bool> {
    let named: Vec<InodeId> =
        work.objects.iter().filter(|(_, frozen)| frozen.has_refs()).map(|(id, _)| *id).collect();
    let mut more = false;
    for id in named {
        for name in work.names(committed, id)? {
            let parent = InodeId::new(id.tree, name.parent);
            more |= work.wanted.get(&parent) != Some(&Level::Entries);
            work.want(parent, Level::Entries);
        }
    }
    Ok(more)
}
