//! The rooms of an open volume, for the operations (`ops/`), which may use all of them.
//!
//! Each room is a type that names what it stands on and keeps its own state to itself; the
//! operations are on top, and nothing below knows them. `cargo xtask layers` holds the order.
//!
//! Lock order: `locks::Rank`; of inodes, ascending by tree and object id (`inode::Locked`).
//! An `Op` is entered with its inode locks held and left before they are released.

use crate::balance::Balancer;
use crate::cleaner::Cleaner;
use crate::commit::Committer;
use crate::device_stats::DeviceStats;
use crate::erasures::Erasures;
use crate::error::IntoFs;
use crate::fsync::Fsync;
use crate::inode::{Inode, Inodes, State};
use crate::label::PendingLabel;
use crate::log::TreeLog;
use crate::lost_names::LostNames;
use crate::options::Options;
use crate::orphan::Orphans;
use crate::reserve::Reservations;
use crate::reserver::Reserver;
use crate::scrub::Scrubber;
use crate::stats::Stats;
use crate::subvol::Subvols;
use crate::tickets::Tickets;
use crate::unsettled::Unsettled;
use crate::verity::Verity;
use crate::writeback::{Flushed, Writeback};
use btrfs_disk::TreeId;
use btrfs_txn::{Core, Root};
use locks::{Mutex, MutexGuard, Rank, RwLockWriteGuard};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use vfs::{FsError, Ino, Result, Stat};

/// The root directory of the subvolume that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Begin {
    /// Its number.
    pub(crate) ino: Ino,
    /// From the root to it; empty for the root itself.
    pub(crate) path: Vec<u8>,
}

pub(crate) struct Engine {
    pub core: Arc<Core>,
    pub options: Options,
    pub stats: Arc<Stats>,
    pub inodes: Arc<Inodes>,
    pub subvols: Arc<Subvols>,
    pub reservations: Arc<Reservations>,
    pub writeback: Arc<Writeback>,
    pub log: Arc<TreeLog>,
    pub label: Arc<PendingLabel>,
    pub(crate) device_stats: Arc<DeviceStats>,
    pub committer: Arc<Committer>,
    pub reserver: Arc<Reserver>,
    pub fsync: Fsync,
    pub orphans: Arc<Orphans>,
    /// The first inode that is reached. Chosen when the log is replayed, which may make directories on
    /// the way to it.
    pub root: Ino,
    /// Where the mount begins: the root, or below it.
    pub(crate) begin: Begin,
    /// Held by who makes, moves or takes away a subvolume or its name, and by who changes groups; see
    /// `ops/subvolume`.
    subvolume_lock: Mutex<()>,
    pub(crate) cleaner: Arc<Cleaner>,
    pub(crate) balancer: Balancer,
    pub(crate) scrubber: Scrubber,
    /// Held by renames across directories; see `ops/rename.rs`.
    pub rename_lock: Mutex<()>,
    /// How closing it went, once it is over.
    pub(crate) closed: OnceLock<Result<()>>,
    /// That has begun: who changes something from now on may be in no commit.
    pub(crate) last_commit: AtomicBool,
    pub(crate) unsettled: Arc<Unsettled>,
    /// To receive and to send, for administrators.
    pub(crate) tickets: Tickets,
    /// To make snapshots, for everybody: these let nobody in there.
    pub(crate) sources: Tickets,
    pub(crate) verity: Verity,
    pub(crate) lost_names: LostNames,
}

