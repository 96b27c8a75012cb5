//! Opening a volume: superblock, feature gate and chunks (btrfs-volume), then roots,
//! space, layers, and what a crash left unfinished.

use crate::beside::Beside;
use crate::cleaner::Sweeper;
use crate::commit::Background;
use crate::convert;
use crate::device_extents::{differ, replacement};
use crate::engine::{Begin, Engine};
use crate::error::IntoFs;
use crate::fs::BtrfsFs;
use crate::ino::{InodeId, number};
use crate::ops;
use crate::options::{Options, Subvol};
use crate::orphan::Eraser;
use crate::recover;
use crate::rescue::{self, Opened};
use crate::subvol;
use crate::uuid_tree;
use blockdev::BlockDevice;
use btrfs_disk::ids::incompat;
use btrfs_disk::items::{BalanceItem, QgroupStatus, qgroup_status};
use btrfs_disk::key::kind;
use btrfs_disk::{Error, FixedSize, Key, TreeId};
use btrfs_space::{Claim, Prover, Space, SpaceRoots};
use btrfs_tree::{Cursor, NodeStore, TreeRoot};
use btrfs_txn::{Contents, Core, Features, Health, Memory, Parts, PendingDiscards, Roots};
use btrfs_volume::Volume;
use locks::{Mutex, Rank};
use std::sync::Arc;
use vfs::{Ino, Result};

/// Bytes of nodes on the way to the one that a scan of extents is at.
/// Chosen, not measured.
const PROOF_CACHE: usize = 256 << 10;

/// The kernel's, with the byte behind the path.
const PATH_MAX: usize = 4096;

impl BtrfsFs {
    /// Opens the volume on `device`. Unless it is opened read-only, unfinished work of an
    /// earlier crash is finished.
    pub fn open_device(device: Arc<dyn BlockDevice>, options: Options) -> Result<BtrfsFs> {
        let Opened { volume, store, roots, highest } = rescue::open(device, &options)?;
        pending_log(&volume, &options)?;
        let gives_up = options.give_up_quotas && !options.read_only;
        let (roots, quotas) = if gives_up { convert::take_quotas(&roots) } else { (roots, None) };
        let read_only = read_only_reason(&options, &volume, &store, &roots)?;
        let space = Arc::new(load_space(&store, &volume, &roots, read_only.is_some())?);
        let core = core(volume, store, space, roots, read_only, &options);
        let mut engine = Engine::assemble(core, options, highest);
        if !engine.core.health.is_read_only() {
            engine.reservations.measure_trees()?;
        }
        let converts = convert::begin(&engine)?;
        if let Some(quotas) = quotas.filter(|_| !engine.core.health.is_read_only()) {
            convert::give_up(&engine, &quotas)?;
        }
        recover::recover(&engine)?;
        if converts {
            convert::finish(&engine)?;
        } else {
            convert::tidy(&engine);
        }
        (engine.root, engine.begin) = choose_root(&engine)?;
        let engine = Arc::new(engine);
        let writes = engine.core.health.writable().is_ok();
        if writes {
            clean(&engine)?;
            close_dead(&engine);
            // Nothing refuses the volume any more. There may be nothing to commit, ever.
            engine.core.volume.mend_superblocks().fs()?;
        }
        let threads = match writes && engine.options.background {
            true => Some(Box::new(start_background(&engine)?)),
            false => None,
        };
        let background = Mutex::new(Rank::Background, threads);
        let fs = BtrfsFs { engine, background, beside: Beside::default() };
        go_on(&fs, writes)?;
        Ok(fs)
    }
}

/// What earlier versions left to be mended; a UUID tree, and a balance that was interrupted, if this mount works in
/// the background.
fn go_on(fs: &BtrfsFs, writes: bool) -> Result<()> {
    if writes {
        fs.mend_flags()?;
    }
    let options = &fs.engine.options;
    if writes && options.background {
        uuid_tree::make(&fs.engine)?;
    }
    if !is_balance_left(fs, writes)? || !writes || !options.background {
        return Ok(());
    }
    if options.skip_balance {
        tracing::warn!("a balance is paused (skip_balance)");
        return Ok(());
    }
    match fs.resume_balance() {
        Err(vfs::FsError::Unsupported(why)) => {
            tracing::warn!("{why}");
            Ok(())
        }
        done => done,
    }
}

/// Who only reads does without, where what the volume says of one is lost.
fn is_balance_left(fs: &BtrfsFs, writes: bool) -> Result<bool> {
    match fs.engine.balancer.load() {
        Err(error) if !writes && error.is_of_medium() => {
            tracing::warn!(%error, "whether a balance is paused is not known");
            Ok(false)
        }
        left => left,
    }
}

