//! At mount: a volume without a valid free-space tree (version 1 space cache) gets one, what is left of such a cache
//! beside a valid tree goes, and quotas that are given up go.
//!
//! Kernels 4.5 to 5.10 and WinBtrfs leave caches beside the tree. A newer kernel erases each with all items of its
//! inode's number in the root tree: were there a subvolume of that number, it would be gone.
//!
//! Invariants: all come with the first commit of the mount that can have them (caches beside a valid tree behind the
//! replay of a log, the rest before it), whatever else is in that, and
//! before anybody can ask for space; before it nothing of the volume is changed, so a volume on
//! which there is no room for it, or whose damage is in the way, stays what it was; but for caches, of which a damaged one
//! stays alone. Nobody above sees a
//! quota tree that is given up, from the beginning.
//!
//! What it does not know: what the trees say (`btrfs_space::Settle::make_free_space_tree`).

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::reserve::{Reservation, cost};
use btrfs_disk::{Error, TreeId};
use btrfs_space::space_cache::{self, CacheFile};
use btrfs_space::{TreeItems, can_be_dropped};
use btrfs_tree::{Cursor, NodeStore, TreeRoot};
use btrfs_txn::delta::{ActionCost, TreeAction};
use btrfs_txn::{Root, Roots};
use std::collections::BTreeSet;
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
    let caches = space_cache::find(&mut items(engine, TreeId::ROOT)?).fs()?;
    let bytes = core.space.free_space_bytes();
    let stale = roots.get(TreeId::FREE_SPACE).map_or(0, |root| engine.nodes_at_most(root));
    let action = cost::free_space_tree(bytes, caches.len() as u64, extents_of(&caches), stale);
    let reservation = room(engine, action).map_err(|error| no_room(error, bytes))?;
    let caches = droppable(engine, caches)?;
    engine.core.begin().act(TreeAction::FreeSpaceTree(caches.into()), action);
    drop(reservation);
    Ok(true)
}

/// What is left of caches beside a valid tree, behind the replay of a log. The caller has the engine alone.
pub(crate) fn tidy(engine: &Engine) {
    if engine.core.health.is_read_only() || !engine.core.volume.has_free_space_tree() {
        return;
    }
    if let Err(error) = forget_caches(engine) {
        tracing::warn!(%error, "what is left of a version 1 space cache stays");
    }
}

/// Where it fails nothing has changed: nobody needs them gone so much that chunks are given away for it. Extents are
/// looked up, which may be a read for each, where there is room alone.
fn forget_caches(engine: &Engine) -> Result<()> {
    let caches = space_cache::find(&mut items(engine, TreeId::ROOT)?).fs()?;
    if caches.is_empty() {
        return Ok(());
    }
    let action = cost_beside_tree(engine, &caches)?;
    let held = engine.reservations.hold_step(cost::with(cost::Cost::default(), action))?;
    let held = held.ok_or(FsError::Posix(Errno::ENOSPC))?;
    let caches = droppable(engine, caches)?;
    if !caches.is_empty() {
        tracing::info!(caches = caches.len(), "version 1 space caches beside a valid tree go");
        engine.core.begin().act(TreeAction::FreeSpaceTree(caches.into()), action);
    }
    drop(held);
    Ok(())
}

/// By the leaves that their items lie in, of which a cache has a fraction.
fn cost_beside_tree(engine: &Engine, caches: &[CacheFile]) -> Result<ActionCost> {
    let root = root_of(engine, TreeId::ROOT)?;
    let (mut cursor, mut leaves) = (Cursor::new(&engine.core.store, &root), BTreeSet::new());
    for key in caches.iter().flat_map(|cache| &cache.keys) {
        cursor.seek(key).fs()?;
        leaves.extend(cursor.current().map(|item| item.node().logical()));
    }
    Ok(cost::forget_caches(leaves.len() as u64, extents_of(caches)))
}

/// Half a commit is the end of a mount, and nobody needs a cache gone: those stay that do not fit the extent tree, or
/// where one cannot tell.
fn droppable(engine: &Engine, mut caches: Vec<CacheFile>) -> Result<Vec<CacheFile>> {
    if caches.iter().all(|cache| cache.extents.is_empty() && !cache.damaged) {
        return Ok(caches);
    }
    let (mut extents, mut sums) = (items(engine, TreeId::EXTENT)?, items(engine, TreeId::CSUM)?);
    let core = &engine.core;
    let in_chunks = |cache: &CacheFile| {
        cache.extents.iter().all(|(extent, _)| {
            let chunk = core.volume.chunk(extent.logical);
            chunk.is_some_and(|chunk| extent.logical.0.saturating_add(extent.len) <= chunk.end())
        })
    };
    caches.retain(|cache| {
        let fits = match in_chunks(cache) {
            true => can_be_dropped(cache, &mut extents, &mut sums, &core.geometry),
            false => Err(Error::corrupt("an extent of a space cache lies in no chunk")),
        };
        if let Err(error) = &fits {
            tracing::warn!(%error, ino = cache.ino, "a version 1 space cache is damaged, and stays");
        }
        fits.is_ok()
    });
    Ok(caches)
}

fn items(engine: &Engine, tree: TreeId) -> Result<TreeItems<'_, NodeStore>> {
    Ok(TreeItems::new(&engine.core.store, &root_of(engine, tree)?))
}

fn root_of(engine: &Engine, tree: TreeId) -> Result<TreeRoot> {
    let roots = engine.core.roots();
    let root = roots.get(tree).ok_or_else(|| Error::corrupt(format!("no tree {tree}"))).fs()?;
    Ok(root.root)
}

fn extents_of(caches: &[CacheFile]) -> u64 {
    caches.iter().map(|cache| cache.extents.len() as u64).sum()
}

fn room(engine: &Engine, action: ActionCost) -> Result<Reservation<'_>> {
    engine.reserver.reserve(cost::with(cost::Cost::default(), action))
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
    let reservation = room(engine, action)?;
    engine.core.begin().act(TreeAction::ForgetQuotas, action);
    drop(reservation);
    engine.stats.quotas_given_up.add(1);
    Ok(())
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
