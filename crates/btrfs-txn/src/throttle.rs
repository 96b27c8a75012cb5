//! How background work keeps out of the way of those who work meanwhile: a commit that is only
//! due had a processor for a third of a second with some hundred MiB to write back, and its
//! flushes were everyone's. While nobody wants its processor it goes on.
//!
//! Invariants: who is throttled rests with no lock held but its own; it does not rest once
//! somebody waits for a commit, or memory runs short, or who changes something is slowed down for
//! it ([`crate::Pacing`]). What others' flushes have to carry of it is two windows at most, if the device
//! can be told to start writing.

use crate::Core;
use btrfs_disk::Result;
use btrfs_volume::WRITE_WINDOW;
use std::time::{Duration, Instant};

/// Whether anybody is known to wait from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: somebody waits or nobody does.
pub enum Urgency {
    /// It is due, and half of a processor is enough for it.
    Background,
    /// Somebody waits: it makes haste.
    Awaited,
}

/// Content that one lock hold and one operation store at most, in bytes.
/// Chosen, not measured.
pub const BATCH: u64 = 8 << 20;
/// Work between two rests, and the longest rest: who needs the processor waits for the first, and
/// a commit that lost it to others is held back by the second.
/// Both chosen, not measured.
const WORK: Duration = Duration::from_millis(1);
const REST: Duration = Duration::from_millis(4);

/// Offers the processor now and then, and the device something to start with.
pub struct Throttle<'a> {
    core: &'a Core,
    urgency: Urgency,
    since: Instant,
    unwritten: u64,
}

impl Throttle<'_> {
    /// For a piece of work that begins now.
    pub fn new(core: &Core, urgency: Urgency) -> Throttle<'_> {
        Throttle { core, urgency, since: Instant::now(), unwritten: 0 }
    }

    /// Content that one lock hold and one operation store at most, in bytes.
    pub fn batch(&self) -> u64 {
        match self.urgency {
            Urgency::Background => WRITE_WINDOW,
            Urgency::Awaited => BATCH,
        }
    }

    /// `written` bytes more are in the device's cache. No lock is held by the caller.
    pub fn rest(&mut self, written: u64) -> Result<()> {
        self.unwritten += written;
        if self.unwritten >= WRITE_WINDOW {
            self.unwritten = 0;
            // What it is about has landed, and no flush will tell of it again.
            self.core.volume.start_writing().inspect_err(|error| {
                self.core.health.poison(&format!("content may be lost: {error}"));
            })?;
        }
        self.pause();
        Ok(())
    }

    /// If others want the processor, as long as the work since the last time took: who has lost
    /// it to them meanwhile leaves it to them for longer.
    pub fn pause(&mut self) {
        if self.urgency == Urgency::Awaited {
            return;
        }
        let worked = self.since.elapsed();
        if worked < WORK {
            return;
        }
        let core = self.core;
        if core.requests.is_awaited() || core.is_short_of_memory() || core.pacing.is_behind() {
            self.urgency = Urgency::Awaited;
            return;
        }
        if !self.core.contention.give_way() {
            self.since = Instant::now();
            return;
        }
        let begun = Instant::now();
        std::thread::sleep(worked.min(REST));
        let rested = begun.elapsed();
        core.pacing.rested(rested);
        core.stats.commit_rest_ns.add(rested.as_nanos() as u64);
        core.stats.commit_rests.add(1);
        self.since = Instant::now();
    }
}
