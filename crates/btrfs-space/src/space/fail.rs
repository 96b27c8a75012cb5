//! Allocations that fail on request: how tests see what follows.
//!
//! With the feature `fault-injection` alone: a released program has nothing of it. Until a test
//! asks, an allocation pays for it with one look at a flag that nobody changes.

use super::Kind;
use btrfs_disk::{Error, Result};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Numbers count from 0, which is the first after `armed`, all kinds together.
#[derive(Default)]
pub(super) struct Faults {
    armed: AtomicBool,
    count: AtomicU64,
    from: AtomicU64,
    to: AtomicU64,
    no_data: AtomicBool,
    /// What another thread does then, once.
    meanwhile: Mutex<Option<(Moment, Work)>>,
}

type Work = Box<dyn FnOnce(&super::Space) + Send>;

/// Where another thread may come between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: a switch of tests.
pub enum Moment {
    /// A reservation has found no room in the chunks that there are.
    NoRoom,
    /// Somebody looks for an empty chunk to give back.
    Reclaim,
    /// An extent is about to be allocated.
    Allocate,
    /// Somebody asks what is in use of a block group.
    Used,
}

impl Faults {
    pub(super) fn pass(&self, kind: Kind) -> Result<()> {
        if !self.armed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let to = self.to.load(Ordering::Relaxed);
        let fails = number < to && number >= self.from.load(Ordering::Relaxed);
        let fails = fails || kind == Kind::Data && self.no_data.load(Ordering::Relaxed);
        if fails { Err(Error::NoSpace) } else { Ok(()) }
    }

    pub(super) fn come_between(&self, now: Moment, space: &super::Space) {
        let is_now = |meanwhile: &mut (Moment, Work)| meanwhile.0 == now;
        let work = self.meanwhile.lock().expect("unpoisoned").take_if(is_now);
        work.into_iter().for_each(|(_, work)| work(space));
    }
}

impl super::Space {
    /// Another thread does this just then, once.
    pub fn meanwhile(&self, when: Moment, work: impl FnOnce(&super::Space) + Send + 'static) {
        *self.faults.meanwhile.lock().expect("unpoisoned") = Some((when, Box::new(work)));
    }

    fn armed(&self) -> &Faults {
        self.faults.armed.store(true, Ordering::Relaxed);
        &self.faults
    }

    /// Allocations since the first call of any of these, failed ones included.
    pub fn allocations(&self) -> u64 {
        self.armed().count.load(Ordering::Relaxed)
    }

    /// These find no room, whatever is free.
    pub fn fail_allocations(&self, which: Range<u64>) {
        let faults = self.armed();
        faults.from.store(which.start, Ordering::Relaxed);
        faults.to.store(which.end, Ordering::Relaxed);
    }

    /// How often a list of the block groups of a kind was made, each time of all of them.
    pub fn group_lists(&self, kind: Kind) -> u64 {
        self.list(kind).made()
    }

    /// Content finds no room any more, or does again.
    pub fn fail_data(&self, yes: bool) {
        self.armed().no_data.store(yes, Ordering::Relaxed);
    }
}
