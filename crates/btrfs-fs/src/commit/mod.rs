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
mod ease;
mod merge;
mod short;
mod sums;
mod turns;

pub use driver::Background;
pub use ease::{Ease, Pace};

use crate::data::flush::Landed;
use crate::delta::Delta;
use crate::engine::{Engine, PoisonUnlessDone};
use crate::error::IntoFs;
use crate::log::LogState;
use crate::refusals::refused;
use crate::reserve::Promise;
use crate::roots::Roots;
use crate::view::Snapshot;
use btrfs_disk::{Generation, Superblock};
use btrfs_space::{Extent, Kind};
use parking_lot::{Condvar, Mutex};
use short::{Attempt, Failed, Short};
use std::sync::Arc;
use std::time::{Duration, Instant};
use turns::{Turns, Wanted};
use vfs::{Errno, FsError, Result};

#[derive(Default)]
pub struct Committer {
    turns: Turns,
    /// Somebody wants the background driver to commit now, or to stop.
    signal: Mutex<Signal>,
    changed: Condvar,
    short: Short,
}

#[derive(Clone, Copy, Default)]
struct Signal {
    wanted: Option<Wanted>,
    stop: bool,
}

impl Committer {
    /// Returns when no commit runs that ran before the call.
    pub fn wait_for_running(&self) {
        self.turns.wait_for_running();
    }

    /// Somebody waits for the running commit, or for the next.
    fn is_awaited(&self) -> bool {
        self.turns.is_awaited() || self.signal.lock().stop
    }

    /// Asks the background driver for a commit soon.
    pub fn wake(&self) {
        self.ask(Wanted::Everything);
    }

    /// As `wake`, for new chunks alone: content may stay in memory.
    pub fn wake_for_chunks(&self) {
        self.ask(Wanted::Landed);
    }

    fn ask(&self, what: Wanted) {
        let mut signal = self.signal.lock();
        if signal.wanted < Some(what) {
            signal.wanted = Some(what);
            self.changed.notify_one();
        }
    }

    fn stop(&self) {
        self.signal.lock().stop = true;
        self.changed.notify_one();
    }

    /// Waits to be woken, until `until` at most; `None` when it is time to stop.
    fn wait(&self, until: Instant) -> Option<Wanted> {
        let mut signal = self.signal.lock();
        if signal.wanted.is_none() && !signal.stop {
            self.changed.wait_until(&mut signal, until);
        }
        let wanted = signal.wanted.take().unwrap_or(Wanted::Everything);
        (!signal.stop).then_some(wanted)
    }
}

impl Engine {
    /// Everything done before the call is durable when it returns. ENOSPC: but for content
    /// that found no room; EIO while the volume can be written: but for content that the device
    /// refused. It stays in memory.
    pub fn commit(&self) -> Result<()> {
        self.commit_at(Pace::Fast)
    }

    fn commit_at(&self, pace: Pace) -> Result<()> {
        match self.commit_once(Wanted::Everything, pace)? {
            Landed::All => Ok(()),
            Landed::NoRoom => Err(Errno::ENOSPC.into()),
            Landed::Refused => Err(refused("content was not written".into())),
        }
    }

    /// As `commit`, for who wants room: content that did not land is not his.
    pub fn commit_what_lands(&self) -> Result<()> {
        self.commit_once(Wanted::Everything, Pace::Fast).map(|_| ())
    }

    /// As `commit`, for who has written his own content back: what others have in memory
    /// stays there, and nobody waits for it.
    pub fn commit_landed(&self) -> Result<()> {
        self.commit_landed_at(Pace::Fast)
    }

    fn commit_landed_at(&self, pace: Pace) -> Result<()> {
        self.commit_once(Wanted::Landed, pace).map(|_| ())
    }

