//! Extents of which something changed that their references do not say, in little memory.
//!
//! What it does not know: what changed.

use super::owner::ExtentKind;
use btrfs_disk::Logical;
use std::collections::BTreeMap;

/// What a sound volume's addresses and lengths are multiples of, and below which its addresses are.
const UNIT: u64 = 4096;
const UNITS: u64 = 1 << 44;
/// An extent is that long at most, in units: more than the 128 MiB that files make.
const MOST_UNITS: u64 = 1 << 16;
/// So many stand there before it is looked whether some stand there twice.
/// Chosen, not measured.
const FEW: usize = 1 << 16;

/// An extent's address, length and kind.
pub(super) type Extent = (Logical, u64, ExtentKind);

#[derive(Clone, Default, Debug)]
pub(super) struct Touched {
    /// A word each, by address where `in_order` was called; where one stands twice that goes by and by.
    packed: Vec<u64>,
    /// As many as that, and it is looked for those that stand twice.
    full: usize,
    /// Those that a word has no room for: nothing sound.
    wide: BTreeMap<u64, (u64, ExtentKind)>,
}

impl Touched {
    pub(super) fn insert(&mut self, (at, len, kind): Extent) {
        let Some(word) = pack((at, len, kind)) else {
            self.wide.insert(at.0, (len, kind));
            return;
        };
        if self.packed.len() >= self.full {
            self.in_order();
            self.full = FEW.max(2 * self.packed.len());
        }
        self.packed.push(word);
    }

    /// Each stands there once, by ascending address.
    pub(super) fn in_order(&mut self) {
        self.packed.sort_unstable();
        self.packed.dedup_by_key(|word| *word >> 20);
    }

    /// By ascending address, behind `in_order`.
    pub(super) fn packed(&self) -> impl Iterator<Item = Extent> + '_ {
        debug_assert!(self.packed.is_sorted(), "they were put in order");
        self.packed.iter().map(|word| unpack(*word))
    }

    pub(super) fn wide(&self) -> impl Iterator<Item = Extent> + '_ {
        self.wide.iter().map(|(at, (len, kind))| (Logical(*at), *len, *kind))
    }
}

/// Memory that one takes, in words of eight bytes.
pub(super) fn words(extent: Extent) -> usize {
    if pack(extent).is_some() { 1 } else { 8 }
}

fn pack((at, len, kind): Extent) -> Option<u64> {
    let kind = match kind {
        ExtentKind::Data => 0,
        ExtentKind::Node { level } => u64::from(level) + 1,
    };
    let whole = at.0.is_multiple_of(UNIT) && len.is_multiple_of(UNIT);
    let (at, len) = (at.0 / UNIT, len / UNIT);
    let fits = whole && at < UNITS && len < MOST_UNITS && kind < 16;
    fits.then_some(at << 20 | len << 4 | kind)
}

fn unpack(word: u64) -> Extent {
    let kind = match word & 15 {
        0 => ExtentKind::Data,
        level => ExtentKind::Node { level: level as u8 - 1 },
    };
    (Logical((word >> 20) * UNIT), (word >> 4) % MOST_UNITS * UNIT, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_out_is_what_went_in_once() {
        let leaf = ExtentKind::Node { level: 0 };
        let all = [
            (Logical(0), 0, ExtentKind::Data),
            (Logical(UNIT), 16384, ExtentKind::Node { level: 7 }),
            (Logical(1 << 40), 128 << 20, ExtentKind::Data),
            (Logical((UNITS - 1) * UNIT), (MOST_UNITS - 1) * UNIT, leaf),
        ];
        let mut touched = Touched::default();
        for _ in 0..FEW {
            all.iter().rev().for_each(|extent| touched.insert(*extent));
        }
        assert!(touched.packed.len() <= FEW, "{} stand there", touched.packed.len());
        touched.in_order();
        assert_eq!(touched.packed().collect::<Vec<_>>(), all);
        assert_eq!(touched.wide().count(), 0);
    }

    #[test]
    fn what_a_word_has_no_room_for_is_kept_too() {
        let all = [
            (Logical(512), UNIT, ExtentKind::Data),
            (Logical(UNIT), 512, ExtentKind::Data),
            (Logical(2 * UNIT), MOST_UNITS * UNIT, ExtentKind::Data),
            (Logical(3 * UNIT), UNIT, ExtentKind::Node { level: 15 }),
            (Logical(UNITS * UNIT), UNIT, ExtentKind::Data),
        ];
        let mut touched = Touched::default();
        all.iter().for_each(|extent| touched.insert(*extent));
        assert_eq!(touched.wide().collect::<Vec<_>>(), all);
        assert!(all.iter().all(|extent| words(*extent) == 8));
    }
}
