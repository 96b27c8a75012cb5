//! What operations under way may change: each counts from when it reserved until it is over.
//!
//! Invariants:
//! * An operation's changes count here until they are in the delta (and a moment longer). So who
//!   reads this first and the delta behind it never finds less than what a commit will find.
//! * The end of an epoch may come between any two of them, and the parts need more than the whole.
//!   So each has a bound of its own; but those on either side of that end need no more than all
//!   of them at once, so that all together need at most that much twice.
//!
//! What it does not know: what is free.

use super::Reservations;
use super::bound::{Cost, Trees, bound};
use btrfs_txn::budget::{self, Changes};
use std::sync::atomic::{AtomicU64, Ordering};

/// Metadata that is reserved for one operation. Dropped when its changes are in the delta: what
/// it did not use is given back with it.
#[must_use = "the reservation ends when it is dropped"]
pub(crate) struct Reservation<'e> {
    reservations: &'e Reservations,
    cost: Cost,
    /// What it needs by itself.
    bytes: u64,
}

impl<'e> Reservation<'e> {
    pub(super) fn enter(reservations: &'e Reservations, cost: Cost) -> Reservation<'e> {
        let bytes = bound(&reservations.trees(), &cost);
        reservations.in_flight.add(&cost, bytes);
        budget::enter(Changes { places: cost.places as i64, bytes: cost.bytes as i64 });
        Reservation { reservations, cost, bytes }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.reservations.in_flight.sub(&self.cost, self.bytes);
        budget::leave();
    }
}

/// All of them together.
#[derive(Default)]
pub(super) struct InFlight {
    places: AtomicU64,
    trees: AtomicU64,
    births: AtomicU64,
    bytes: AtomicU64,
    sums: AtomicU64,
    records: AtomicU64,
    /// What each needs by itself, added up.
    apart: AtomicU64,
}

/// What operations under way need, as it was at one time.
pub(super) struct Room {
    pub(super) together: Cost,
    apart: u64,
}

impl Room {
    /// Bytes of new nodes, wherever epochs end between them. At least what all of them need in one
    /// commit: the trees may be larger than when they reserved.
    pub(super) fn bytes(&self, trees: &Trees) -> u64 {
        let together = bound(trees, &self.together);
        self.apart.clamp(together, 2 * together)
    }
}

impl InFlight {
    /// In the order of [`Cost::parts`].
    fn sums(&self) -> [&AtomicU64; 6] {
        [&self.places, &self.trees, &self.births, &self.bytes, &self.sums, &self.records]
    }

    fn add(&self, cost: &Cost, apart: u64) {
        let parts = self.sums().into_iter().zip(cost.parts());
        parts.for_each(|(sum, n)| _ = sum.fetch_add(n, Ordering::AcqRel));
        self.apart.fetch_add(apart, Ordering::AcqRel);
    }

    fn sub(&self, cost: &Cost, apart: u64) {
        let parts = self.sums().into_iter().zip(cost.parts());
        parts.for_each(|(sum, n)| _ = sum.fetch_sub(n, Ordering::AcqRel));
        self.apart.fetch_sub(apart, Ordering::AcqRel);
    }

    /// Whether nobody is under way who changes anything.
    pub(super) fn is_idle(&self) -> bool {
        self.apart.load(Ordering::Acquire) == 0
    }

    pub(super) fn room(&self) -> Room {
        let together = Cost::of_parts(self.sums().map(|sum| sum.load(Ordering::Acquire)));
        Room { together, apart: self.apart.load(Ordering::Acquire) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bound::tests::TREES;
    use super::*;

    /// Two operations, each in an epoch of its own, need what was read while both were under way.
    #[test]
    fn an_epoch_that_ends_between_operations_takes_no_more() {
        let cost = Cost { places: 400, trees: 1, births: 1, ..Cost::default() };
        let alone = bound(&TREES, &cost);
        let in_flight = InFlight::default();
        assert!(in_flight.is_idle());
        (0..2).for_each(|_| in_flight.add(&cost, alone));
        let room = in_flight.room();
        assert!(bound(&TREES, &room.together) < 2 * alone, "the parts are more than the whole");
        assert_eq!(room.bytes(&TREES), 2 * alone);
        (2..100).for_each(|_| in_flight.add(&cost, alone));
        let room = in_flight.room();
        assert_eq!(room.bytes(&TREES), 2 * bound(&TREES, &room.together), "all nodes twice");
        (0..100).for_each(|_| in_flight.sub(&cost, alone));
        assert!(in_flight.is_idle());
        assert_eq!(in_flight.room().bytes(&TREES), 0);
    }

    #[test]
    fn trees_that_grow_meanwhile_count() {
        let cost = Cost { places: 4, trees: 1, ..Cost::default() };
        let in_flight = InFlight::default();
        in_flight.add(&cost, bound(&TREES, &cost));
        let higher = Trees { height: TREES.height + 1, ..TREES };
        assert_eq!(in_flight.room().bytes(&higher), bound(&higher, &cost));
    }
}