    fn commit_once(&self, wanted: Wanted, pace: Pace) -> Result<Landed> {
        if self.read_only.is_some() || self.is_still() {
            return Ok(Landed::All);
        }
        let turn = self.committer.turns.take(wanted);
        if let Some(why) = self.poisoned.get() {
            return Err(FsError::ReadOnly(why.clone()));
        }
        if turn.is_served() {
            return Ok(Landed::All);
        }
        let unwound = PoisonUnlessDone(self, "a commit panicked");
        let number = turn.begin();
        let result = match wanted {
            Wanted::Everything => self.commit_until_landed(pace),
            Wanted::Landed => {
                self.commit_trees(Instant::now(), Duration::ZERO, pace).map(|()| Landed::All)
            }
        };
        // Before the next in line finds nothing to do, and calls it durable.
        match &result {
            Ok(landed) => turn.ended(number, *landed == Landed::All),
            Err(Failed::Short) => {}
            Err(Failed::For(error)) => self.poison(&format!("a commit failed: {error}")),
        }
        std::mem::forget(unwound);
        drop(turn);
        let landed = result?;
        if landed == Landed::All {
            crate::orphan::retry(self);
        }
        Ok(landed)
    }

    /// Content lands in steps where it must; each commit frees what the next step needs.
    fn commit_until_landed(&self, pace: Pace) -> Attempt<Landed> {
        let landed = || self.stats.data_written_bytes.get() + self.stats.inline_extents.get();
        let mut idle = 0;
        while idle < 2 {
            let before = landed();
            match self.commit_now(pace)? {
                Landed::NoRoom => {}
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
        Ok(Landed::NoRoom)
    }

    fn commit_now(&self, pace: Pace) -> Attempt<Landed> {
        let start = Instant::now();
        // What does not land stays in memory; what has landed is committed all the same.
        let landed = self.flush_all(pace)?;
        self.commit_trees(start, start.elapsed(), pace)?;
        Ok(landed)
    }

    /// Commits what is in the delta; content landed from `start` on for `flushed`.
    fn commit_trees(&self, start: Instant, flushed: Duration, pace: Pace) -> Attempt<()> {
        let sealed = self.commit_epoch(pace)?;
        // Behind the superblock, as what the commit freed.
        self.tell_untold().fs()?;
        let Some(seal) = sealed else { return Ok(()) };
        self.inodes.evict_idle();
        self.stats.commits.add(1);
        let total = start.elapsed();
        self.stats.commit_ns.add(total.as_nanos() as u64);
        self.stats.commit_max_ns.max(total.as_nanos() as u64);
        self.stats.commit_flush_data_ns.add(flushed.as_nanos() as u64);
        self.stats.commit_seal_ns.add(seal.as_nanos() as u64);
        self.stats.commit_seal_max_ns.max(seal.as_nanos() as u64);
        self.measure_trees()?;
        self.hold_for_unwritten();
        Ok(())
    }

    /// Seals, merges, writes and publishes an epoch; answers how long sealing took, or
    /// `None` if there was nothing to commit. The log is held at the two ends only: in
    /// between, fsyncs go on top of the commit before.
    fn commit_epoch(&self, pace: Pace) -> Attempt<Option<Duration>> {
        let (sealed, promise, seal) = {
            let mut log = self.log.lock();
            let idle = self.layers.load().current.is_empty()
                && !self.space.has_unrecorded()
                && self.new_label.lock().is_none()
                && !self.committer.short.is_owing();
            if idle && log.root.is_none() {
                return Ok(None);
            }
            if !self.layers.load().current.is_empty() {
                self.space.make_ahead();
            }
            let start = Instant::now();
            let (sealed, promise) = self.seal(&log);
            log.save_for_commit(self, self.roots().generation, sealed.bytes());
            (sealed, promise, start.elapsed())
        };
        let merged = merge::run(self, &sealed, promise, pace);
        let mut log = self.log.lock();
        let merged = self.unless_short(merged, &mut log)?;
        drop(sealed);
        let held = Instant::now();
        let ended = self.end_epoch(merged, &mut log);
        if let Err(Failed::For(error)) = &ended {
            // Before anybody writes a log: memory is ahead of the volume.
            self.poison(&format!("a commit failed: {error}"));
        }
        drop(log);
        self.stats.commit_end_max_ns.max(held.elapsed().as_nanos() as u64);
        let mut ease = Ease::new(self, pace);
        let published = self.committer.short.over(ended?);
        published.into_iter().for_each(|published| published.retire(self, &mut ease));
        Ok(Some(seal))
    }

    /// Publishes, takes what was synced meanwhile along, and writes the superblock. Answers
    /// what is published by that: two commits, if no log could take it along.
    fn end_epoch(&self, merged: merge::Merged, log: &mut LogState) -> Attempt<Vec<Published>> {
        // What stands half done since the seal would be carried along.
        self.writable()?;
        let (first, mut superblock) = self.publish(merged);
        let mut published = vec![first];
        let mut next = LogState::default();
        let synced = std::mem::take(&mut log.synced);
        let beside = !synced.is_empty();
        if let Err(fallback) = self.carry(synced, &mut next).fs()? {
            // On the volume there is the commit before, with its log, until the next commit
            // has everything.
            tracing::debug!(reason = fallback.name(), "two commits become one");
            self.stats.commits_doubled.add(1);
            self.volume.adopt_superblock(superblock);
            let (sealed, promise) = self.seal(log);
            self.writable()?;
            // Every fsync waits for the log, which is held.
            let merged = merge::run(self, &sealed, promise, Pace::Fast);
            let merged = match self.unless_short(merged, log) {
                Err(error) => {
                    self.committer.short.owe(published);
                    return Err(error);
                }
                Ok(merged) => merged,
            };
            drop(sealed);
            let (second, its) = self.publish(merged);
            published.push(second);
            superblock = its;
            // No superblock ever led to it.
            next.replace(self, LogState::default());
        }
        if beside {
            // Not for the carried log alone: the copies of the superblock that lead to the log
            // of what was synced must stand before the first one is written over.
            self.volume.flush().fs()?;
        }
        if let Some(root) = next.root {
            let fields = &mut superblock.fields;
            (fields.log_root, fields.log_root_level) = (root.logical, root.level);
        }
        let label = self.stamp_label(&mut superblock);
        self.volume.commit_superblock(superblock).fs()?;
        self.label_done(label);
        log.replace(self, next);
        Ok(published)
    }

    /// Ends the current epoch: later operations enter the next one at once.
    fn seal(&self, log: &LogState) -> (Arc<Delta>, Promise) {
        let kept = self.hold_for_commit();
        let layers = self.layers.load_full();
        assert!(layers.sealed.is_none(), "one commit at a time");
        let sealed = layers.current.clone();
        let next = Delta::new(Generation(sealed.generation.0 + 1));
        if !log.members.is_empty() {
            next.items.watch_names();
        }
        self.layers.store(Arc::new(Snapshot {
            current: Arc::new(next),
            sealed: Some(sealed.clone()),
            roots: layers.roots.clone(),
        }));
        drop(layers);
        sealed.gate.seal();
        let promise = self.take_metadata(&sealed, kept);
        (sealed, promise)
    }

    /// The new roots take the sealed delta's place.
    fn publish(&self, merged: merge::Merged) -> (Published, Superblock) {
        let layers = self.layers.load_full();
        let roots = Arc::new(Roots::new(merged.generation, merged.trees));
        self.layers.store(Arc::new(Snapshot {
            current: layers.current.clone(),
            sealed: None,
            roots: roots.clone(),
        }));
        (Published { before: layers, freed: merged.freed, roots }, merged.superblock)
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
    fn retire(self, engine: &Engine, ease: &mut Ease<'_>) {
        let discard = engine.options.discard;
        self.before.roots.retire(engine.space.clone(), self.freed, discard, self.roots);
        // Unless a reader has it still, and frees it when he is done.
        let sealed = Arc::into_inner(self.before).and_then(|layers| layers.sealed);
        if let Some(delta) = sealed.and_then(Arc::into_inner) {
            delta.free(|| ease.pause());
        }
    }
}
