//! What exists once for a volume, below everything that works on it.
//!
//! Invariant: the layers are replaced as a whole (one atomic store), by the one commit at a
//! time: a reader's [`View`] is one moment.
//!
//! What it does not know: inodes, reservations, the log, and when a commit comes.

mod addresses;
mod op;
mod unverified;

pub use addresses::Addresses;
pub use op::{Op, RUN_PLACES};
pub use unverified::Unverified;

use crate::delta::{Delta, Holders};
use crate::{
    Clock, CommitRequests, Contention, Contents, Health, Injection, Memory, Pacing,
    PendingDiscards, Roots, Snapshot, TxnStats, View,
};
use arc_swap::ArcSwap;
use btrfs_disk::items::Timespec;
use btrfs_disk::{Generation, Geometry, Logical, Result, TreeId};
use btrfs_space::{Extent, RefOwner, Space, TreeItems};
use btrfs_tree::NodeStore;
use btrfs_volume::Volume;
use std::fmt::Display;
use std::sync::Arc;

/// What the volume's format has, and how it is read.
#[derive(Clone, Copy, Default, Debug)]
pub struct Features {
    /// Gaps in files need no items (NO_HOLES).
    pub no_holes: bool,
    /// There may be INODE_EXTREF items (EXTENDED_IREF).
    pub extended_refs: bool,
    /// Content is given out whatever its checksum says: of damaged volumes, on demand.
    pub unverified: bool,
    /// An earlier commit is shown: content may have been written over since.
    pub earlier: bool,
}

/// What everything in the engine stands on: the volume, its layers, and whether it may be written.
pub struct Core {
    /// Chunks, superblocks, reads and writes.
    pub volume: Arc<Volume>,
    /// Nodes, and the cache of them.
    pub store: NodeStore,
    /// What is free, and who has reserved it.
    pub space: Arc<Space>,
    /// The sizes that rule the volume.
    pub geometry: Geometry,
    /// What the format of this volume has.
    pub features: Features,
    /// Whether anything may be written.
    pub health: Health,
    /// Who wants a commit, and who waits for one.
    pub requests: CommitRequests,
    /// What the device is to be told is free.
    pub discards: PendingDiscards,
    /// How much of it what is not durable takes.
    pub memory: Memory,
    /// What who adds to it pays while there is too much.
    pub pacing: Pacing,
    /// Content that was decompressed.
    pub contents: Contents,
    /// What stamps come from.
    pub clock: Arc<dyn Clock>,
    /// Whether a commit that nobody waits for rests.
    pub contention: Arc<dyn Contention>,
    /// Counters of this crate.
    pub stats: TxnStats,
    /// What tests make go wrong.
    pub injection: Injection,
    /// Content stays where it is.
    pub addresses: Addresses,
    /// What was given out of files although no checksum vouches for it.
    pub unverified: Unverified,
    /// Shared with the allocator's prover, which knows no more of us.
    layers: Arc<ArcSwap<Snapshot>>,
    /// What the commits were published over to which no superblock leads yet, oldest first. A crash
    /// leads back to the first of them, with a log that may know the epochs of all.
    undone_by_crash: ArcSwap<Vec<Arc<Snapshot>>>,
}

/// What a core is made of.
pub struct Parts {
    /// Chunks, superblocks, reads and writes.
    pub volume: Arc<Volume>,
    /// Nodes, and the cache of them.
    pub store: NodeStore,
    /// What is free, and who has reserved it.
    pub space: Arc<Space>,
    /// What the format of this volume has.
    pub features: Features,
    /// Whether anything may be written.
    pub health: Health,
    /// What the device is to be told is free.
    pub discards: PendingDiscards,
    /// How much of it what is not durable takes.
    pub memory: Memory,
    /// Content that was decompressed.
    pub contents: Contents,
    /// What stamps come from.
    pub clock: Arc<dyn Clock>,
    /// Whether a commit that nobody waits for rests.
    pub contention: Arc<dyn Contention>,
    /// What tests make go wrong.
    pub injection: Injection,
}

impl Core {
    /// The first epoch begins on top of `roots`.
    pub fn new(parts: Parts, roots: Arc<Roots>) -> Core {
        let next = Generation(roots.generation.0 + 1);
        let first = Snapshot { current: Arc::new(Delta::new(next)), sealed: None, roots };
        Core {
            geometry: *parts.volume.geometry(),
            volume: parts.volume,
            store: parts.store,
            space: parts.space,
            features: parts.features,
            health: parts.health,
            requests: CommitRequests::default(),
            discards: parts.discards,
            memory: parts.memory,
            pacing: Pacing::default(),
            contents: parts.contents,
            clock: parts.clock,
            contention: parts.contention,
            stats: TxnStats::default(),
            injection: parts.injection,
            addresses: Addresses::default(),
            unverified: Unverified::default(),
            layers: Arc::new(ArcSwap::from_pointee(first)),
            undone_by_crash: ArcSwap::default(),
        }
    }

