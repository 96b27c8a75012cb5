//! The commit: seal the epoch, merge its delta into the trees, make it durable, publish.
//!
//! Invariants:
//! * one commit at a time; a caller returns when a commit that began after its call is
//!   durable, so any number of callers share one;
//! * order on the device: data (it landed before the delta named it), nodes, flush, the log
//!   of what was synced meanwhile, flush, superblocks, flush. A crash anywhere leaves the last durable superblock's trees
//!   whole, since nothing that they refer to is used again before the next one is durable;
//! * a commit that finds no room poisons nothing: its epoch joins the next one ([`short`]). Any
//!   other failure after sealing poisons the volume: memory has moved on.

mod driver;
mod no_room;
mod retired;

pub(crate) use driver::Background;

use crate::device_stats::DeviceStats;
use crate::error::IntoFs;
use crate::inode::Inodes;
use crate::label::PendingLabel;
use crate::log::{LogState, TreeLog};
use crate::reserve::{CommitReservation, Reservations};
use crate::stats::Stats;
use crate::subvol::Subvols;
use crate::writeback::{Flushed, Writeback};
use crate::writeback_errors::refused;
use btrfs_disk::{Generation, Superblock};
use btrfs_space::{Extent, Kind};
use btrfs_txn::commit::{Merged, merge};
use btrfs_txn::delta::{Delta, Move};
use btrfs_txn::{Core, PoisonUnlessDone, Roots, Snapshot, Throttle, Turns, Urgency, Wanted};
use no_room::{Attempt, Failed, Owed};
use retired::Retired;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use vfs::{Errno, FsError, Result};

/// How long the readers of old roots are waited for.
/// Chosen, not measured.
const READERS: Duration = Duration::from_secs(1);

pub(crate) struct Committer {
    core: Arc<Core>,
    reservations: Arc<Reservations>,
    writeback: Arc<Writeback>,
    inodes: Arc<Inodes>,
    subvols: Arc<Subvols>,
    log: Arc<TreeLog>,
    label: Arc<PendingLabel>,
    device_stats: Arc<DeviceStats>,
    stats: Arc<Stats>,
    turns: Turns,
    owed: Owed,
    retired: Retired,
    /// Nothing is committed but by `commit_held`.
    held: AtomicBool,
    /// Readers of old roots have been waited for, and have them still.
    in_vain: AtomicBool,
    /// What can be done once everything is durable, with no lock held.
    afterwards: OnceLock<Box<dyn Fn(Flushed) + Send + Sync>>,
}

impl Committer {
    pub(crate) fn new(
        core: Arc<Core>,
        reservations: Arc<Reservations>,
        writeback: Arc<Writeback>,
        inodes: Arc<Inodes>,
        subvols: Arc<Subvols>,
        log: Arc<TreeLog>,
        label: Arc<PendingLabel>,
        device_stats: Arc<DeviceStats>,
        stats: Arc<Stats>,
    ) -> Committer {
        let (turns, owed, retired, held, in_vain, afterwards) = Default::default();
        Committer {
            core,
            reservations,
            writeback,
            inodes,
            subvols,
            log,
            label,
            device_stats,
            stats,
            turns,
            owed,
            retired,
            held,
            in_vain,
            afterwards,
        }
    }

    /// `work` is called behind each commit, and told what of the content landed.
    pub(crate) fn call_afterwards(&self, work: impl Fn(Flushed) + Send + Sync + 'static) {
        let _ = self.afterwards.set(Box::new(work));
    }

    /// Returns when no commit runs that ran before the call.
    pub(crate) fn wait_for_running(&self) {
        let _waiting = self.core.requests.begin_waiting();
        self.turns.wait_for_running();
    }

    /// What was freed comes back when nobody reads older roots any more.
    pub(crate) fn wait_for_readers(&self, kind: Kind) {
        self.wait_for_readers_unless(kind, || false);
    }

