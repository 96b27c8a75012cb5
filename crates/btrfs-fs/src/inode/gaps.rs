//! Parts of a file that may only grow which the kernel's cache has passed over so far: what it sent lies behind
//! them, and they are yet to come.
//!
//! What it does not know: what is in a file.

use std::ops::Range;

/// Ascending, and apart.
#[derive(Default)]
pub(crate) struct Gaps(Vec<Range<u64>>);

impl Gaps {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// One that lies behind all others.
    pub(crate) fn add(&mut self, gap: Range<u64>) {
        self.0.push(gap);
    }

    /// The parts of [start, end) that are in none.
    pub(crate) fn beside(&self, start: u64, end: u64) -> Vec<Range<u64>> {
        let mut at = start;
        let mut parts: Vec<Range<u64>> = Vec::new();
        for gap in self.0.iter().filter(|gap| gap.end > start && gap.start < end) {
            parts.push(at..gap.start);
            at = at.max(gap.end);
        }
        parts.push(at..end);
        parts.retain(|part| part.start < part.end);
        parts
    }

    pub(crate) fn fill(&mut self, filled: &Range<u64>) {
        let parts = |gap: &Range<u64>| {
            [gap.start..gap.end.min(filled.start), gap.start.max(filled.end)..gap.end]
        };
        self.0 = self.0.iter().flat_map(parts).filter(|part| part.start < part.end).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_in_any_order() {
        let mut gaps = Gaps(vec![10..20, 30..40]);
        assert_eq!(gaps.beside(0, 50), [0..10, 20..30, 40..50]);
        assert_eq!(gaps.beside(12, 18), []);
        assert_eq!(gaps.beside(15, 35), std::slice::from_ref(&(20..30)));
        assert_eq!(gaps.beside(20, 30), std::slice::from_ref(&(20..30)));
        gaps.fill(&(12..15));
        assert_eq!(gaps.0, [10..12, 15..20, 30..40]);
        gaps.fill(&(0..35));
        assert_eq!(gaps.0, std::slice::from_ref(&(35..40)));
        gaps.fill(&(35..40));
        assert_eq!(gaps.0, []);
    }
}