    /// What a reader sees at this moment.
    pub fn view(&self) -> View<'_> {
        View { store: &self.store, layers: self.layers.load() }
    }

    /// Returns when the operations that are inside the epoch now have ended. The caller is inside none. False: it
    /// gave up after tens of milliseconds, since some were always there.
    pub fn wait_for_operations(&self) -> bool {
        self.layers.load().current.gate.wait_for_those_inside()
    }

    /// The layers at this moment.
    pub fn layers(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.layers.load()
    }

    /// For who must see them change without knowing us.
    pub fn shared_layers(&self) -> Arc<ArcSwap<Snapshot>> {
        self.layers.clone()
    }

    /// The one commit at work takes the layers a step on.
    pub fn replace_layers(&self, next: Snapshot) {
        self.layers.store(Arc::new(next));
    }

    /// The same, publishing a commit that no superblock leads to yet. Answers the layers before.
    pub fn publish(&self, roots: Arc<Roots>) -> Arc<Snapshot> {
        let before = arc_swap::Guard::into_inner(self.layers());
        let mut undone = self.undone_by_crash.load().to_vec();
        undone.push(before.clone());
        // Before anybody sees the new roots.
        self.undone_by_crash.store(Arc::new(undone));
        self.replace_layers(Snapshot { current: before.current.clone(), sealed: None, roots });
        before
    }

    /// A superblock leads to all that was published.
    pub fn is_durable(&self) {
        self.undone_by_crash.store(Arc::default());
    }

    /// The roots of the last commit that was published.
    pub fn roots(&self) -> Arc<Roots> {
        self.layers.load().roots.clone()
    }

    /// Bytes of a sector.
    pub fn sector(&self) -> u64 {
        u64::from(self.geometry.sector_size)
    }

    /// The time to stamp with.
    pub fn now(&self) -> Timespec {
        self.clock.now()
    }

    /// Enters the current epoch.
    pub fn begin(&self) -> Op<'_> {
        Op::enter(self)
    }

    /// The same, for who has no other word that changes are not refused: who refuses them waits for those
    /// who are inside, and commits.
    pub fn begin_change(&self) -> Result<Op<'_>> {
        let op = self.begin();
        self.health.changeable()?;
        Ok(op)
    }

    /// Runs an operation of several steps that may fail in the current epoch. One that fails
    /// after its first change stands half done, and the volume is poisoned before a commit
    /// can seal that.
    pub fn change<T, E: Display>(
        &self,
        work: impl FnOnce(&Op<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let op = self.begin();
        let result = work(&op);
        if let Err(error) = &result
            && op.has_changed()
        {
            self.health.poison(&format!("an operation broke off half done: {error}"));
        }
        result
    }

    /// An extent that no commit knows can be used again.
    pub fn give_back(&self, extent: Extent) {
        match self.space.release(extent) {
            Ok(()) => self.discards.add(&extent),
            Err(error) => self.health.poison(&format!("giving back an extent: {error}")),
        }
    }

    /// True if nobody but `who` refers to the data extent, in any layer, nor will if power is lost
    /// now: neither in the last durable commit nor by a log on top of it.
    pub fn only_referrer(&self, extent: Logical, who: (TreeId, u64, u64)) -> Result<bool> {
        let view = self.view();
        // Behind the view: of roots that it has and that are not durable this tells.
        let undone = self.undone_by_crash.load();
        let layers = &view.layers;
        let mut is_new = false;
        for delta in [Some(&layers.current), layers.sealed.as_ref()].into_iter().flatten() {
            match delta.extents.holders(extent, who) {
                Holders::Others => return Ok(false),
                Holders::AskerAlone => is_new = true,
                Holders::NoOthersCame => {}
            }
        }
        if is_new {
            return Ok(true);
        }
        if self.held_by_alone(&layers.roots, extent, who)? != Some(true) {
            return Ok(false);
        }
        for before in undone.iter().rev() {
            match before.sealed.as_ref().map(|delta| delta.extents.holders(extent, who)) {
                Some(Holders::Others) => return Ok(false),
                Some(Holders::AskerAlone) => return Ok(true),
                Some(Holders::NoOthersCame) | None => {}
            }
            if self.held_by_alone(&before.roots, extent, who)? == Some(false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether it is so in these trees; `None`: they do not know the extent.
    fn held_by_alone(
        &self,
        roots: &Roots,
        extent: Logical,
        who: (TreeId, u64, u64),
    ) -> Result<Option<bool>> {
        let Some(root) = roots.get(TreeId::EXTENT) else { return Ok(None) };
        let mut items = TreeItems::new(&self.store, &root.root);
        let owner = RefOwner::Data { root: who.0, ino: who.1, offset: who.2 };
        btrfs_space::refs::held_by_alone(&mut items, extent, &owner)
    }

    /// True if both addresses lie in one chunk.
    pub fn same_chunk(&self, a: Logical, b: Logical) -> bool {
        self.volume.chunk(a).is_some_and(|chunk| chunk.logical <= b && b.0 < chunk.end())
    }

    /// What the delta takes is written down for the others, and the cache follows. For who is
    /// about to change something, and for a commit on its way. Answers the current delta's bytes.
    pub fn note_memory(&self) -> u64 {
        let layers = self.layers.load();
        let sealed = layers.sealed.as_ref().map_or(0, |delta| delta.bytes());
        let current = layers.current.bytes();
        if let Some(budget) = self.memory.note_delta(current, sealed) {
            self.store.set_budget(budget as usize);
        }
        current
    }

    /// What inodes in use take; the cache follows.
    pub fn note_inodes(&self, bytes: u64) {
        self.memory.note_inodes(bytes);
        self.note_memory();
    }

    /// What a commit has built and not written; the cache follows.
    pub(crate) fn note_building(&self, bytes: u64) {
        self.memory.note_building(bytes);
        self.note_memory();
    }

    /// See [`Memory::is_short`].
    pub fn is_short_of_memory(&self) -> bool {
        self.memory.is_short(self.layers.load().current.bytes())
    }
}
