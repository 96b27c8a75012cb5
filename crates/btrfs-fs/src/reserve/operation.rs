//! What operations under way may change: each counts from when it reserved until it is over.
//!
//! Invariant: an operation's changes count here until they are in the delta (and a moment
//! longer), so that delta and in_flight together are never less than what a commit will find.
//!
//! What it does not know: what is free.

use super::Reservations;
use super::bound::Cost;
use btrfs_space::Priority;
use btrfs_txn::budget::{self, Changes};
use std::sync::atomic::{AtomicU64, Ordering};

/// Metadata that is reserved for one operation. Dropped when its changes are in the delta: what
/// it did not use is given back with it.
#[must_use = "the reservation ends when it is dropped"]
pub struct Reservation<'e> {
    reservations: &'e Reservations,
    cost: Cost,
    priority: Priority,
}

impl<'e> Reservation<'e> {
    pub(super) fn enter(
        reservations: &'e Reservations,
        cost: Cost,
        priority: Priority,
    ) -> Reservation<'e> {
        reservations.in_flight.of(priority).add(&cost);
        budget::enter(Changes { places: cost.places as i64, bytes: cost.bytes as i64 });
        Reservation { reservations, cost, priority }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.reservations.in_flight.of(self.priority).sub(&self.cost);
        budget::leave();
    }
}

/// All of them together; those of removals by themselves.
#[derive(Default)]
pub(super) struct InFlight {
    ordinary: Sum,
    removals: Sum,
}

impl InFlight {
    fn of(&self, priority: Priority) -> &Sum {
        if priority == Priority::Normal { &self.ordinary } else { &self.removals }
    }

    /// What a promise of `priority` has to reckon with: removals need not wait for room that
    /// ordinary operations hold for themselves.
    pub fn cost(&self, priority: Priority) -> Cost {
        match priority {
            Priority::Delete => self.removals.cost(),
            Priority::Normal | Priority::Commit => self.ordinary.cost() + self.removals.cost(),
        }
    }
}

#[derive(Default)]
struct Sum {
    places: AtomicU64,
    trees: AtomicU64,
    births: AtomicU64,
    bytes: AtomicU64,
    sums: AtomicU64,
}

fn parts_of(cost: &Cost) -> [u64; 5] {
    let Cost { places, trees, births, bytes, sums } = *cost;
    [places, trees, births, bytes, sums]
}

impl Sum {
    fn parts(&self) -> [&AtomicU64; 5] {
        [&self.places, &self.trees, &self.births, &self.bytes, &self.sums]
    }

    fn add(&self, cost: &Cost) {
        let parts = self.parts().into_iter().zip(parts_of(cost));
        parts.for_each(|(sum, n)| _ = sum.fetch_add(n, Ordering::AcqRel));
    }

    fn sub(&self, cost: &Cost) {
        let parts = self.parts().into_iter().zip(parts_of(cost));
        parts.for_each(|(sum, n)| _ = sum.fetch_sub(n, Ordering::AcqRel));
    }

    fn cost(&self) -> Cost {
        let sums = self.parts().map(|sum| sum.load(Ordering::Acquire));
        let [places, trees, births, bytes, sums] = sums;
        Cost { places, trees, births, bytes, sums }
    }
}
