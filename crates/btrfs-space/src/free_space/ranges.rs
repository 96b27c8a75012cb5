//! A set of bytes as disjoint ranges that do not touch each other.

use std::collections::BTreeMap;

/// What was asked contradicts the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contradiction;

/// Lengths by start, both in bytes: no range is empty, and no two touch.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The empty set.
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// (start, length), ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(start, len)| (*start, *len))
    }

    /// Ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no byte is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes are in the set, over all ranges.
    pub fn bytes(&self) -> u64 {
        self.0.values().sum()
    }

    /// The range that holds `at`.
    pub fn containing(&self, at: u64) -> Option<(u64, u64)> {
        let (start, len) = self.0.range(..=at).next_back()?;
        (at < start + len).then_some((*start, *len))
    }

    /// The first range that ends behind `at`.
    pub fn from(&self, at: u64) -> Option<(u64, u64)> {
        self.containing(at).or_else(|| self.0.range(at..).next().map(|(s, l)| (*s, *l)))
    }

    /// Adds a range of which nothing is in the set; answers the range it became part of.
    pub fn insert(&mut self, start: u64, len: u64) -> Result<(u64, u64), Contradiction> {
        let end = start.checked_add(len).ok_or(Contradiction)?;
        if len == 0 {
            return Err(Contradiction);
        }
        let (mut low, mut high) = (start, end);
        if let Some((before, before_len)) = self.0.range(..end).next_back() {
            let before_end = before + before_len;
            if before_end > start {
                return Err(Contradiction);
            }
            if before_end == start {
                low = *before;
            }
        }
        if let Some(after_len) = self.0.remove(&end) {
            high = end + after_len;
        }
        self.0.insert(low, high - low);
        Ok((low, high - low))
    }

    /// Takes out a range all of which is in the set; answers the range it was part of.
    pub fn remove(&mut self, start: u64, len: u64) -> Result<(u64, u64), Contradiction> {
        let end = start.checked_add(len).ok_or(Contradiction)?;
        let (low, low_len) = self.containing(start).ok_or(Contradiction)?;
        let high = low + low_len;
        if len == 0 || end > high {
            return Err(Contradiction);
        }
        self.0.remove(&low);
        if low < start {
            self.0.insert(low, start - low);
        }
        if end < high {
            self.0.insert(end, high - end);
        }
        Ok((low, low_len))
    }

    /// Takes out whatever of the range is in the set.
    pub fn subtract(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        let mut at = start;
        while let Some((low, low_len)) = self.from(at).filter(|(low, _)| *low < end) {
            let (from, to) = (low.max(start), (low + low_len).min(end));
            if self.remove(from, to - from).is_err() {
                return;
            }
            at = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_splits_and_refuses() {
        let mut set = Ranges::new();
        assert_eq!(set.insert(10, 10), Ok((10, 10)));
        assert_eq!(set.insert(30, 10), Ok((30, 10)));
        assert_eq!(set.insert(20, 10), Ok((10, 30)));
        assert_eq!(set.insert(39, 2), Err(Contradiction));
        assert_eq!(set.insert(5, 6), Err(Contradiction));
        assert_eq!(set.remove(15, 5), Ok((10, 30)));
        assert_eq!(set.iter().collect::<Vec<_>>(), [(10, 5), (20, 20)]);
        assert_eq!(set.remove(14, 2), Err(Contradiction));
        set.subtract(0, 25);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(25, 15)]);
        assert_eq!(set.remove(25, 15), Ok((25, 15)));
        assert!(set.is_empty());
    }
}
