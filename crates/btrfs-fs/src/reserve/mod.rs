//! Promises are made only when they can be kept: metadata room for the commit, data room
//! for unwritten content, memory for the delta.
//!
//! What a commit can need of metadata is bounded ([`bound`]) by what the delta and the
//! unwritten content change; that much is held as a reservation which the commit takes
//! over. It grows with the delta, before an operation enters the epoch.
//!
//! Invariants:
//! * Normal operations and content (where data and metadata share their block groups:
//!   data, too) leave the global reserve alone. What a commit really takes is no more than
//!   what was held for it, so the reserve is still there when it has ended.
//! * The reserve holds what the commit of one small step of removal needs, twice nearly. A
//!   removal goes in steps; where there is no room for the next one, a commit gives back
//!   what is held for those before and, when the readers of older roots are gone, what it
//!   rewrote and freed. Then the delta is empty, and the reserve is enough: a removal
//!   always gets on.
//! * A removal makes nothing longer but by a few bytes: what punches a hole into an extent
//!   is no removal.
//!
//! Reserving may wait for a commit, which locks inodes, and for the readers of old roots:
//! reserve before locking any, and before taking a view.
//!
//! What is held counts operations that run at the same time only when they have entered
//! the epoch; a few of them can be missed for a moment, for which the reserve has room.

mod bound;
mod data;

use crate::delta::Delta;
use crate::engine::Engine;
use crate::error::IntoFs;
use bound::{Load, Trees, bound};
use btrfs_disk::Error;
use btrfs_space::{DataReservation, Kind, MetadataReservation, Priority};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vfs::{Errno, FsError, Result};

/// Items that one small step of a removal takes away at most, in as many places.
pub const SMALL_STEP: u64 = 8;
/// Places that the largest operation changes which must work on a full volume: a small
/// step, and what it leaves.
const REMOVAL: u64 = 2 * SMALL_STEP;
/// Places that taking a name away changes.
const UNLINK: u64 = 6;
/// Metadata is reserved in steps of this many bytes where there is plenty.
const STEP: u64 = 8 << 20;
/// Bytes of items that an unwritten extent will have in all trees.
const UNWRITTEN: u64 = 256;
/// What must come back at least for a commit to be worth its while, in nodes.
const WORTH: u64 = 64;
/// Commits that a removal asks for before it gives up: others may take what comes back.
const PATIENCE: u32 = 8;
/// How long the readers of old roots are waited for.
const READERS: Duration = Duration::from_secs(1);

/// What the engine holds of promised space.
#[derive(Default)]
pub struct Promises {
    /// For the commit of the current epoch.
    metadata: Mutex<Option<MetadataReservation>>,
    metadata_bytes: AtomicU64,
    /// The part of it that was not taken from the global reserve.
    ordinary_bytes: AtomicU64,
    /// For all unwritten content.
    data: Mutex<Option<DataReservation>>,
    /// What the trees had at the last commit: see [`Trees`].
    accounts: AtomicU64,
    paths: AtomicU64,
    /// Bytes of all trees, of volumes whose block groups do not say it.
    trees: AtomicU64,
    /// Removals so far, and as of the last commit that was to free space.
    removals: AtomicU64,
    seen: AtomicU64,
}

/// What one search for room has done so far.
#[derive(Default)]
struct Tried {
    commits: u32,
    waited: bool,
}

impl Promises {
    fn held_for(&self, priority: Priority) -> u64 {
        match priority {
            Priority::Normal => self.ordinary_bytes.load(Ordering::Acquire),
            Priority::Delete => self.metadata_bytes.load(Ordering::Acquire),
        }
    }

    fn absorb(
        &self,
        held: &mut Option<MetadataReservation>,
        more: MetadataReservation,
        from: Priority,
    ) {
        if from == Priority::Normal {
            self.ordinary_bytes.fetch_add(more.bytes(), Ordering::AcqRel);
        }
        self.metadata_bytes.fetch_add(more.bytes(), Ordering::AcqRel);
        match held.as_mut() {
            Some(reservation) => reservation.absorb(more),
            None => *held = Some(more),
        }
    }
}

