//! Any number of threads in fsync share one log write.
//!
//! Whoever finds no leader becomes one: it takes all that is waiting, writes the log, and
//! wakes those whose requests were in it. Who comes meanwhile waits for the next leader.
//!
//! Lock order: the queue is held for moments only; the state is held over a log write, and
//! by a commit from its seal until it is durable. A leader never commits with it held.

use super::closure::Closure;
use super::committed::Committed;
use super::freeze::Work;
use super::project::Project;
use super::state::LogState;
use super::{Fallback, write};
use crate::delta::{Delta, Level};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::InodeId;
use btrfs_disk::{Generation, TreeId};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::time::Instant;
use vfs::Result;

/// Inodes that one log write takes at most.
const MOST: usize = 20_000;
/// Rounds after which the names concerned change faster than they can be followed.
const ROUNDS: usize = 64;

/// An inode to be made durable.
#[derive(Clone, Copy)]
pub struct Request {
    pub id: InodeId,
    pub level: Level,
    /// The epoch in which its last change lies, or a later one.
    pub generation: Generation,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Request>,
    /// Number of the first request of `waiting`.
    first: u64,
    /// Requests below this are settled.
    done: u64,
    /// The last requests that were not made durable: [from, to).
    failed: (u64, u64),
    led: bool,
}

#[derive(Default)]
pub struct Group {
    queue: Mutex<Queue>,
    changed: Condvar,
    state: Mutex<LogState>,
}

impl Group {
    /// The log's state, and with it the right to write superblocks.
    pub fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock()
    }
}

impl Engine {
    /// Returns when the inode, as it was when this was called, is durable.
    pub fn log_inode(&self, request: Request) -> Result<()> {
        let mut queue = self.log.queue.lock();
        let number = queue.first + queue.waiting.len() as u64;
        queue.waiting.push(request);
        while queue.done <= number {
            if queue.led {
                self.log.changed.wait(&mut queue);
                continue;
            }
            queue.led = true;
            let batch = std::mem::take(&mut queue.waiting);
            let (from, to) = (queue.first, queue.first + batch.len() as u64);
            queue.first = to;
            drop(queue);
            let result = self.lead(&batch);
            queue = self.log.queue.lock();
            queue.led = false;
            queue.done = to;
            if result.is_err() {
                queue.failed = (from, to);
            }
            self.log.changed.notify_all();
            if (from..to).contains(&number) {
                return result;
            }
        }
        let failed = (queue.failed.0..queue.failed.1).contains(&number);
        drop(queue);
        self.stats.log_joined.add(1);
        // The leader has the error; whether there is a way to say yes a commit knows.
        if failed { self.commit() } else { Ok(()) }
    }

    /// One log write for all of `batch`, or the commit that takes its place.
    fn lead(&self, batch: &[Request]) -> Result<()> {
        self.writable()?;
        let start = Instant::now();
        let written = {
            let mut state = self.log.lock();
            // A commit that failed while we waited for the lock is not to be followed.
            self.writable()?;
            self.write_log(batch, &mut state)
        };
        match written {
            Ok(Ok(())) => {
                self.stats.log_ns.add(start.elapsed().as_nanos() as u64);
                self.stats.log_max_ns.max(start.elapsed().as_nanos() as u64);
                Ok(())
            }
            Ok(Err(fallback)) => {
                self.stats.log_fallbacks.add(1);
                tracing::debug!(reason = fallback.name(), "an fsync commits");
                self.commit()
            }
            Err(error) => {
                self.poison(&format!("a log write failed: {error}"));
                Err(error).fs()
            }
        }
    }

    fn write_log(
        &self,
        batch: &[Request],
        state: &mut LogState,
    ) -> btrfs_disk::Result<std::result::Result<(), Fallback>> {
        let view = self.view();
        let layers = &view.layers;
        assert!(layers.sealed.is_none(), "no log write while a commit has the state");
        let committed = layers.roots.generation;
        let mut work = Work::default();
        for request in batch.iter().filter(|r| r.generation > committed) {
            work.want(request.id, request.level);
        }
        if work.wanted.is_empty() {
            return Ok(Ok(()));
        }
        if self.space.has_unrecorded() {
            return Ok(Err(Fallback::NewChunk));
        }
        let generation = layers.current.generation;
        let committed = Committed { store: &self.store, roots: &layers.roots };
        if let Err(fallback) = self.gather(&layers.current, &committed, &mut work, state)? {
            return Ok(Err(fallback));
        }
        let project = Project { engine: self, view: &view, committed: &committed, generation };
        let edits = project.all(&work, state)?;
        if edits.is_empty() {
            self.stats.log_nothing.add(1);
            return Ok(Ok(()));
        }
        self.stats.log_writes.add(1);
        write::write(self, state, generation, edits)
    }

    /// Writes back the content of inodes that come along with those that were asked for:
    /// nobody should be seen halfway through a write. `landed` have been written back.
    fn land_content(&self, work: &Work, landed: &mut BTreeSet<InodeId>) {
        for id in work.wanted.keys() {
            if landed.insert(*id)
                && let Some(inode) = self.inodes.find(*id, 0)
            {
                // Without room it stays in memory, and the log has what has landed.
                let _ = self.flush_inode(&inode);
            }
        }
    }

    /// Freezes what is wanted and all that belongs to it, at one moment.
    fn gather(
        &self,
        delta: &Delta,
        committed: &Committed<'_>,
        work: &mut Work,
        state: &LogState,
    ) -> btrfs_disk::Result<std::result::Result<(), Fallback>> {
        let max_item = self.geometry.max_item_size();
        let mut landed: BTreeSet<InodeId> = work.wanted.keys().copied().collect();
        for (tree, objectid) in delta.items.take_renamed() {
            want_member(work, state, tree, objectid);
        }
        for _ in 0..ROUNDS {
            self.land_content(work, &mut landed);
            let still = Instant::now();
            delta.gate.seal();
            for (tree, objectid) in delta.items.take_renamed() {
                want_member(work, state, tree, objectid);
            }
            work.freeze(delta, |id, level| state.ask(id, level));
            delta.gate.reopen();
            self.stats.log_still_max_ns.max(still.elapsed().as_nanos() as u64);
            if let Err(fallback) = (Closure { max_item, committed, delta, state, work }).round()? {
                return Ok(Err(fallback));
            }
            let again = work.want_contents(committed, self.sector())?;
            #[cfg(feature = "ablation")]
            let again =
                again | (self.options.ablate.names && super::ablation::names(work, committed)?);
            if !work.is_short() && !again {
                return Ok(Ok(()));
            }
            if work.wanted.len() > MOST {
                return Ok(Err(Fallback::TooMany));
            }
        }
        Ok(Err(Fallback::TooMany))
    }
}

/// Names of something logged changed: the log must say so with whatever it says next.
fn want_member(work: &mut Work, state: &LogState, tree: TreeId, objectid: u64) {
    let id = InodeId::new(tree, objectid);
    if state.members.contains_key(&id) {
        work.want(id, Level::Inode);
    }
}
