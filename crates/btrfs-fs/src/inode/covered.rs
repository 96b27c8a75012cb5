//! Which dirty content lies over extents that the file has already.
//!
//! `st_blocks` counts what the volume holds, and what has no extent yet; content that replaces
//! some is counted once. Nobody needs to know before somebody asks, and a look at the extents for
//! each write is dear, so what becomes dirty is only noted, and judged when it is asked for.
//!
//! Invariants: `ranges` are sector-aligned, apart from each other, and all dirty; what became
//! dirty and is not judged is in `fresh`, which may say too much, in [`MOST_FRESH`] places at most.

use std::collections::BTreeMap;
use std::ops::Range;

/// Places beyond which all that is dirty is judged anew: parts of them may be clean again and again, without a place
/// less, and each removal looks at all.
/// Chosen, not measured.
const MOST_FRESH: usize = 4096;

#[derive(Default)]
pub(crate) struct Covered {
    fresh: Vec<Range<u64>>,
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Covered {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The range became dirty, or what lies below it changed.
    pub(crate) fn note(&mut self, range: Range<u64>) {
        if self.fresh.len() == MOST_FRESH {
            self.fresh.clear();
            self.fresh.push(0..u64::MAX);
        }
        match self.fresh.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.fresh.push(range),
        }
    }

    /// What is to be judged.
    pub(crate) fn take_fresh(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.fresh)
    }

    /// The range lies over an extent.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        self.cut(&range);
        self.bytes += range.end - range.start;
        self.ranges.insert(range.start, range.end);
    }

    /// The range is not dirty any more.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        self.fresh.retain(|fresh| fresh.start < range.start || fresh.end > range.end);
        self.cut(&range);
    }

    fn cut(&mut self, range: &Range<u64>) {
        let first = match self.ranges.range(..range.start).next_back() {
            Some((start, end)) if *end > range.start => *start,
            _ => range.start,
        };
        let cut: Vec<Range<u64>> =
            self.ranges.range(first..range.end).map(|(start, end)| *start..*end).collect();
        for old in cut {
            self.ranges.remove(&old.start);
            self.bytes -= old.end - old.start;
            for left in [old.start..range.start, range.end..old.end] {
                if left.start < left.end {
                    self.bytes += left.end - left.start;
                    self.ranges.insert(left.start, left.end);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ranges_match_a_model() {
        let mut seed = 7u64;
        let mut random = move |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let (mut covered, mut model) = (Covered::default(), BTreeSet::new());
        for _ in 0..3000 {
            let start = random(60);
            let range = start..start + 1 + random(12);
            if random(2) == 0 {
                covered.insert(range.clone());
                model.extend(range);
            } else {
                covered.remove(range.clone());
                model.retain(|at| !range.contains(at));
            }
            assert_eq!(covered.bytes(), model.len() as u64);
            let all: u64 = covered.ranges.iter().map(|(start, end)| end - start).sum();
            assert_eq!(all, covered.bytes());
        }
    }

    #[test]
    fn what_is_noted_again_and_again_takes_a_bounded_list() {
        let mut covered = Covered::default();
        for _ in 0..2 * MOST_FRESH {
            covered.note(0..8);
            [0..4, 4..8].into_iter().for_each(|part| covered.remove(part));
            assert!(covered.fresh.capacity() <= MOST_FRESH);
        }
        covered.note(16..24);
        let all = covered.take_fresh();
        assert!(all.iter().any(|fresh| fresh.contains(&16)), "it is judged");
    }

    #[test]
    fn what_is_clean_again_needs_no_judgement() {
        let mut covered = Covered::default();
        (0..10).for_each(|at| covered.note(at * 8..at * 8 + 8));
        assert!(covered.fresh.len() == 1 && covered.fresh[0] == (0..80));
        covered.note(200..208);
        covered.remove(100..u64::MAX);
        let fresh = covered.take_fresh();
        assert!(fresh.len() == 1 && fresh[0] == (0..80), "{fresh:?}");
    }
}