impl Engine {
    /// The rooms, from the ground up. `highest`: the highest number that the root tree has.
    pub(crate) fn assemble(core: Core, options: Options, highest: u64) -> Engine {
        let (core, stats) = (Arc::new(core), Arc::new(Stats::default()));
        let subvols = Arc::new(Subvols::load(&core.roots(), highest, options.seed));
        let inodes = Arc::new(Inodes::new(core.clone(), stats.clone()));
        let (pieces, label) = (Arc::default(), Arc::<PendingLabel>::default());
        let reservations =
            Arc::new(Reservations::new(core.clone(), subvols.clone(), Arc::clone(&pieces)));
        let writeback = Arc::new(Writeback::new(
            core.clone(),
            reservations.clone(),
            inodes.clone(),
            subvols.clone(),
            pieces,
            stats.clone(),
            options.compress,
        ));
        let log =
            Arc::new(TreeLog::new(core.clone(), inodes.clone(), writeback.clone(), stats.clone()));
        let device_stats = Arc::new(DeviceStats::new(&core, &reservations));
        let committer = Arc::new(Committer::new(
            core.clone(),
            reservations.clone(),
            writeback.clone(),
            inodes.clone(),
            subvols.clone(),
            log.clone(),
            label.clone(),
            device_stats.clone(),
            stats.clone(),
        ));
        let erasures = Arc::<Erasures>::default();
        let reserver = Arc::new(Reserver::new(
            core.clone(),
            reservations.clone(),
            writeback.clone(),
            committer.clone(),
            stats.clone(),
            erasures.clone(),
            options.background,
        ));
        let orphans = Arc::new(Orphans::new(&core, &inodes, &reservations, &reserver, erasures));
        let cleaner = Arc::new(Cleaner::new(&core, &reservations, &reserver, &committer));
        committer.call_afterwards(afterwards(&orphans, &cleaner));
        let balancer = Balancer::new(&core, &reservations, &reserver, &committer, &cleaner, &stats);
        Engine {
            scrubber: Scrubber::new(&core),
            verity: Verity::new(core.clone()),
            lost_names: LostNames::new(),
            fsync: Fsync::new(core.clone(), log.clone(), committer.clone(), stats.clone()),
            core,
            options,
            stats,
            inodes,
            subvols,
            reservations,
            writeback,
            log,
            label,
            device_stats,
            committer,
            reserver,
            orphans,
            root: Ino(0),
            begin: Begin { ino: Ino(0), path: Vec::new() },
            subvolume_lock: Mutex::new(Rank::Subvolumes, ()),
            cleaner,
            balancer,
            rename_lock: Mutex::new(Rank::Rename, ()),
            closed: OnceLock::new(),
            last_commit: AtomicBool::new(false),
            unsettled: Arc::default(),
            tickets: Tickets::default(),
            sources: Tickets::default(),
        }
    }

    /// How many nodes a tree that shares none has, by its root item; the volume has no more in any case.
    pub(crate) fn nodes_at_most(&self, root: &Root) -> u64 {
        let size = u64::from(self.core.geometry.node_size);
        root.item.bytes_used.min(self.core.space.used()) / size + 1
    }

    /// EROFS where the subvolume is a read-only snapshot, or nothing may be changed.
    pub(crate) fn subvol_writable(&self, tree: TreeId) -> Result<()> {
        self.changeable()?;
        self.not_read_only(tree)
    }

