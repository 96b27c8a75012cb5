//! What a directory in memory knows of its names without a look at any layer: the index that the next one
//! gets, and the hashes of all that it has, if it had none when it came into memory.
//!
//! Invariants:
//! * whoever gives a directory a name takes an index for it here (there is no other way to one), with the
//!   directory held exclusively, and before the name is in the delta. So `known` has the hash of each
//!   name that any layer has. It may have more: of names that went, or that did not come after all;
//! * `known` begins where no layer has any name of the directory. It goes with the inode's memory, or where
//!   there is no more memory for it.
//!
//! What it does not know: what a name stands for.

use btrfs_disk::checksum::name_hash;
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of an inode that is no directory: nothing.
#[derive(Default)]
pub(crate) struct DirNames {
    /// 0: not looked up yet.
    next: u64,
    /// The first that was given here.
    begun: u64,
    known: Option<Box<Known>>,
}

impl DirNames {
    /// The index that the next name gets, if that has been looked up.
    pub(crate) fn next_index(&self) -> Option<u64> {
        (self.next != 0).then_some(self.next)
    }

    /// It was looked up.
    pub(crate) fn begin_at(&mut self, index: u64) {
        debug_assert!(self.next == 0 && self.known.is_none());
        (self.next, self.begun) = (index, index);
    }

    /// Indexes from there on were given here: their items are in the delta, or in leaves that commits of this
    /// mount wrote.
    pub(crate) fn given(&self) -> u64 {
        if self.begun == 0 { u64::MAX } else { self.begun }
    }

    /// There are no names in any layer.
    pub(crate) fn begin_empty(&mut self, budget: &Arc<NameBudget>) {
        self.known = Known::begin(budget).map(Box::new);
    }

    /// The index for `name`, which comes. It was looked up before where it begins.
    pub(crate) fn take_index(&mut self, name: &[u8]) -> u64 {
        debug_assert!(self.next != 0);
        if self.known.as_mut().is_some_and(|known| !known.note(hash(name))) {
            self.known = None;
        }
        self.next += 1;
        self.next - 1
    }

    /// No layer has the name, nor another of its hash. False says nothing.
    pub(crate) fn surely_lacks(&self, name: &[u8]) -> bool {
        self.known.as_ref().is_some_and(|known| !known.contains(hash(name)))
    }
}

fn hash(name: &[u8]) -> u32 {
    name_hash(name) as u32
}

/// Hashes of all names that a directory ever had.
struct Known {
    /// One set, or [`PARTS`] of them by the last bits: who adds to a set of a million waits for tens of
    /// milliseconds when it grows.
    parts: Vec<FxHashSet<u32>>,
    /// Of the budget.
    held: u64,
    budget: Arc<NameBudget>,
}

/// What a hash takes: a byte beside it, and an eighth of all places stays free.
const EACH: u64 = 6;
/// What it takes without any.
const EMPTY: u64 = 64;
/// Hashes that there is room for at first.
/// Chosen, not measured.
const FEW: usize = 3;
/// Sets of a large directory. Those of a million names have 4,000 each, which is below a millisecond.
const PARTS: usize = 256;
/// A set of so many is put in parts when it would grow.
/// Chosen, not measured.
const MANY: usize = 4096;

impl Known {
    fn begin(budget: &Arc<NameBudget>) -> Option<Known> {
        let (budget, parts) = (budget.clone(), vec![FxHashSet::default()]);
        budget.take(EMPTY).then(|| Known { parts, held: EMPTY, budget })
    }

    fn contains(&self, hash: u32) -> bool {
        self.parts[hash as usize % self.parts.len()].contains(&hash)
    }

    /// False: there is no memory for it.
    fn note(&mut self, hash: u32) -> bool {
        if let [all] = &self.parts[..]
            && all.len() == all.capacity()
            && all.len() >= MANY
            && !self.put_in_parts()
        {
            return false;
        }
        self.add(hash)
    }

    fn add(&mut self, hash: u32) -> bool {
        let at = hash as usize % self.parts.len();
        if self.parts[at].len() == self.parts[at].capacity() && !self.grow(at) {
            return false;
        }
        self.parts[at].insert(hash);
        true
    }

    fn grow(&mut self, at: usize) -> bool {
        let more = self.parts[at].capacity().max(FEW);
        self.hold(more as u64 * EACH) && self.parts[at].try_reserve(more).is_ok()
    }

