//! The ranges of one file of which a log says that nothing is there.
//!
//! Invariant: they neither overlap nor touch. Each change says which of them began or ended otherwise
//! before (`touched`, by first byte): the log has an item for each, which is to be written anew or to
//! go. So a log write looks at those that changed, however many there are.
//!
//! It does not know what the last commit has there.

use std::collections::{BTreeMap, BTreeSet};

/// The ends of ranges by their beginnings.
#[derive(Default, Debug)]
pub(crate) struct Holes(BTreeMap<u64, u64>);

impl Holes {
    /// The end of the one that begins at `start`.
    pub(crate) fn end_of(&self, start: u64) -> Option<u64> {
        self.0.get(&start).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Something is in [start, end) now.
    pub(crate) fn cut(&mut self, start: u64, end: u64, touched: &mut BTreeSet<u64>) {
        if start >= end {
            return;
        }
        let before = self.0.range(..start).next_back().map(|(from, to)| (*from, *to));
        let first = before.filter(|(_, to)| *to > start);
        let inside = self.0.range(start..end).map(|(from, to)| (*from, *to));
        for (from, to) in first.into_iter().chain(inside).collect::<Vec<_>>() {
            self.0.remove(&from);
            touched.insert(from);
            for (from, to) in [(from, start), (end, to)] {
                if from < to {
                    self.0.insert(from, to);
                    touched.insert(from);
                }
            }
        }
    }

    /// Nothing is in [start, end) now. Those that it meets become one with it.
    pub(crate) fn add(&mut self, start: u64, end: u64, touched: &mut BTreeSet<u64>) {
        if start >= end {
            return;
        }
        let before = self.0.range(..start).next_back().map(|(from, to)| (*from, *to));
        let first = before.filter(|(_, to)| *to >= start);
        let met = self.0.range(start..=end).map(|(from, to)| (*from, *to));
        let (mut whole, met) = ((start, end), first.into_iter().chain(met).collect::<Vec<_>>());
        for (from, to) in met {
            self.0.remove(&from);
            touched.insert(from);
            whole = (whole.0.min(from), whole.1.max(to));
        }
        self.0.insert(whole.0, whole.1);
        touched.insert(whole.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of bytes that are set.
    fn runs(bytes: &[bool]) -> BTreeMap<u64, u64> {
        let mut runs = BTreeMap::new();
        let mut at = 0;
        for run in bytes.chunk_by(|a, b| a == b) {
            if run[0] {
                runs.insert(at, at + run.len() as u64);
            }
            at += run.len() as u64;
        }
        runs
    }

    /// Held against one flag a byte, and the items that follow what is told against the ranges.
    #[test]
    fn what_is_told_as_touched_keeps_the_items() {
        const LEN: u64 = 24;
        let (mut holes, mut model) = (Holes::default(), [false; LEN as usize]);
        let mut items = BTreeMap::new();
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for step in 0..20_000 {
            let (start, adds) = (next(LEN), next(2) == 0);
            let end = start + next(LEN - start + 1);
            let mut touched = BTreeSet::new();
            match adds {
                true => holes.add(start, end, &mut touched),
                false => holes.cut(start, end, &mut touched),
            }
            model[start as usize..end as usize].fill(adds);
            for from in touched {
                match holes.end_of(from) {
                    Some(to) => items.insert(from, to),
                    None => items.remove(&from),
                };
            }
            assert_eq!(holes.0, runs(&model), "step {step}: {adds} {start}..{end}");
            assert_eq!(items, holes.0, "step {step}: {adds} {start}..{end}");
            assert_eq!(holes.is_empty(), items.is_empty());
        }
    }
}
