//! Free ranges of one block group by address and by size.
//!
//! Invariants: both orders hold the same ranges, as far as they have room for an aligned
//! unit; `usable` is what allocations can get out of them.

use crate::free_space::{Contradiction, Ranges};
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub(super) struct FreeIndex {
    unit: u64,
    by_start: Ranges,
    /// (aligned room, start of the range); ranges without room are not in it.
    by_size: BTreeSet<(u64, u64)>,
    usable: u64,
    /// Where the next search begins.
    cursor: u64,
}

/// How far a search looks on from the cursor before it asks the sizes.
/// Chosen, not measured.
const NEXT_FIT_STEPS: usize = 8;

impl FreeIndex {
    pub(super) fn new(unit: u64) -> FreeIndex {
        FreeIndex { unit, by_start: Ranges::new(), by_size: BTreeSet::new(), usable: 0, cursor: 0 }
    }

    pub(super) fn usable(&self) -> u64 {
        self.usable
    }

    /// How many ranges have room for a unit.
    pub(super) fn pieces(&self) -> usize {
        self.by_size.len()
    }

    /// Length of the largest aligned range.
    pub(super) fn largest(&self) -> u64 {
        self.by_size.last().map_or(0, |(room, _)| *room)
    }

    pub(super) fn ranges(&self) -> &Ranges {
        &self.by_start
    }

    /// The aligned part of a range.
    fn fit(&self, start: u64, len: u64) -> (u64, u64) {
        let low = start.next_multiple_of(self.unit);
        let high = (start + len) / self.unit * self.unit;
        (low, high.saturating_sub(low))
    }

    fn note(&mut self, start: u64, len: u64) {
        let room = self.fit(start, len).1;
        if room > 0 {
            self.by_size.insert((room, start));
            self.usable += room;
        }
    }

    fn forget(&mut self, start: u64, len: u64) {
        let room = self.fit(start, len).1;
        if room > 0 {
            self.by_size.remove(&(room, start));
            self.usable -= room;
        }
    }

    pub(super) fn insert(&mut self, start: u64, len: u64) -> Result<(), Contradiction> {
        let end = start.checked_add(len).ok_or(Contradiction)?;
        let before = start.checked_sub(1).and_then(|at| self.by_start.containing(at));
        let after = self.by_start.containing(end);
        let (low, whole) = self.by_start.insert(start, len)?;
        for (start, len) in before.into_iter().chain(after) {
            self.forget(start, len);
        }
        self.note(low, whole);
        Ok(())
    }

    pub(super) fn remove(&mut self, start: u64, len: u64) -> Result<(), Contradiction> {
        let (low, whole) = self.by_start.remove(start, len)?;
        self.forget(low, whole);
        if low < start {
            self.note(low, start - low);
        }
        if start + len < low + whole {
            self.note(start + len, low + whole - start - len);
        }
        Ok(())
    }

    /// Takes out whatever of the range is free.
    pub(super) fn subtract(&mut self, start: u64, len: u64) {
        while let Some((low, whole)) =
            self.by_start.from(start).filter(|(low, _)| *low < start + len)
        {
            let (from, to) = (low.max(start), (low + whole).min(start + len));
            if self.remove(from, to - from).is_err() {
                return;
            }
        }
    }

    /// Takes an aligned range of `want` bytes: at `goal`, behind the last one, or where
    /// the smallest range that is large enough lies.
    pub(super) fn take(&mut self, want: u64, goal: Option<u64>) -> Option<(u64, u64)> {
        let at_goal = goal.and_then(|goal| self.at(goal, want));
        let start = at_goal.or_else(|| self.next_fit(want)).or_else(|| self.best_fit(want))?;
        self.remove(start, want).ok()?;
        self.cursor = start + want;
        Some((start, want))
    }

    /// Takes the largest range, cut to `want`, if it has `min` bytes.
    pub(super) fn take_largest(&mut self, want: u64, min: u64) -> Option<(u64, u64)> {
        let (room, start) = *self.by_size.last()?;
        let (start, len) = (start.next_multiple_of(self.unit), room);
        let len = len.min(want);
        if len < min || len == 0 {
            return None;
        }
        self.remove(start, len).ok()?;
        self.cursor = start + len;
        Some((start, len))
    }

    fn at(&self, goal: u64, want: u64) -> Option<u64> {
        let (start, len) = self.by_start.containing(goal)?;
        (goal.is_multiple_of(self.unit) && start + len - goal >= want).then_some(goal)
    }