impl Engine {
    /// Room for an operation that changes about `items` items of `bytes` bytes.
    pub fn reserve(&self, items: u64, bytes: u64) -> Result<()> {
        self.reserve_with(items, bytes, Priority::Normal)
    }

    /// As `reserve`, for what gives space back: it may use the global reserve.
    pub fn reserve_for_removal(&self, items: u64) -> Result<()> {
        self.promises.removals.fetch_add(1, Ordering::Relaxed);
        self.reserve_with(items, 0, Priority::Delete)
    }

    /// Room for removing up to `most` items; answers how many of them, a small step at least.
    pub fn reserve_removal_of(&self, most: u64) -> Result<u64> {
        self.writable()?;
        if most > SMALL_STEP && self.hold(most, 0, Priority::Delete).is_ok() {
            self.promises.removals.fetch_add(1, Ordering::Relaxed);
            return Ok(most);
        }
        let step = most.min(SMALL_STEP);
        self.reserve_for_removal(step).map(|()| step)
    }

    fn reserve_with(&self, items: u64, bytes: u64, priority: Priority) -> Result<()> {
        self.writable()?;
        self.hold_back()?;
        let mut tried = Tried::default();
        loop {
            match self.hold(items, bytes, priority) {
                Err(FsError::Posix(Errno::ENOSPC)) => {}
                other => return other,
            }
            // Not for this one operation alone: that is what makes a commit worth its while.
            let alone = Load { places: items, bytes, extents: 0 };
            let trees = self.trees();
            let wanted = bound(&trees, &alone) + WORTH * trees.node_size;
            if !self.find_room(&mut tried, Kind::Metadata, wanted, priority)? {
                // Where more is used than should be (a volume that somebody else filled),
                // what is free must do for removals, promised or not.
                let removes = priority == Priority::Delete && self.has_room(items);
                return if removes { Ok(()) } else { Err(Errno::ENOSPC.into()) };
            }
        }
    }

    /// Does the next thing that may make room for `wanted` bytes; false: nothing is left.
    fn find_room(
        &self,
        tried: &mut Tried,
        kind: Kind,
        wanted: u64,
        priority: Priority,
    ) -> Result<bool> {
        let most = if priority == Priority::Delete { PATIENCE } else { 1 };
        // Where much is held a commit comes first; chunks of the other kind come before
        // many commits that bring little.
        if !self.much_is_held()
            && priority == Priority::Normal
            && self.space.reclaim_for(kind).fs()?
        {
            return Ok(true);
        }
        if tried.commits < most && self.commit_may_help(kind, wanted, priority) {
            *tried = Tried { commits: tried.commits + 1, waited: false };
            self.commit_for_space()?;
            return Ok(true);
        }
        if !tried.waited && self.space.pinned(kind) > 0 {
            tried.waited = true;
            self.wait_for_readers(kind);
            return Ok(true);
        }
        self.space.reclaim_for(kind).fs()
    }

    /// Whether most of what is promised of metadata is for one large commit.
    fn much_is_held(&self) -> bool {
        let total = self.space.totals().metadata.total;
        self.promises.metadata_bytes.load(Ordering::Relaxed) > total / 8
    }

    /// Whether a commit can make room for `wanted` bytes. It is expensive, and near the end
    /// every operation would ask for one: so not without a reason.
    fn commit_may_help(&self, kind: Kind, wanted: u64, priority: Priority) -> bool {
        let layers = self.layers.load();
        if layers.sealed.is_some() {
            return true;
        }
        let removals = self.promises.removals.load(Ordering::Relaxed);
        if priority == Priority::Delete || removals != self.promises.seen.load(Ordering::Relaxed) {
            return !layers.current.is_empty();
        }
        let (mut comes, mut may) = (self.space.pinned(kind), 0);
        let held = self.promises.metadata_bytes.load(Ordering::Relaxed);
        if self.space.mixed() || kind == Kind::Data {
            comes += layers.current.extents.dropped();
            // Of content that becomes inline items the promise comes back.
            may += self.dirty_pieces.first() * self.sector();
        }
        if self.space.mixed() || kind != Kind::Data {
            may += held;
        }
        if may >= WORTH * u64::from(self.geometry.node_size) {
            comes += may;
        }
        let enough = comes > 0 && self.space.unpromised(kind) + comes >= wanted;
        enough || kind == Kind::Data && self.space.promises_block_data(held)
    }

