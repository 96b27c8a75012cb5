//! At mount: a volume without a valid free-space tree (version 1 space cache) gets one, and quotas that are
//! given up go.
//!
//! Invariants: both come with the first commit of the mount, whatever else is in that, and
//! before anybody can ask for space; before it nothing of the volume is changed, so a volume on
//! which there is no room for it, or whose damage is in the way, stays what it was. Nobody above sees a
//! quota tree that is given up, from the beginning.
//!
//! What it does not know: what the trees say (`btrfs_space::Settle::make_free_space_tree`).

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::reserve::cost;
use btrfs_disk::TreeId;
use btrfs_space::{TreeItems, space_cache};
use btrfs_txn::delta::TreeAction;
use btrfs_txn::{Root, Roots};
use std::sync::Arc;
use vfs::{Errno, FsError, Result};

/// Puts it into the epoch that is the first to be committed. The caller has the engine alone.
/// True: `finish` is due.
pub(crate) fn begin(engine: &Engine) -> Result<bool> {
    let core = &engine.core;
    if core.health.is_read_only() || core.volume.has_free_space_tree() {
        return Ok(false);
    }
    let roots = core.roots();
    let root = roots.get(TreeId::ROOT).ok_or_else(|| no_tree(TreeId::ROOT)).fs()?.root;
    let caches = space_cache::find(&mut TreeItems::new(&core.store, &root)).fs()?;
    let extents: usize = caches.iter().map(|cache| cache.extents.len()).sum();
    let bytes = core.space.free_space_bytes();
    let stale = roots.get(TreeId::FREE_SPACE).map_or(0, |root| engine.nodes_at_most(root));
    let action = cost::free_space_tree(bytes, caches.len() as u64, extents as u64, stale);
    let held = engine.reserver.reserve(cost::with(cost::Cost::default(), action));
    let reservation = held.map_err(|error| no_room(error, bytes))?;
    core.begin().act(TreeAction::FreeSpaceTree, action);
    drop(reservation);
    Ok(true)
}

/// The tree is on the volume when this returns.
pub(crate) fn finish(engine: &Engine) -> Result<()> {
    if !engine.core.volume.has_free_space_tree() {
        engine.committer.commit()?;
    }
    engine.stats.free_space_trees.add(1);
    tracing::info!("made a free-space tree in the place of a version 1 space cache");
    Ok(())
}

/// The trees without that of quotas, which comes back on its own.
pub(crate) fn take_quotas(roots: &Roots) -> (Arc<Roots>, Option<Root>) {
    let (mut trees, quotas) = (roots.trees.clone(), roots.get(TreeId::QUOTA).cloned());
    trees.remove(TreeId::QUOTA);
    (Arc::new(Roots::new(roots.generation, trees)), quotas)
}

/// Puts the end of quotas into the first epoch. The caller has the engine alone.
pub(crate) fn give_up(engine: &Engine, quotas: &Root) -> Result<()> {
    let action = cost::forget_tree(engine.nodes_at_most(quotas));
    let reservation = engine.reserver.reserve(cost::with(cost::Cost::default(), action))?;
    engine.core.begin().act(TreeAction::ForgetQuotas, action);
    drop(reservation);
    engine.stats.quotas_given_up.add(1);
    Ok(())
}

fn no_tree(id: TreeId) -> btrfs_disk::Error {
    btrfs_disk::Error::corrupt(format!("no tree {id}"))
}

fn no_room(error: FsError, bytes: u64) -> FsError {
    match error {
        FsError::Posix(Errno::ENOSPC) => FsError::Unsupported(format!(
            "the volume has no free-space tree, and no room for one of {bytes} bytes; mount it \
             read-only, or let the kernel make room"
        )),
        other => other,
    }
}