/// A log that is ignored is lost with the first commit: only for those who write none.
fn pending_log(volume: &Volume, options: &Options) -> Result<()> {
    if volume.superblock().fields.log_root.0 == 0 || !options.ignore_log {
        return Ok(());
    }
    if !options.read_only {
        return Err(vfs::FsError::Unsupported(
            "the volume has a log of fsyncs that a crash left; not to replay it is for read-only \
             mounts alone"
                .into(),
        ));
    }
    tracing::warn!("fsyncs after the last commit are in a log that is not shown");
    Ok(())
}

fn clean(engine: &Engine) -> Result<()> {
    match engine.cleaner.drop_relocations() {
        // A full volume must open, or nothing can be deleted from it.
        Err(error) if error.errno() == libc::ENOSPC => {
            tracing::warn!(
                "no room to free what an interrupted relocation of the kernel's had left"
            );
        }
        dropped => dropped?,
    }
    match engine.orphans.clean_all() {
        Ok(0) => Ok(()),
        Ok(erased) => {
            tracing::info!(erased, "erased inodes that a crash left without a name");
            Ok(())
        }
        // As above.
        Err(error) if error.errno() == libc::ENOSPC => {
            tracing::warn!("no room to erase what a crash left; the next mount tries again");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Nobody comes to inodes of subvolumes that are being deleted.
fn close_dead(engine: &Engine) {
    for id in engine.core.roots().trees.dead() {
        engine.inodes.close_tree(id).drop_content();
    }
}

fn start_background(engine: &Arc<Engine>) -> Result<(Eraser, Sweeper, Background)> {
    let failed = |what: &str| {
        let context = format!("starting the {what} thread");
        move |source| vfs::FsError::Io { context, source }
    };
    let commits = Background::start(&engine.committer, engine.options.commit_interval)
        .map_err(failed("commit"))?;
    let sweeper = Sweeper::start(&engine.cleaner).map_err(failed("cleaner"))?;
    let eraser = Eraser::start(&engine.orphans).map_err(failed("eraser"))?;
    Ok((eraser, sweeper, commits))
}

fn read_only_reason(
    options: &Options,
    volume: &Volume,
    store: &NodeStore,
    roots: &Roots,
) -> Result<Option<String>> {
    if let Some(why) = volume.read_only_reason() {
        return Ok(Some(why));
    }
    if options.read_only {
        return Ok(Some(match volume.starts_elsewhere() {
            true => {
                let (shown, last) = (volume.root_generation(), volume.superblock().generation());
                let lost = match shown == last {
                    true => by_older_chunks(volume.doubted_chunks()),
                    false => format!("those of {last} are lost"),
                };
                format!("mounted read-only, with the trees of commit {shown}; {lost}")
            }
            false => "mounted read-only".into(),
        }));
    }
    if let Some(why) = unmaintained(volume, store, roots).fs()? {
        return Ok(Some(why));
    }
    differ(store, roots, volume).fs()
}

fn by_older_chunks(doubted: usize) -> String {
    let told = "its chunk tree is lost, and an older one used";
    match doubted {
        0 => told.into(),
        _ => format!("{told}, of which {doubted} chunks may be elsewhere by now"),
    }
}

/// Structures that the volume has and this program does not keep up to date yet.
fn unmaintained(
    volume: &Volume,
    store: &NodeStore,
    roots: &Roots,
) -> btrfs_disk::Result<Option<String>> {
    if let Some(why) = replacement(store, roots)? {
        return Ok(Some(why));
    }
    let incompat = volume.superblock().fields.incompat_flags;
    if let Some(why) = quotas(store, roots, incompat)? {
        return Ok(Some(why));
    }
    if let Some(root) = roots.get(TreeId::ROOT) {
        return balance(store, &root.root);
    }
    Ok(None)
}

/// A balance of which not all is known.
fn balance(store: &NodeStore, root: &TreeRoot) -> btrfs_disk::Result<Option<String>> {
    let key = Key::new(btrfs_disk::ids::BALANCE_OBJECTID, kind::TEMPORARY_ITEM, 0);
    let Some(item) = btrfs_tree::get(store, root, &key)? else { return Ok(None) };
    let item = BalanceItem::read(item.data()).map_err(|c| c.key(key))?;
    let unknown = item.unknown();
    Ok(unknown.map(|what| format!("an unfinished balance has {what}, which are not known")))
}

/// A quota tree that cannot be read, or says what is not known, keeps nobody from reading files.
fn quotas(store: &NodeStore, roots: &Roots, incompat: u64) -> btrfs_disk::Result<Option<String>> {
    let Some(root) = roots.get(TreeId::QUOTA) else { return Ok(None) };
    match quota_flags(store, &root.root) {
        Ok(flags) if flags & !qgroup_status::KNOWN != 0 => {
            Ok(Some(format!("quotas have flags {flags:#x}, which are not known")))
        }
        Ok(flags) => {
            let odd = flags & qgroup_status::SIMPLE != 0 && incompat & incompat::SIMPLE_QUOTA == 0;
            Ok(odd.then(|| "quotas are simple, and the superblock does not say so".into()))
        }
        Err(what @ (Error::Corrupt(_) | Error::Io { .. })) => Ok(Some(format!(
            "the quota tree is damaged: {what}; `spinney rescue clear-quotas` ends quotas"
        ))),
        Err(error) => Err(error),
    }
}

/// What its status says; the whole tree is read for that, as it is with each commit.
fn quota_flags(store: &NodeStore, root: &TreeRoot) -> btrfs_disk::Result<u64> {
    let (mut cursor, mut flags) = (Cursor::new(store, root), 0);
    cursor.first()?;
    while let Some((key, data)) = cursor.item() {
        if key.kind == kind::QGROUP_STATUS {
            flags = QgroupStatus::read(data).map_err(|c| c.key(key))?.flags;
        }
        cursor.next()?;
    }
    Ok(flags)
}

fn load_space(
    store: &NodeStore,
    volume: &Arc<Volume>,
    roots: &Roots,
    read_only: bool,
) -> Result<Space> {
    if read_only {
        return Ok(Space::unloaded(volume));
    }
    space_roots(volume, roots).and_then(|roots| Space::load(store, volume, &roots)).fs()
}

fn space_roots(volume: &Volume, roots: &Roots) -> btrfs_disk::Result<SpaceRoots> {
    let root = |id| roots.get(id).map(|r| r.root);
    let need =
        |id: TreeId| root(id).ok_or_else(|| btrfs_disk::Error::corrupt(format!("no tree {id}")));
    Ok(SpaceRoots {
        extent: need(TreeId::EXTENT)?,
        block_group: root(TreeId::BLOCK_GROUP),
        free_space: match volume.has_free_space_tree() {
            true => Some(need(TreeId::FREE_SPACE)?),
            false => None,
        },
    })
}

/// Holds a block group against the trees of the last commit, whose space is not used again
/// while the snapshot is held. With a cache of its own: of a scan nothing is worth keeping.
fn prover(core: &Core) -> Box<Prover> {
    let (volume, layers) = (core.volume.clone(), core.shared_layers());
    Box::new(move |claim: &Claim<'_>| {
        let snapshot = layers.load_full();
        let store = NodeStore::new(Arc::clone(&volume), PROOF_CACHE);
        claim.check(&store, &space_roots(&volume, &snapshot.roots)?)
    })
}

fn core(
    volume: Arc<Volume>,
    store: NodeStore,
    space: Arc<Space>,
    roots: Arc<Roots>,
    read_only: Option<String>,
    options: &Options,
) -> Core {
    let superblock = volume.superblock();
    let flags = superblock.fields.incompat_flags;
    let earlier = volume.root_generation() != superblock.generation();
    let parts = Parts {
        volume,
        store,
        space,
        features: Features {
            no_holes: flags & incompat::NO_HOLES != 0,
            extended_refs: flags & incompat::EXTENDED_IREF != 0,
            unverified: options.rescue.data_sums,
            earlier,
        },
        health: Health::new(read_only),
        discards: PendingDiscards::new(options.discard),
        memory: Memory::new(options.memory()),
        contents: Contents::new(options.cache_bytes.min(options.memory_bytes) / 16),
        clock: options.clock.clone(),
        contention: options.contention.clone(),
        injection: options.injection(),
    };
    let core = Core::new(parts, roots);
    core.space.prove_with(prover(&core));
    core
}

/// The first inode that is reached, and where the mount begins.
fn choose_root(engine: &Engine) -> Result<(Ino, Begin)> {
    let (view, wanted) = (engine.core.view(), &engine.options.subvol);
    let default_may_be_lost = engine.options.rescue.bad_roots && *wanted == Subvol::Default;
    let chosen = match subvol::choose(&view, &engine.subvols, wanted) {
        Err(error) if default_may_be_lost && error.is_of_medium() => {
            tracing::warn!(%error, "the default subvolume is not known; the top of the volume is shown");
            subvol::choose(&view, &engine.subvols, &Subvol::Id(TreeId::FS))
        }
        chosen => chosen,
    };
    let id = chosen?;
    let ino = number(id)?;
    let from_top = engine.options.from_top.then(|| way_from_top(engine, id)).flatten();
    Ok(match from_top {
        Some((top, path)) => (top, Begin { ino, path }),
        None => (ino, Begin { ino, path: Vec::new() }),
    })
}

/// The top of the volume and the path from there to the subvolume whose root directory is `id`; `None` where none leads to
/// it, or nobody can read what is on the way, or say it: paths are of less than `PATH_MAX` bytes for the kernel.
fn way_from_top(engine: &Engine, id: InodeId) -> Option<(Ino, Vec<u8>)> {
    let view = engine.core.view();
    let at = |wanted: &Subvol| subvol::choose(&view, &engine.subvols, wanted).ok();
    let path = ops::subvolume::path(engine, id.tree).ok()??;
    if path.len() >= PATH_MAX {
        return None;
    }
    let top = at(&Subvol::Id(TreeId::FS))?;
    (at(&Subvol::Path(path.clone())) == Some(id)).then_some((number(top).ok()?, path))
}