    fn wait_for_readers_unless(&self, kind: Kind, is_enough: impl Fn() -> bool) {
        let until = Instant::now() + READERS;
        while !is_enough() && self.core.space.pinned(kind) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What is kept for commits may be what the one before has freed: that is waited for, once for who reads for
    /// long.
    fn wait_for_kept_room(&self) {
        if self.reservations.commit_has_room() {
            return self.in_vain.store(false, Ordering::Relaxed);
        }
        if self.is_idle() || self.in_vain.load(Ordering::Relaxed) {
            return;
        }
        self.stats.commits_after_readers.add(1);
        self.wait_for_readers_unless(Kind::Metadata, || self.reservations.commit_has_room());
        // Where nobody reads, nobody was waited for.
        let in_vain = self.core.space.pinned(Kind::Metadata) > 0;
        self.in_vain.store(in_vain && !self.reservations.commit_has_room(), Ordering::Relaxed);
    }

    /// When this returns no commit runs and no log is written, and none before `commit_held`:
    /// whoever asks for that hears EBUSY.
    pub(crate) fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
        // Who has its turn has looked at it since; who has the log as well.
        self.wait_for_running();
        drop(self.log.lock());
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// Everything since `hold` becomes durable, at once; ends holding. After an error nothing of
    /// it is, and commits are held still.
    pub(crate) fn commit_held(&self) -> Result<()> {
        // All of it, or the first of several commits would have a part.
        match self.writeback.flush_all(Urgency::Awaited)? {
            Flushed::All => {}
            Flushed::NoRoom => return Err(Errno::ENOSPC.into()),
            Flushed::Refused => return Err(refused("content was not written".into())),
        }
        self.commit_once(Wanted::WrittenBack, Urgency::Awaited, true)?;
        self.held.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Everything done before the call is durable when it returns. ENOSPC: but for content
    /// that found no room; EIO while the volume can be written: but for content that the device
    /// refused. It stays in memory.
    pub(crate) fn commit(&self) -> Result<()> {
        self.commit_at(Urgency::Awaited)
    }

    pub(crate) fn commit_at(&self, urgency: Urgency) -> Result<()> {
        self.device_stats.write();
        match self.commit_once(Wanted::Everything, urgency, false)? {
            Flushed::All => Ok(()),
            Flushed::NoRoom => Err(Errno::ENOSPC.into()),
            Flushed::Refused => Err(refused("content was not written".into())),
        }
    }

    /// As `commit`, for who wants room: content that did not land is not his.
    pub(crate) fn commit_what_lands(&self) -> Result<()> {
        self.commit_once(Wanted::Everything, Urgency::Awaited, false).map(|_| ())
    }

    /// As `commit`, for who has written his own content back: what others have in memory
    /// stays there, and nobody waits for it, unless this commit is the last that it has room in.
    pub(crate) fn commit_written_back(&self) -> Result<()> {
        self.commit_written_back_at(Urgency::Awaited)
    }

    pub(crate) fn commit_written_back_at(&self, urgency: Urgency) -> Result<()> {
        self.commit_once(Wanted::WrittenBack, urgency, false).map(|_| ())
    }

    /// As `commit_written_back`, with the move that `prepare` puts into the epoch: it runs while nobody
    /// holds an address of content, and no delta names one, until its commit is published. What it
    /// makes no use of nobody makes: a later commit may find other content there.
    pub(crate) fn commit_still(
        &self,
        prepare: impl FnOnce() -> Result<Arc<Move>>,
    ) -> Result<Arc<Move>> {
        let mut made = None;
        let work = |urgency| {
            // In its turn: what this has in hand another commit would not find.
            self.land_what_would_outgrow(urgency)?;
            self.wait_for_kept_room();
            let _still = self.core.addresses.change();
            if !self.core.layers().current.extents.is_empty() {
                self.commit_trees(Instant::now(), Duration::ZERO, urgency)?;
            }
            let prepared = made.insert(prepare());
            // Also where there is nothing to move: who waits is served by this turn.
            let committed = self.commit_trees(Instant::now(), Duration::ZERO, urgency);
            if let Ok(order) = prepared {
                order.withdraw();
            }
            committed.map(|()| Flushed::All)
        };
        self.in_turn(Wanted::WrittenBack, (Urgency::Awaited, false, true), work)?;
        made.unwrap_or_else(|| Err(Errno::EROFS.into()))
    }

    /// `held`: of what is held back; others do not begin meanwhile.
    fn commit_once(&self, wanted: Wanted, urgency: Urgency, held: bool) -> Result<Flushed> {
        self.in_turn(wanted, (urgency, held, false), |urgency| match wanted {
            Wanted::Everything => self.commit_until_flushed(urgency),
            Wanted::WrittenBack => {
                self.land_what_would_outgrow(urgency)?;
                self.wait_for_kept_room();
                self.commit_trees(Instant::now(), Duration::ZERO, urgency).map(|()| Flushed::All)
            }
        })
    }

    /// Before a commit that leaves content in memory: what would not have room any more once that
    /// commit has made the trees larger lands with it.
    fn land_what_would_outgrow(&self, urgency: Urgency) -> Result<()> {
        if self.reservations.content_would_outgrow() {
            // What finds no room, or is refused, stays in memory as with any commit.
            let _landed = self.writeback.flush_all(urgency)?;
        }
        Ok(())
    }

    /// Gives back what was kept for who read it, where nobody does any more, without a commit.
    fn free_retired(&self) {
        let mut throttle = Throttle::new(&self.core, Urgency::Background);
        self.retired.free(&self.core.memory, None, || throttle.pause());
    }

    /// What is kept for who reads it is his, once there are no commits any more.
    pub(crate) fn let_go(&self) {
        self.retired.let_go(&self.core.memory);
    }

    /// Waits for its turn to commit; unless it has `own` work, another's commit may have served it.
    fn in_turn(
        &self,
        wanted: Wanted,
        (urgency, held, own): (Urgency, bool, bool),
        work: impl FnOnce(Urgency) -> Attempt<Flushed>,
    ) -> Result<Flushed> {
        if let Some(answer) = self.without_writing() {
            return answer;
        }
        let turn = {
            let _waiting = self.core.requests.begin_waiting();
            self.turns.take(wanted)
        };
        if let Some(why) = self.core.health.poisoned() {
            return Err(FsError::ReadOnly(why.to_owned()));
        }
        // Since it began to wait.
        if let Some(answer) = self.without_writing() {
            return answer;
        }
        if self.is_held() != held {
            return Err(Errno::EBUSY.into());
        }
        if !own && turn.is_served() {
            return Ok(Flushed::All);
        }
        let unwound = PoisonUnlessDone(&self.core.health, "a commit panicked");
        let number = turn.begin();
        let result = work(urgency);
        if result.is_ok() {
            self.core.injection.committed();
        }
        // Before the next in line finds nothing to do, and calls it durable.
        match &result {
            Ok(landed) => turn.ended(number, *landed == Flushed::All),
            Err(Failed::Short) => {}
            Err(Failed::For(error)) => {
                self.core.health.poison(&format!("a commit failed: {error}"))
            }
        }
        std::mem::forget(unwound);
        if wanted == Wanted::Everything && result.is_ok() {
            // Before the next commit begins, or promises would count for one less.
            self.reservations.limits.all_landed();
        }
        drop(turn);
        if let Ok(landed) = &result {
            self.behind(*landed, urgency);
        }
        result.map_err(FsError::from)
    }

    /// What is done once everything is durable. Nobody waits for this commit any more but who made it.
    fn behind(&self, landed: Flushed, urgency: Urgency) {
        if let Some(afterwards) = self.afterwards.get() {
            afterwards(landed);
        }
        let mut throttle = Throttle::new(&self.core, urgency);
        self.retired.wait(&self.core.memory, || throttle.pause());
    }

    /// Where nothing is written: all is durable, or what came too late for that is not, and will not be.
    fn without_writing(&self) -> Option<Result<Flushed>> {
        if self.core.health.is_read_only() {
            return Some(Ok(Flushed::All));
        }
        let none_is_left = || self.core.layers().current.is_empty() && !self.label.is_set();
        self.core.health.is_still().then(|| match none_is_left() {
            true => Ok(Flushed::All),
            false => Err(FsError::ReadOnly("remounted read-only".into())),
        })
    }

    /// Content lands in steps where it must; each commit frees what the next step needs.
    fn commit_until_flushed(&self, urgency: Urgency) -> Attempt<Flushed> {
        let landed = || self.stats.data_written_bytes.get() + self.stats.inline_extents.get();
        let mut idle = 0;
        while idle < 2 {
            let before = landed();
            match self.commit_now(urgency)? {
                Flushed::NoRoom => {}
                // Of what was refused the next commit makes another try.
                ended => return Ok(ended),
            }
            if landed() == before {
                idle += 1;
                self.wait_for_readers(Kind::Metadata);
            } else {
                idle = 0;
            }
        }
        Ok(Flushed::NoRoom)
    }

    fn commit_now(&self, urgency: Urgency) -> Attempt<Flushed> {
        let start = Instant::now();
        // What does not land stays in memory; what has landed is committed all the same. What was written
        // meanwhile stays, too, unless it would have no room behind this commit.
        let landed = match self.writeback.flush_all(urgency)? {
            Flushed::All if self.reservations.content_would_outgrow() => {
                self.writeback.flush_all(urgency)?
            }
            landed => landed,
        };
        let flushed = start.elapsed();
        self.wait_for_kept_room();
        self.commit_trees(start, flushed, urgency)?;
        Ok(landed)
    }

    /// Commits what is in the delta; content landed from `start` on for `flushed`.
    fn commit_trees(&self, start: Instant, flushed: Duration, urgency: Urgency) -> Attempt<()> {
        let sealed = self.commit_epoch(urgency)?;
        // Behind the superblock, as what the commit freed.
        self.core.discards.issue(&self.core.space).fs()?;
        let Some(seal) = sealed else {
            self.retired.free(&self.core.memory, None, || ());
            return Ok(());
        };
        self.inodes.settle();
        self.stats.commits.add(1);
        let total = start.elapsed();
        self.stats.commit_ns.add(total.as_nanos() as u64);
        self.stats.commit_max_ns.max(total.as_nanos() as u64);
        self.stats.commit_flush_data_ns.add(flushed.as_nanos() as u64);
        self.stats.commit_seal_ns.add(seal.as_nanos() as u64);
        self.stats.commit_seal_max_ns.max(seal.as_nanos() as u64);
        self.reservations.measure_trees()?;
        self.reservations.hold_for_unwritten();
        Ok(())
    }

    /// Seals, merges, writes and publishes an epoch; answers how long sealing took, or
    /// `None` if there was nothing to commit. The log is held at the two ends only: in
    /// between, fsyncs go on top of the commit before.
    fn commit_epoch(&self, urgency: Urgency) -> Attempt<Option<Duration>> {
        let (sealed, reserved, seal) = {
            let mut log = self.log.lock();
            if self.is_idle() && log.root.is_none() {
                return Ok(None);
            }
            if !self.core.layers().current.is_empty() {
                self.core.space.make_ahead();
            }
            let start = Instant::now();
            let (sealed, reserved) = self.seal(&log);
            log.save_for_commit(&self.core, self.core.roots().generation, sealed.bytes());
            (sealed, reserved, start.elapsed())
        };
        let work = self.core.pacing.begins(sealed.bytes());
        let merged = self.merge(&sealed, reserved, urgency);
        let mut log = self.log.lock();
        let merged = self.unless_short(merged, &mut log)?;
        drop(sealed);
        let held = Instant::now();
        let ended = self.end_epoch(merged, &mut log);
        match &ended {
            // Before anybody writes a log: memory is ahead of the volume.
            Err(Failed::For(error)) => {
                self.core.health.poison(&format!("a commit failed: {error}"))
            }
            Ok(published) if published.len() == 1 => work.ends(),
            Ok(_) | Err(Failed::Short) => {}
        }
        drop(log);
        self.stats.commit_end_max_ns.max(held.elapsed().as_nanos() as u64);
        let mut throttle = Throttle::new(&self.core, urgency);
        let published = self.owed.settle(ended?);
        self.reservations.set_short(false);
        for published in published {
            let sealed = published.retire(&self.core);
            self.retired.free(&self.core.memory, sealed, || throttle.pause());
        }
        Ok(Some(seal))
    }

    /// There is nothing to commit, but for a log perhaps.
    fn is_idle(&self) -> bool {
        self.core.layers().current.is_empty()
            && !self.core.space.has_unrecorded()
            && !self.label.is_set()
            && !self.owed.is_any()
            && !self.reservations.limits.rescans()
    }

    /// Publishes, takes what was synced meanwhile along, and writes the superblock. Answers
    /// what is published by that: two commits, if no log could take it along.
    fn end_epoch(&self, merged: Merged, log: &mut LogState) -> Attempt<Vec<Published>> {
        // What stands half done since the seal would be carried along.
        self.core.health.writable().fs()?;
        let (first, mut superblock) = self.publish(merged);
        let mut published = vec![first];
        let mut next = LogState::default();
        let synced = std::mem::take(&mut log.synced);
        let beside = !synced.is_empty();
        if let Err(why) = self.log.carry(synced, &mut next) {
            let fallback = why.fallback().fs()?;
            // On the volume there is the commit before, with its log, until the next commit
            // has everything.
            tracing::debug!(reason = fallback.name(), "two commits become one");
            // What was built of it: no superblock ever led there.
            next.replace(&self.core, LogState::default());
            self.stats.commits_doubled.add(1);
            self.core.volume.adopt_superblock(superblock);
            // The second one rewrites what the first one made.
            self.reservations.measure_trees()?;
            let (sealed, reserved) = self.seal(log);
            self.core.health.writable().fs()?;
            // Every fsync waits for the log, which is held.
            let merged = self.merge(&sealed, reserved, Urgency::Awaited);
            let merged = match self.unless_short(merged, log) {
                Err(error) => {
                    self.owed.add(published);
                    return Err(error);
                }
                Ok(merged) => merged,
            };
            drop(sealed);
            let (second, its) = self.publish(merged);
            published.push(second);
            superblock = its;
        }
        if beside {
            // Not for the carried log alone: the copies of the superblock that lead to the log
            // of what was synced must stand before the first one is written over.
            self.core.volume.flush().fs()?;
        }
        if let Some(root) = next.root {
            let fields = &mut superblock.fields;
            (fields.log_root, fields.log_root_level) = (root.logical, root.level);
        }
        let label = self.label.stamp(&mut superblock);
        self.core.volume.commit_superblock(superblock).fs()?;
        self.core.is_durable();
        self.label.done(label);
        log.replace(&self.core, next);
        Ok(published)
    }

    /// The sealed epoch as trees, held against what was reserved for it.
    fn merge(
        &self,
        sealed: &Delta,
        reserved: CommitReservation,
        urgency: Urgency,
    ) -> btrfs_disk::Result<Merged> {
        let bound = reserved.bound();
        // Less than it was promised, mostly by far.
        let built = |bytes| self.reservations.trees_grow(bytes);
        let merged = merge(&self.core, sealed, reserved.reservation, urgency, built)?;
        if !bound.holds(merged.taken) {
            self.stats.commits_over_promise.add(1);
        }
        Ok(merged)
    }

    /// Ends the current epoch: later operations enter the next one at once.
    fn seal(&self, log: &LogState) -> (Arc<Delta>, CommitReservation) {
        let kept = self.reservations.hold_for_commit();
        let layers = self.core.layers();
        assert!(layers.sealed.is_none(), "one commit at a time");
        let sealed = layers.current.clone();
        let next = Delta::new(Generation(sealed.generation.0 + 1));
        if !log.members.is_empty() {
            next.items.watch_names();
        }
        self.reservations.before_seal();
        self.core.replace_layers(Snapshot {
            current: Arc::new(next),
            sealed: Some(sealed.clone()),
            roots: layers.roots.clone(),
        });
        drop(layers);
        sealed.gate.seal();
        self.inodes.orphans().hand_over(&sealed, &self.core.view());
        debug_assert_eq!(sealed.items.owed(), 0, "what is owed is paid");
        let reserved = self.reservations.take_metadata(&sealed, kept);
        if !reserved.is_kept() {
            self.stats.commits_unkept.add(1);
        }
        (sealed, reserved)
    }

    /// The new roots take the sealed delta's place.
    fn publish(&self, merged: Merged) -> (Published, Superblock) {
        let roots = Arc::new(Roots::new(merged.generation, merged.trees));
        let before = self.core.publish(roots.clone());
        // Behind it: who finds a new snapshot here finds its tree there.
        self.subvols.follow(&roots, merged.touched);
        (Published { before, freed: merged.freed, roots }, merged.superblock)
    }
}

/// What nobody but a reader of the roots before needs any more, once it is durable. To free a
/// large delta takes as long as half of its merge: not to be dropped with a lock held.
struct Published {
    before: Arc<Snapshot>,
    freed: Vec<Extent>,
    roots: Arc<Roots>,
}

impl Published {
    /// Answers the delta that the commit merged: readers may have it still.
    fn retire(self, core: &Core) -> Option<Arc<Delta>> {
        let discard = core.discards.are_wanted();
        // Memory for the next ones. Who reads by older roots reads them again, from where they still are.
        let node = u64::from(core.geometry.node_size);
        let nodes = self.freed.iter().filter(|extent| extent.len == node);
        nodes.for_each(|extent| core.store.forget(extent.logical));
        self.before.roots.retire(core.space.clone(), self.freed, discard, self.roots);
        self.before.sealed.clone()
    }
}