    fn put_in_parts(&mut self) -> bool {
        let sets = PARTS * size_of::<FxHashSet<u32>>();
        let mut parts = Vec::new();
        if !self.hold(sets as u64) || parts.try_reserve_exact(PARTS).is_err() {
            return false;
        }
        parts.resize_with(PARTS, FxHashSet::default);
        for all in std::mem::replace(&mut self.parts, parts) {
            if !all.iter().all(|hash| self.add(*hash)) {
                return false;
            }
            self.give_back(all.capacity() as u64 * EACH);
        }
        true
    }

    fn hold(&mut self, bytes: u64) -> bool {
        let taken = self.budget.take(bytes);
        self.held += if taken { bytes } else { 0 };
        taken
    }

    fn give_back(&mut self, bytes: u64) {
        self.held -= bytes;
        self.budget.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.held, Ordering::Relaxed);
    }
}

/// What the hashes of all directories of a volume may take, and take.
pub(crate) struct NameBudget {
    most: u64,
    taken: AtomicU64,
}

impl NameBudget {
    pub(crate) fn new(most: u64) -> NameBudget {
        NameBudget { most, taken: AtomicU64::new(0) }
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> bool {
        let within = |taken: u64| taken.checked_add(bytes).filter(|all| *all <= self.most);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(most: u64) -> Arc<NameBudget> {
        Arc::new(NameBudget::new(most))
    }

    fn empty(budget: &Arc<NameBudget>) -> DirNames {
        let mut names = DirNames::default();
        names.begin_at(2);
        names.begin_empty(budget);
        names
    }

    fn name(n: u64) -> Vec<u8> {
        n.to_string().into()
    }

    #[test]
    fn an_empty_directory_lacks_what_it_was_not_given() {
        let mut names = empty(&budget(1 << 20));
        for n in 0..1000 {
            assert!(names.surely_lacks(&name(n)));
            assert_eq!(names.take_index(&name(n)), 2 + n);
            assert!(!names.surely_lacks(&name(n)));
        }
        let lacks = (1000..2000).filter(|n| names.surely_lacks(&name(*n))).count();
        assert!(lacks > 990, "{lacks}");
    }

    #[test]
    fn of_a_directory_with_names_nothing_is_known() {
        let mut names = DirNames::default();
        assert_eq!(names.next_index(), None);
        assert!(!names.surely_lacks(b"a"));
        names.begin_at(7);
        assert_eq!(names.take_index(b"a"), 7);
        assert!(!names.surely_lacks(b"a") && !names.surely_lacks(b"b"));
        assert_eq!((names.given(), DirNames::default().given()), (7, u64::MAX));
    }

    /// Held against what the budget counts, which must be no less than what a set of so many takes.
    #[test]
    fn beyond_the_budget_nothing_is_known() {
        let budget = budget(10_000);
        let (mut one, mut other) = (empty(&budget), empty(&budget));
        other.take_index(b"x");
        let mut given = 0;
        while one.surely_lacks(b"y") {
            one.take_index(&name(given));
            given += 1;
        }
        assert!((500..2000).contains(&given), "{given}");
        assert!(!one.surely_lacks(b"y"), "what was dropped does not come back");
        assert!(other.surely_lacks(b"y") && !other.surely_lacks(b"x"));
        assert_eq!(budget.taken(), EMPTY + FEW as u64 * EACH);
        drop(other);
        assert_eq!(budget.taken(), 0);
        assert!(!empty(&self::budget(EMPTY - 1)).surely_lacks(b"y"));
    }

    #[test]
    fn the_budget_counts_what_is_held() {
        let budget = budget(u64::MAX);
        let mut names = empty(&budget);
        (0..100_000).for_each(|n| _ = names.take_index(&name(n)));
        // A table: five bytes for each of a power of two of places, of which seven in eight are used.
        let table = |set: &FxHashSet<u32>| (set.capacity() as u64 * 8 / 7).next_power_of_two() * 5;
        let parts = &names.known.as_ref().unwrap().parts;
        assert_eq!(parts.len(), PARTS);
        let real = parts.iter().map(table).sum::<u64>();
        let longest = parts.iter().map(FxHashSet::capacity).max();
        assert!(longest < Some(1000), "{longest:?}: who adds one waits for them all");
        assert!(budget.taken() >= real && budget.taken() < real * 2, "{} {real}", budget.taken());
    }
}
