//! Runs of keys of one object under which nothing is.
//!
//! Who looks for the neighbour of a key passes over what was deleted, key by key, of which there can be a million. Where
//! that was a long way the delta remembers it, and nobody goes it again.
//!
//! Invariants: under a key of a run nothing is, in this delta and in the layers below, which have nothing new as long as this
//! one lies over them. Who puts an item cuts its key out; and what somebody saw is not remembered if an item
//! was put since he began to look. Both ends of a run are keys of one kind.
//!
//! What it does not know: which layer has what.

use super::slot::SubKey;
use btrfs_disk::Key;
use std::collections::BTreeMap;

/// Of one object.
#[derive(Default)]
pub(super) struct Bare {
    /// Both ends are in it; apart from each other.
    runs: BTreeMap<SubKey, SubKey>,
    /// Items that were put since this is here.
    pub(super) puts: u64,
}

impl Bare {
    /// The run that `key` is in.
    pub(super) fn around(&self, key: SubKey) -> Option<(SubKey, SubKey)> {
        let (start, end) = self.runs.range(..=key).next_back()?;
        (*end >= key).then_some((*start, *end))
    }

    /// An item comes.
    pub(super) fn cut(&mut self, key: SubKey) {
        self.puts += 1;
        let Some((start, end)) = self.around(key) else { return };
        self.runs.remove(&start);
        if start < key {
            self.runs.insert(start, (key.0, key.1 - 1));
        }
        if key < end {
            self.runs.insert((key.0, key.1 + 1), end);
        }
    }

    /// Nothing is there, with both ends. One run with those that it meets.
    pub(super) fn add(&mut self, (kind, mut start): SubKey, mut end: u64) {
        let reach = (kind, end.saturating_add(1));
        while let Some((&(of, from), &(_, to))) = self.runs.range(..=reach).next_back()
            && of == kind
            && to.saturating_add(1) >= start
        {
            self.runs.remove(&(of, from));
            (start, end) = (start.min(from), end.max(to));
        }
        self.runs.insert((kind, start), (kind, end));
    }
}

/// The next smaller key of the same object.
pub fn before(key: &Key) -> Option<Key> {
    match key.offset.checked_sub(1) {
        Some(offset) => Some(Key { offset, ..*key }),
        None => key.kind.checked_sub(1).map(|kind| Key { kind, offset: u64::MAX, ..*key }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Held against a plain set, in a mixed order.
    #[test]
    fn runs_are_what_was_added_and_not_cut_out() {
        let (mut bare, mut plain) = (Bare::default(), BTreeSet::new());
        let mut number = 7_u64;
        for _ in 0..3000 {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (at, len, kind) = (number >> 40 & 63, number >> 50 & 7, (number >> 60 & 1) as u8);
            if number >> 61 & 1 == 0 {
                bare.add((kind, at), at + len);
                plain.extend((at..=at + len).map(|at| (kind, at)));
            } else {
                bare.cut((kind, at));
                plain.remove(&(kind, at));
            }
            for key in (0..2).flat_map(|kind| (0..72).map(move |at| (kind, at))) {
                let run = bare.around(key);
                assert_eq!(run.is_some(), plain.contains(&key), "{key:?}");
                let Some(((_, start), (_, end))) = run else { continue };
                assert!((start..=end).all(|at| plain.contains(&(key.0, at))));
                let beside = [start.checked_sub(1), end.checked_add(1)];
                assert!(beside.into_iter().flatten().all(|at| !plain.contains(&(key.0, at))));
            }
        }
        bare.add((0, 70), u64::MAX);
        bare.add((1, 0), 3);
        assert_eq!(bare.around((0, u64::MAX)).map(|run| run.1), Some((0, u64::MAX)));
        assert_eq!(bare.around((1, 2)).map(|run| run.0), Some((1, 0)));
        bare.cut((0, u64::MAX));
        assert_eq!(bare.around((0, u64::MAX)), None);
    }
}