    /// EROFS where nothing may be changed.
    fn changeable(&self) -> Result<()> {
        let health = &self.core.health;
        // The kernel lets nobody change a mount that it has read-only: who comes all the same
        // comes right behind a `remount,rw`, of which we hear a moment later.
        let mut waits = 0;
        while health.refuses_changes() && waits < 100 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            waits += 1;
        }
        health.changeable().fs()
    }

    /// For who changes subvolumes or groups, from his checks until the change is in the epoch. EROFS: nothing
    /// may be changed, perhaps since he began to wait.
    pub(crate) fn lock_subvolumes(&self) -> Result<MutexGuard<'_, ()>> {
        self.changeable()?;
        let turn = self.subvolume_lock.lock();
        // Who refuses changes says so first, and comes here then.
        self.core.health.changeable().fs()?;
        Ok(turn)
    }

    /// For who changes nothing, and wants nobody to change subvolumes meanwhile.
    pub(crate) fn still_subvolumes(&self) -> MutexGuard<'_, ()> {
        self.subvolume_lock.lock()
    }

    /// From now on who begins to change something hears EROFS; who is at a change of subvolumes or groups, or
    /// inside the epoch, is done when this returns.
    pub(crate) fn end_changes(&self) {
        self.core.health.refuse_changes(true);
        drop(self.subvolume_lock.lock());
        // Few come in any more, so there is a moment without anybody, unless somebody is long at it.
        let _busy_for_seconds = (0..STILL_LOOKS).any(|_| self.core.wait_for_operations());
    }

    fn not_read_only(&self, tree: TreeId) -> Result<()> {
        match self.subvols.is_read_only(tree) {
            true => Err(FsError::ReadOnly(format!("subvolume {tree} is read-only"))),
            false => Ok(()),
        }
    }

    /// Exclusive access to an inode for who changes it. EROFS: its subvolume became read-only since he asked.
    pub(crate) fn write<'i>(&self, inode: &'i Inode) -> Result<RwLockWriteGuard<'i, State>> {
        let state = inode.write()?;
        self.still_writable(inode.id.tree)?;
        Ok(state)
    }

    /// To be asked again with inodes of `tree` locked, before anything is changed. Who makes a subvolume
    /// read-only says so first and waits for the lock of each of its inodes then, so nobody changes
    /// anything behind that.
    pub(crate) fn still_writable(&self, tree: TreeId) -> Result<()> {
        match self.subvols.some_closed() {
            true => self.not_read_only(tree),
            false => Ok(()),
        }
    }

    /// Memory that is known and in no account.
    fn beside(&self) -> [(&'static str, u64); 2] {
        [
            ("memory.contents", self.core.contents.bytes()),
            ("memory.nodes_waiting", btrfs_disk::buffers::waiting()),
        ]
    }

    /// See [`BtrfsFs::note_process_memory`](crate::BtrfsFs::note_process_memory).
    pub(crate) fn note_process_memory(&self, bytes: u64, settled: bool) {
        let memory = &self.core.memory;
        memory.note_process(bytes);
        if settled {
            self.inodes.note_memory();
            memory.withhold(self.core.store.counters().bytes, &self.beside());
            self.core.note_memory();
        }
    }

    pub(crate) fn all_stats(&self) -> Vec<Stat> {
        let all = self.stats.list().into_iter().chain(self.core.stats.list());
        let mut all: Vec<Stat> = all.map(|(name, value)| Stat { name, value }).collect();
        self.inodes.note_memory();
        let layers = self.core.layers();
        let cache = self.core.store.counters();
        let waits = crate::inode::LOCK_WAITS.load(std::sync::atomic::Ordering::Relaxed);
        let now = [
            ("volume.read_only", u64::from(self.core.health.writable().is_err())),
            ("volume.failed", u64::from(self.core.health.poisoned().is_some())),
            ("generation", layers.roots.generation.0),
            ("delta.bytes", layers.current.bytes()),
            ("delta.items", layers.current.items.slots()),
            ("delta.dirty_bytes", self.core.memory.dirty()),
            ("inodes.open", self.inodes.table().len() as u64),
            ("inodes.lock_waits", waits),
            ("inodes.to_erase", self.orphans.erasures.count()),
            ("data.refused", self.writeback.errors().count()),
            ("commit.unpaid_nodes", self.core.space.unpaid_nodes()),
            ("cache.hits", cache.hits),
            ("cache.misses", cache.misses),
        ];
        let now = now.into_iter().chain(self.core.memory.list(cache.bytes, &self.beside()));
        let volume = self.core.volume.counters().list();
        let more = now.chain(volume);
        all.extend(more.map(|(name, value)| Stat { name, value }));
        all
    }
}

/// How often who ends changes looks for a moment without operations inside the epoch: some seconds.
/// Chosen, not measured.
const STILL_LOOKS: u32 = 100;

/// What a commit makes possible: both hold the committer, so it holds neither.
fn afterwards(
    orphans: &Arc<Orphans>,
    cleaner: &Arc<Cleaner>,
) -> impl Fn(Flushed) + Send + Sync + 'static {
    let (orphans, cleaner) = (Arc::downgrade(orphans), Arc::downgrade(cleaner));
    move |landed| {
        if let Some(orphans) = orphans.upgrade() {
            orphans.retry(landed == Flushed::All);
        }
        if let Some(cleaner) = cleaner.upgrade() {
            cleaner.wake_for_dead();
        }
    }
}