    /// What was freed comes back when nobody reads older roots any more.
    pub fn wait_for_readers(&self, kind: Kind) {
        let until = Instant::now() + READERS;
        while self.space.pinned(kind) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// True if the next commit, with `items` more, fits what is free of metadata.
    fn has_room(&self, items: u64) -> bool {
        let need = self.need(&self.layers.load().current, items, 0, Priority::Delete);
        need <= self.space.totals().metadata.free
    }

    /// A commit that shall free space; that some content found no room is known then.
    pub fn commit_for_space(&self) -> Result<()> {
        let removals = self.promises.removals.load(Ordering::Relaxed);
        self.promises.seen.store(removals, Ordering::Relaxed);
        self.stats.commits_for_space.add(1);
        self.commit_what_lands()
    }

    /// Makes sure before the commit that it finds room for all of its nodes, also for
    /// those that writeback has just added. It may fail all the same: then what is free
    /// must do.
    pub fn hold_for_commit(&self) {
        while let Err(FsError::Posix(Errno::ENOSPC)) = self.hold(0, 0, Priority::Delete) {
            if !matches!(self.space.reclaim_for(Kind::Metadata), Ok(true)) {
                return;
            }
        }
    }

    /// What is held for the epoch that was just sealed goes to its commit. What the next
    /// one needs already, for content that is still unwritten, stays; the rest goes back.
    pub fn take_metadata(&self, sealed: &Delta) -> Option<MetadataReservation> {
        let trees = self.trees();
        let commit = bound(&trees, &load_of(sealed));
        let next = self.next_need();
        let mut held = self.promises.metadata.lock();
        let taken = held.as_mut().map(|held| held.split(commit));
        let rest = held.as_ref().map_or(0, MetadataReservation::bytes);
        if let Some(held) = held.as_mut() {
            held.shrink(rest.saturating_sub(next));
        }
        let rest = rest.min(next);
        self.promises.metadata_bytes.store(rest, Ordering::Release);
        self.promises.ordinary_bytes.fetch_min(rest, Ordering::AcqRel);
        taken
    }

    /// What the epoch after a commit needs already.
    fn next_need(&self) -> u64 {
        let layers = self.layers.load();
        let idle = layers.current.is_empty() && self.unwritten().extents == 0;
        if idle { 0 } else { self.need(&layers.current, 0, 0, Priority::Normal) }
    }

    /// After a commit: what it did not use is promised again to content that is unwritten
    /// still, as far as it goes.
    pub fn hold_for_unwritten(&self) {
        let need = self.next_need();
        let mut held = self.promises.metadata.lock();
        let have = self.promises.held_for(Priority::Normal);
        let missing = need.saturating_sub(have).min(self.space.unpromised(Kind::Metadata));
        if missing > 0
            && let Ok(more) = self.space.reserve_metadata(missing, Priority::Normal)
        {
            self.promises.absorb(&mut held, more, Priority::Normal);
        }
    }

    /// Grows the reservation to what the current delta and the operation need, without
    /// waiting for anything: may be called with inodes locked. Who may use the global
    /// reserve answers for the next commit alone; content that is unwritten can wait for
    /// the one after it.
    pub fn hold(&self, items: u64, bytes: u64, priority: Priority) -> Result<()> {
        let need = self.need(&self.layers.load().current, items, bytes, priority);
        if need <= self.promises.held_for(priority) {
            return Ok(());
        }
        let mut held = self.promises.metadata.lock();
        let have = self.promises.held_for(priority);
        if need <= have {
            return Ok(());
        }
        let missing = need - have;
        let spare = STEP.min(self.space.unpromised(Kind::Metadata) / 16);
        let ordinary = match self.space.reserve_metadata(missing + spare, Priority::Normal) {
            Err(Error::NoSpace) => self.space.reserve_metadata(missing, Priority::Normal),
            other => other,
        };
        let (more, from) = match ordinary {
            Err(Error::NoSpace) if priority == Priority::Delete => {
                (self.space.reserve_metadata(missing, priority).fs()?, priority)
            }
            other => (other.fs()?, Priority::Normal),
        };
        self.promises.absorb(&mut held, more, from);
        Ok(())
    }

    /// What the commit of `delta` and of one operation more needs, and of unwritten content
    /// unless that can wait.
    fn need(&self, delta: &Delta, items: u64, bytes: u64, priority: Priority) -> u64 {
        let known = load_of(delta);
        let unwritten = match priority {
            Priority::Normal => self.unwritten(),
            Priority::Delete => Load::default(),
        };
        let load = Load {
            places: known.places + unwritten.places + items,
            bytes: known.bytes + unwritten.bytes + bytes,
            extents: known.extents + unwritten.extents,
        };
        bound(&self.trees(), &load)
    }

    /// What unwritten content will change. It becomes an extent for each of its pieces, and
    /// more where free space is in pieces.
    fn unwritten(&self) -> Load {
        let sectors = self.dirty_bytes.load(Ordering::Relaxed) / self.sector();
        let pieces = self.dirty_pieces.all().min(sectors);
        let extents = sectors.min(pieces + self.space.pieces(Kind::Data));
        let places = self.dirty_pieces.apart().min(sectors);
        let sums = sectors * self.geometry.csum.size() as u64;
        let inline = self.dirty_pieces.first() * self.geometry.max_inline() as u64;
        Load { places, bytes: extents * UNWRITTEN + sums + inline, extents }
    }

    fn trees(&self) -> Trees {
        let node_size = u64::from(self.geometry.node_size);
        let all = match self.space.mixed() {
            true => self.promises.trees.load(Ordering::Relaxed),
            false => self.space.used_by(Kind::Metadata),
        };
        Trees {
            node_size,
            all: all / node_size,
            accounts: self.promises.accounts.load(Ordering::Relaxed) / node_size,
            paths: self.promises.paths.load(Ordering::Relaxed),
            shared: self.subvols.share_nodes(),
        }
    }

    /// Looks up how large the trees are, and sets the global reserve: at the start and
    /// after each commit.
    pub fn measure_trees(&self) -> Result<()> {
        use crate::ops::statfs;
        let promises = &self.promises;
        promises.accounts.store(statfs::accounts(self)?.0, Ordering::Relaxed);
        promises.paths.store(self.paths(), Ordering::Relaxed);
        if self.space.mixed() {
            promises.trees.store(statfs::tree_bytes(self)?, Ordering::Relaxed);
        }
        let trees = self.trees();
        let step = |places| bound(&trees, &Load { places, ..Load::default() });
        let least = step(REMOVAL) + step(UNLINK);
        self.space.keep_for_removal(least, statfs::global_reserve(self)?);
        Ok(())
    }

    /// Nodes from the root down to one leaf of each tree that every commit changes, and one
    /// more for each that grows a level.
    fn paths(&self) -> u64 {
        use btrfs_disk::TreeId;
        let roots = self.roots();
        let every = [TreeId::ROOT, TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::CSUM];
        let rare = [TreeId::BLOCK_GROUP, TreeId::DEV, TreeId::FS];
        let levels = |id: &TreeId| roots.get(*id).map_or(0, |r| u64::from(r.root.level) + 2);
        every.iter().chain(&rare).map(levels).sum()
    }

    /// Starts a commit when the delta has used up its memory; waits when it is far over.
    fn hold_back(&self) -> Result<()> {
        let bytes = self.layers.load().current.bytes();
        if bytes > self.options.delta_bytes {
            self.committer.wake();
            if bytes > self.options.delta_bytes * 2 || !self.options.background {
                self.stats.throttled.add(1);
                self.commit_what_lands()?;
            }
        }
        let dirty = self.dirty_bytes.load(Ordering::Relaxed);
        if dirty > self.options.dirty_bytes {
            self.committer.wake();
            if dirty > self.options.dirty_bytes * 3 / 2 || !self.options.background {
                self.stats.throttled.add(1);
                // What is not written is the business of those who wrote it.
                let _landed = self.flush_some()?;
            }
        }
        Ok(())
    }
}

/// What a delta changes.
fn load_of(delta: &Delta) -> Load {
    Load { places: delta.items.spread(), bytes: delta.bytes(), extents: delta.extents.count() }
}