    fn next_fit(&self, want: u64) -> Option<u64> {
        let mut at = self.cursor;
        for _ in 0..NEXT_FIT_STEPS {
            let (start, len) = self.by_start.from(at)?;
            let low = start.max(self.cursor).min(start + len);
            let (aligned, room) = self.fit(low, start + len - low);
            if room >= want {
                return Some(aligned);
            }
            at = start + len;
        }
        None
    }

    fn best_fit(&self, want: u64) -> Option<u64> {
        let (_, start) = self.by_size.range((want, 0)..).next()?;
        Some(start.next_multiple_of(self.unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usable_counts_whole_aligned_units() {
        let mut index = FreeIndex::new(16);
        index.insert(4, 24).unwrap();
        assert_eq!((index.usable(), index.largest()), (0, 0));
        index.insert(28, 20).unwrap();
        assert_eq!((index.usable(), index.largest()), (32, 32));
        assert_eq!(index.take(16, None), Some((16, 16)));
        assert_eq!(index.take(16, None), Some((32, 16)));
        assert_eq!(index.take(16, None), None);
        assert_eq!(index.ranges().bytes(), 12);
    }

    #[test]
    fn goes_on_behind_the_last_one_then_takes_the_tightest() {
        let mut index = FreeIndex::new(4);
        index.insert(0, 40).unwrap();
        index.insert(100, 8).unwrap();
        assert_eq!(index.take(8, None), Some((0, 8)));
        assert_eq!(index.take(8, None), Some((8, 8)));
        index.insert(0, 8).unwrap();
        assert_eq!(index.take(8, Some(24)), Some((24, 8)));
        assert_eq!(index.take(8, None), Some((32, 8)));
        assert_eq!(index.take(8, None), Some((100, 8)));
        assert_eq!(index.take(8, None), Some((0, 8)));
        assert_eq!(index.take(16, None), None);
        assert_eq!(index.take_largest(16, 4), Some((16, 8)));
        assert_eq!(index.take_largest(16, 4), None);
    }

    #[test]
    fn subtract_takes_what_is_there() {
        let mut index = FreeIndex::new(4);
        index.insert(0, 8).unwrap();
        index.insert(12, 8).unwrap();
        index.subtract(4, 12);
        assert_eq!(index.ranges().iter().collect::<Vec<_>>(), [(0, 4), (16, 4)]);
        assert_eq!(index.usable(), 8);
    }

    /// Units of `unit` bytes that lie aligned in free stretches, and the longest such run.
    fn count(free: &[bool], unit: usize) -> (u64, u64) {
        let (mut usable, mut largest, mut at) = (0, 0, 0);
        while at < free.len() {
            let end = (at..free.len()).find(|i| !free[*i]).unwrap_or(free.len());
            let room = (end / unit * unit).saturating_sub(at.next_multiple_of(unit));
            (usable, largest) = (usable + room, largest.max(room));
            at = end + 1;
        }
        (usable as u64, largest as u64)
    }

    #[test]
    fn against_a_plain_map() {
        for (seed, unit) in [(1u64, 1usize), (2, 4), (3, 16)] {
            let mut state = seed;
            let mut roll = |sides: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % sides
            };
            let (mut index, mut free) = (FreeIndex::new(unit as u64), vec![false; 2000]);
            for _ in 0..6000 {
                let (start, len) = (roll(2000) as usize, 1 + roll(40) as usize);
                let stretch = start..(start + len).min(2000);
                let want = unit as u64 * (1 + roll(4));
                let before = count(&free, unit);
                let taken = match roll(4) {
                    0 | 1 => {
                        let ok = stretch.clone().all(|i| !free[i]);
                        let put = index.insert(start as u64, stretch.len() as u64);
                        assert_eq!(put.is_ok(), ok);
                        if ok {
                            free[stretch].fill(true);
                        }
                        None
                    }
                    2 => {
                        let taken = index.take(want, Some(start as u64).filter(|_| len < 9));
                        assert_eq!(taken.is_some(), before.1 >= want, "{want} of {before:?}");
                        assert!(taken.is_none_or(|(_, len)| len == want));
                        taken
                    }
                    _ => {
                        let taken = index.take_largest(want, unit as u64);
                        assert_eq!(taken.map_or(0, |(_, len)| len), before.1.min(want));
                        taken
                    }
                };
                if let Some((start, len)) = taken {
                    let taken = start as usize..(start + len) as usize;
                    assert!(start.is_multiple_of(unit as u64));
                    assert!(taken.clone().all(|i| free[i]));
                    free[taken].fill(false);
                }
                assert_eq!((index.usable(), index.largest()), count(&free, unit));
            }
        }
    }
}
