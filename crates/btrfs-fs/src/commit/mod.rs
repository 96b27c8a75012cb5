//! The commit: seal the epoch, merge its delta into the trees, make it durable, publish.
//!
//! Invariants:
//! * one commit at a time; a caller returns when a commit that began after its call is
//!   durable, so any number of callers share one;
//! * order on the device: data (it landed before the delta named it), nodes, flush,
//!   superblocks, flush. A crash anywhere leaves the last durable superblock's trees
//!   whole, since nothing that they refer to is used again before the next one is durable;
//! * a failure after sealing poisons the volume: memory has moved on.

mod driver;
mod merge;
mod sums;

pub use driver::Background;

use crate::delta::Delta;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::roots::Roots;
use crate::view::Snapshot;
use btrfs_disk::Generation;
use btrfs_space::Kind;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vfs::{Errno, FsError, Result};

#[derive(Default)]
pub struct Committer {
    /// Held by the running commit.
    running: Mutex<()>,
    /// Commits begun and commits ended, ever.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Somebody wants the background driver to commit now, or to stop.
    signal: Mutex<Signal>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Signal {
    wanted: bool,
    stop: bool,
}

impl Committer {
    /// Asks the background driver for a commit soon.
    pub fn wake(&self) {
        let mut signal = self.signal.lock();
        if !signal.wanted {
            signal.wanted = true;
            self.changed.notify_one();
        }
    }

    fn stop(&self) {
        self.signal.lock().stop = true;
        self.changed.notify_one();
    }

    /// Waits to be woken, for at most `limit`; false when it is time to stop.
    fn wait(&self, limit: Duration) -> bool {
        let mut signal = self.signal.lock();
        if !signal.wanted && !signal.stop {
            self.changed.wait_for(&mut signal, limit);
        }
        signal.wanted = false;
        !signal.stop
    }
}

/// What of the unwritten content found room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Landed {
    All,
    Some,
}

impl Engine {
    /// Everything done before the call is durable when it returns. ENOSPC: but for content
    /// that found no room; it stays in memory.
    pub fn commit(&self) -> Result<()> {
        if self.read_only.is_some() {
            return Ok(());
        }
        let wanted = self.committer.begun.load(Ordering::SeqCst) + 1;
        let running = self.committer.running.lock();
        if let Some(why) = self.poisoned.get() {
            return Err(FsError::ReadOnly(why.clone()));
        }
        if self.committer.ended.load(Ordering::SeqCst) >= wanted {
            return Ok(());
        }
        let number = self.committer.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let result = self.commit_until_landed();
        drop(running);
        match result {
            Ok(Landed::All) => {
                self.committer.ended.fetch_max(number, Ordering::SeqCst);
                crate::orphan::retry(self);
                Ok(())
            }
            Ok(Landed::Some) => Err(Errno::ENOSPC.into()),
            Err(error) => {
                self.poison(&format!("a commit failed: {error}"));
                Err(error)
            }
        }
    }

    /// Content lands in steps where it must; each commit frees what the next step needs.
    fn commit_until_landed(&self) -> Result<Landed> {
        let landed = || self.stats.data_written_bytes.get() + self.stats.inline_extents.get();
        let mut idle = 0;
        while idle < 2 {
            let before = landed();
            if self.commit_now()? == Landed::All {
                return Ok(Landed::All);
            }
            if landed() == before {
                idle += 1;
                self.wait_for_readers(Kind::Metadata);
            } else {
                idle = 0;
            }
        }
        Ok(Landed::Some)
    }

    fn commit_now(&self) -> Result<Landed> {
        let start = Instant::now();
        let landed = match self.flush_all() {
            Ok(()) => Landed::All,
            // What finds no room stays in memory; what has landed is committed all the same.
            Err(e) if e.errno() == libc::ENOSPC => Landed::Some,
            Err(error) => return Err(error),
        };
        let flushed = start.elapsed();
        // From the seal until all is durable nobody writes a log.
        let mut log = self.log.lock();
        let idle = self.layers.load().current.is_empty() && !self.space.has_unrecorded();
        if idle && log.root.is_none() {
            return Ok(landed);
        }
        self.hold_for_commit();
        let sealing = Instant::now();
        let sealed = self.seal();
        let seal = sealing.elapsed();
        let reservation = self.take_metadata(&sealed);
        let merged = merge::run(self, &sealed, reservation).fs()?;
        self.publish(merged);
        log.reset(self);
        drop(log);
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
        Ok(landed)
    }

    /// Ends the current epoch: later operations enter the next one at once.
    fn seal(&self) -> Arc<Delta> {
        let layers = self.layers.load_full();
        assert!(layers.sealed.is_none(), "one commit at a time");
        let sealed = layers.current.clone();
        let next = Generation(sealed.generation.0 + 1);
        self.layers.store(Arc::new(Snapshot {
            current: Arc::new(Delta::new(next)),
            sealed: Some(sealed.clone()),
            roots: layers.roots.clone(),
        }));
        drop(layers);
        sealed.gate.seal();
        sealed
    }

    /// The new roots take the sealed delta's place.
    fn publish(&self, merged: merge::Merged) {
        let layers = self.layers.load_full();
        let roots = Arc::new(Roots::new(merged.generation, merged.trees));
        self.layers.store(Arc::new(Snapshot {
            current: layers.current.clone(),
            sealed: None,
            roots: roots.clone(),
        }));
        let discard = self.options.discard;
        layers.roots.retire(self.space.clone(), merged.freed, discard, roots);
    }
}
