//! How a commit keeps out of the way of those who work meanwhile.
//!
//! The server's session is favoured over all others (docs/PERFORMANCE.md), which is right for
//! answers that somebody waits for, and wrong for a commit that is only due: with some hundred
//! MiB to write back it had a processor for a third of a second, and its flushes were everyone's.
//!
//! Invariants: a commit rests with no lock held but its own; it does not rest once somebody
//! waits for it, or memory runs short. What others' flushes have to carry
//! of a commit is two windows at most, if the device can be told to start writing.

use crate::data::BATCH;
use crate::engine::Engine;
use btrfs_disk::Result;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Whether anybody is known to wait for a commit from its start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// It is due, and half of a processor is enough for it.
    Easy,
    Fast,
}

/// Bytes that a commit writes before the device is told to start with them.
const WINDOW: u64 = 4 << 20;
/// Work between two rests, and the longest rest.
const WORK: Duration = Duration::from_millis(1);
const REST: Duration = Duration::from_millis(4);

pub struct Ease<'a> {
    engine: &'a Engine,
    pace: Pace,
    since: Instant,
    unwritten: u64,
}

impl Ease<'_> {
    pub fn new(engine: &Engine, pace: Pace) -> Ease<'_> {
        Ease { engine, pace, since: Instant::now(), unwritten: 0 }
    }

    /// Content that one lock hold and one operation store at most, in bytes.
    pub fn batch(&self) -> u64 {
        match self.pace {
            Pace::Easy => WINDOW,
            Pace::Fast => BATCH,
        }
    }

    /// `written` bytes more are in the device's cache. No lock is held by the caller.
    pub fn rest(&mut self, written: u64) -> Result<()> {
        self.unwritten += written;
        if self.unwritten >= WINDOW {
            self.unwritten = 0;
            // What it is about has landed, and no flush will tell of it again.
            self.engine.volume.start_writing().inspect_err(|error| {
                self.engine.poison(&format!("content may be lost: {error}"));
            })?;
        }
        self.pause();
        Ok(())
    }

    /// As long as the work since the last time took: who has lost his processor to others
    /// meanwhile leaves it to them for longer.
    pub fn pause(&mut self) {
        if self.pace == Pace::Fast {
            return;
        }
        let worked = self.since.elapsed();
        if worked < WORK {
            return;
        }
        if self.engine.committer.is_awaited() || self.engine.is_short_of_memory() {
            self.pace = Pace::Fast;
            return;
        }
        let rest = worked.min(REST);
        std::thread::sleep(rest);
        self.engine.stats.commit_rests.add(1);
        self.since = Instant::now();
    }
}

impl Engine {
    /// Half way from where a commit is asked for to where who changes something must wait.
    fn is_short_of_memory(&self) -> bool {
        let unwritten = self.dirty_bytes.load(Ordering::Relaxed);
        let changes = self.layers.load().current.bytes();
        unwritten > self.options.dirty_bytes / 4 * 5 || changes > self.options.delta_bytes / 2 * 3
    }
}
