//! Which trees a volume is opened with: those of its last commit, or, where they are lost and a rescuer
//! allows it, those of an earlier one.
//!
//! Invariants: nothing is written to a volume that is opened so. An earlier commit's nodes may have been
//! written over since; each says by its checksum, its address and its generation whether it is still the one that was meant.
//!
//! What it does not know: what of the files can be read.

use crate::device_extents::{Compared, compare, replacement};
use crate::each_item::each_item;
use crate::error::IntoFs;
use crate::options::{Options, Rescue};
use blockdev::BlockDevice;
use btrfs_disk::ids::LAST_FREE_OBJECTID;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Logical, Superblock, TreeId};
use btrfs_tree::{Cursor, NodeStore, TreeRoot};
use btrfs_txn::{Root, Roots, Trees};
use btrfs_volume::{OpenOptions, Start, Volume, backups, chunk_trees};
use std::cmp::Reverse;
use std::sync::Arc;
use vfs::{FsError, Result};

/// A volume, and the trees that it is seen by.
pub(crate) struct Opened {
    pub volume: Arc<Volume>,
    pub store: NodeStore,
    pub roots: Arc<Roots>,
    /// The highest number that anything of the root tree has: subvolumes, and inodes of version 1 space caches.
    pub highest: u64,
}

pub(crate) fn open(device: Arc<dyn BlockDevice>, options: &Options) -> Result<Opened> {
    if options.rescue != Rescue::default() && !options.read_only {
        let why = "what is damaged is made do with in read-only mounts alone";
        return Err(FsError::Unsupported(why.into()));
    }
    let may_be_earlier = |error: &FsError| options.rescue.backup_root && error.is_of_medium();
    let volume = match Volume::open(device.clone(), of_volume(options)).fs() {
        Err(error) if may_be_earlier(&error) => {
            return by_older_chunks(&device, options).ok_or(error);
        }
        opened => opened?,
    };
    let superblock = volume.superblock();
    match with_trees(volume, options) {
        Err(error) if may_be_earlier(&error) => {
            earlier(&device, &superblock, None, options).ok_or(error)
        }
        opened => opened,
    }
}

/// Where the chunk tree is lost: by what is left of an older one, with the last commit's trees or a backup's. Of
/// several that lead to the newest trees the one that is nearest to what the device tree there tells.
fn by_older_chunks(device: &Arc<dyn BlockDevice>, options: &Options) -> Option<Opened> {
    let mut best: Option<(_, Opened, Compared)> = None;
    for at in chunk_trees(&**device).ok()? {
        let Some(opened) = by_chunks_at(device, at, options) else { continue };
        let compared = compare(&opened.store, &opened.roots, &opened.volume);
        let (shown, last) = (opened.roots.generation, opened.volume.superblock().generation());
        let found = (Reverse(shown), compared.distance);
        if best.as_ref().is_none_or(|(rank, ..)| found < *rank) {
            best = Some((found, opened, compared));
        }
        if shown == last && found.1 == (false, 0) {
            break;
        }
    }
    let (_, opened, Compared { unconfirmed, .. }) = best?;
    let generation = opened.volume.superblock().fields.chunk_root_generation.0;
    tracing::warn!(
        generation,
        unconfirmed = unconfirmed.len(),
        "an earlier chunk tree is used: content in newer chunks is not found, nor without checksums in unconfirmed ones"
    );
    opened.volume.doubt(&unconfirmed);
    Some(opened)
}

fn by_chunks_at(device: &Arc<dyn BlockDevice>, at: Logical, options: &Options) -> Option<Opened> {
    let start = Start { chunk_root: Some(at), ..Start::default() };
    let volume = Volume::look(device.clone(), &start).ok()?;
    let superblock = volume.superblock();
    let opened = with_trees(volume, options).ok();
    opened.or_else(|| earlier(device, &superblock, Some(at), options))
}

