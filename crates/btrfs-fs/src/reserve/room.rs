//! What operations under way may change: each counts from when it was promised its room until
//! it is over.
//!
//! Invariant: an operation's changes count here until they are in the delta (and a moment
//! longer), so that delta and flights together are never less than what a commit will find.
//!
//! What it does not know: what is free.

use super::bound::Load;
use crate::engine::Engine;
use btrfs_space::Priority;
use std::sync::atomic::{AtomicU64, Ordering};

/// A promise of metadata to one operation. Dropped when its changes are in the delta.
#[must_use = "the promise ends when it is dropped"]
pub struct Room<'e> {
    engine: &'e Engine,
    load: Load,
    priority: Priority,
}

impl<'e> Room<'e> {
    pub(super) fn enter(engine: &'e Engine, load: Load, priority: Priority) -> Room<'e> {
        engine.promises.flights.of(priority).add(&load);
        Room { engine, load, priority }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.engine.promises.flights.of(self.priority).sub(&self.load);
    }
}

/// All rooms together; those of removals by themselves.
#[derive(Default)]
pub(super) struct Flights {
    ordinary: Sum,
    removals: Sum,
}

impl Flights {
    fn of(&self, priority: Priority) -> &Sum {
        if priority == Priority::Normal { &self.ordinary } else { &self.removals }
    }

    /// What a promise of `priority` has to reckon with: removals need not wait for room that
    /// ordinary operations hold for themselves.
    pub fn load(&self, priority: Priority) -> Load {
        match priority {
            Priority::Delete => self.removals.load(),
            Priority::Normal | Priority::Commit => self.ordinary.load() + self.removals.load(),
        }
    }
}

#[derive(Default)]
struct Sum {
    places: AtomicU64,
    bytes: AtomicU64,
    sums: AtomicU64,
}

impl Sum {
    fn parts(&self) -> [&AtomicU64; 3] {
        [&self.places, &self.bytes, &self.sums]
    }

    fn add(&self, load: &Load) {
        let parts = self.parts().into_iter().zip([load.places, load.bytes, load.sums]);
        parts.for_each(|(sum, n)| _ = sum.fetch_add(n, Ordering::AcqRel));
    }

    fn sub(&self, load: &Load) {
        let parts = self.parts().into_iter().zip([load.places, load.bytes, load.sums]);
        parts.for_each(|(sum, n)| _ = sum.fetch_sub(n, Ordering::AcqRel));
    }

    fn load(&self) -> Load {
        let [places, bytes, sums] = self.parts().map(|sum| sum.load(Ordering::Acquire));
        Load { places, bytes, sums }
    }
}