fn of_volume(options: &Options) -> OpenOptions {
    OpenOptions {
        read_only: options.read_only,
        ignore_log: options.ignore_log,
        replays_log: !options.ignore_log,
        renews_free_space: options.renew_free_space,
        ..OpenOptions::default()
    }
}

/// By the newest backup that can be read, by the chunks that begin at `chunk_root`.
fn earlier(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
    chunk_root: Option<Logical>,
    options: &Options,
) -> Option<Opened> {
    let last = superblock.generation();
    for backup in backups(superblock) {
        let (root, root_generation) = (Some(backup.tree_root), Some(backup.tree_root_gen));
        let start = Start { root, root_generation, chunk_root, ..Start::default() };
        let volume = Volume::look(device.clone(), &start).ok();
        let meant = volume.filter(|volume| volume.root_generation() == backup.tree_root_gen);
        if let Some(opened) = meant.and_then(|volume| with_trees(volume, options).ok()) {
            let generation = backup.tree_root_gen.0;
            tracing::warn!(generation, last = last.0, "an earlier commit is shown");
            return Some(opened);
        }
    }
    None
}

/// The root tree can be read, and so can where the files begin.
fn with_trees(volume: Volume, options: &Options) -> Result<Opened> {
    let volume = Arc::new(volume);
    let cache = options.cache_bytes.min(options.memory_bytes) as usize;
    let store = NodeStore::new(volume.clone(), cache);
    let (roots, highest) = load_roots(&store, &volume, options.rescue.bad_roots).fs()?;
    if options.rescue.backup_root
        && let Some(files) = roots.get(TreeId::FS)
    {
        Cursor::new(&store, &files.root).first().fs()?;
    }
    Ok(Opened { volume, store, roots: Arc::new(roots), highest })
}

/// Bytes of nodes for one look at a tree. Chosen, not measured.
const LOOK_CACHE: usize = 256 << 10;

/// Why a volume must not be written of which nothing but the superblock is to change; `None` also where the trees
/// that would tell cannot be read.
pub fn unfinished_replacement(volume: &Arc<Volume>) -> Option<String> {
    let store = NodeStore::new(volume.clone(), LOOK_CACHE);
    let found =
        load_roots(&store, volume, false).and_then(|(roots, _)| replacement(&store, &roots));
    found.unwrap_or_else(|error| {
        tracing::warn!(%error, "whether a device is being replaced is not known");
        None
    })
}

/// Every tree that the root tree names, and the two that the superblock does; behind them the highest number that
/// it has, of whatever. `lossy`: lost parts of it are passed over.
fn load_roots(store: &NodeStore, volume: &Volume, lossy: bool) -> btrfs_disk::Result<(Roots, u64)> {
    let (superblock, generation) = (volume.superblock(), volume.root_generation());
    let fields = &superblock.fields;
    let top = |id, logical, generation, level| Root {
        root: TreeRoot { id, logical, generation, level },
        item: RootItem::default(),
    };
    let root_tree = top(TreeId::ROOT, fields.root, generation, fields.root_level);
    let chunk_tree = top(
        TreeId::CHUNK,
        fields.chunk_root,
        fields.chunk_root_generation,
        fields.chunk_root_level,
    );
    let (mut trees, mut highest) = (Trees::default(), 0);
    let lossy = lossy.then_some("trees that are named here are not there");
    each_item(store, &root_tree.root, lossy, &mut |key, data| {
        if key.objectid <= LAST_FREE_OBJECTID {
            highest = highest.max(key.objectid);
        }
        if key.kind == kind::ROOT_ITEM && key.objectid != TreeId::RELOC.0 {
            let item = RootItem::parse(data).map_err(|c| c.key(key))?;
            let id = TreeId(key.objectid);
            let (logical, generation, level) = (item.bytenr, item.generation, item.level);
            let root = TreeRoot { id, logical, generation, level };
            trees.insert(id, Root { root, item });
        }
        Ok(())
    })?;
    trees.insert(TreeId::ROOT, root_tree);
    trees.insert(TreeId::CHUNK, chunk_tree);
    Ok((Roots::new(generation, trees), highest))
}
