//! The slots of one object, by key.
//!
//! Most objects are files with a few items: those lie in one piece of memory, sorted, which
//! takes a third of a tree's node and is found, read and freed at once. Those of many items
//! (directories, files in pieces) are in a tree.
//!
//! Invariant: a key is there once, and all iterate in ascending order.
//!
//! What it does not know: what a slot says.

use super::slot::{Slot, SubKey};
use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, VacantEntry};

/// Slots that stay in one piece of memory; a file's own items, names and some attributes. More cost
/// more to move for each that is put between.
/// Chosen, not measured.
const FEW: usize = 12;

#[derive(Clone)]
pub(super) enum Slots {
    Few(Vec<(SubKey, Slot)>),
    Many(BTreeMap<SubKey, Slot>),
}

/// What is under a key: a slot, or the place for one.
pub(super) enum SlotEntry<'s> {
    Taken(&'s mut Slot),
    Free(Vacant<'s>),
}

pub(super) enum Vacant<'s> {
    Few(&'s mut Vec<(SubKey, Slot)>, usize, SubKey),
    Many(VacantEntry<'s, SubKey, Slot>),
}

impl Vacant<'_> {
    pub(super) fn fill(self, slot: Slot) {
        match self {
            Vacant::Few(few, at, key) => few.insert(at, (key, slot)),
            Vacant::Many(place) => _ = place.insert(slot),
        }
    }
}

impl Default for Slots {
    fn default() -> Slots {
        Slots::Few(Vec::new())
    }
}

#[cfg(test)]
thread_local! {
    /// Slots that this thread came by in order.
    pub(super) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Where `key` is in sorted slots, or belongs.
fn find(few: &[(SubKey, Slot)], key: &SubKey) -> Result<usize, usize> {
    few.binary_search_by(|(there, _)| there.cmp(key))
}

impl Slots {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Slots::Few(few) => few.is_empty(),
            Slots::Many(many) => many.is_empty(),
        }
    }

    pub(super) fn get(&self, key: &SubKey) -> Option<&Slot> {
        match self {
            Slots::Few(few) => find(few, key).ok().map(|at| &few[at].1),
            Slots::Many(many) => many.get(key),
        }
    }

    pub(super) fn get_mut(&mut self, key: &SubKey) -> Option<&mut Slot> {
        match self {
            Slots::Few(few) => find(few, key).ok().map(|at| &mut few[at].1),
            Slots::Many(many) => many.get_mut(key),
        }
    }

    pub(super) fn contains_key(&self, key: &SubKey) -> bool {
        self.get(key).is_some()
    }

    /// Looks for a key once, whether it is there or comes.
    pub(super) fn place(&mut self, key: SubKey) -> SlotEntry<'_> {
        if let Slots::Few(few) = self
            && few.len() >= FEW
            && find(few, &key).is_err()
        {
            *self = Slots::Many(std::mem::take(few).into_iter().collect());
        }
        match self {
            Slots::Few(few) => match find(few, &key) {
                Ok(at) => SlotEntry::Taken(&mut few[at].1),
                Err(at) => SlotEntry::Free(Vacant::Few(few, at, key)),
            },
            Slots::Many(many) => match many.entry(key) {
                Entry::Occupied(there) => SlotEntry::Taken(there.into_mut()),
                Entry::Vacant(place) => SlotEntry::Free(Vacant::Many(place)),
            },
        }
    }

    pub(super) fn insert(&mut self, key: SubKey, slot: Slot) {
        match self.place(key) {
            SlotEntry::Taken(there) => *there = slot,
            SlotEntry::Free(place) => place.fill(slot),
        }
    }

    pub(super) fn remove(&mut self, key: &SubKey) -> Option<Slot> {
        match self {
            Slots::Few(few) => find(few, key).ok().map(|at| few.remove(at).1),
            Slots::Many(many) => many.remove(key),
        }
    }

    /// The first at or behind `key`.
    pub(super) fn at_or_after(&self, key: &SubKey) -> Option<(&SubKey, &Slot)> {
        self.from(key).next()
    }

    /// The last at or before `key`.
    pub(super) fn at_or_before(&self, key: &SubKey) -> Option<(&SubKey, &Slot)> {
        match self {
            Slots::Few(few) => {
                let behind = few.partition_point(|(there, _)| there <= key);
                behind.checked_sub(1).map(|at| (&few[at].0, &few[at].1))
            }
            // What comes last is mostly what is asked for, and a range is looked for from both ends.
            Slots::Many(many) => match many.last_key_value() {
                Some((last, slot)) if last <= key => Some((last, slot)),
                _ => many.range(..=*key).next_back(),
            },
        }
    }

    /// Those from `key` on.
    pub(super) fn from(&self, key: &SubKey) -> impl Iterator<Item = (&SubKey, &Slot)> {
        let (few, many) = match self {
            Slots::Few(few) => (&few[find(few, key).unwrap_or_else(|at| at)..], None),
            Slots::Many(many) => (&[][..], Some(many.range(*key..))),
        };
        let all = few.iter().map(|(key, slot)| (key, slot)).chain(many.into_iter().flatten());
        #[cfg(test)]
        let all = all.inspect(|_| LOOKED_AT.set(LOOKED_AT.get() + 1));
        all
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SubKey, &Slot)> {
        self.from(&(0, 0))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Slot> {
        self.iter().map(|(_, slot)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::Base;
    use super::*;

    fn slot(value: u8) -> Slot {
        Slot { value: Some(Box::new([value])), base: Base::Absent, spread: false }
    }

    /// Held against a plain map, from nothing to many and back, in a mixed order.
    #[test]
    fn few_and_many_are_the_same() {
        let (mut slots, mut plain) = (Slots::default(), BTreeMap::new());
        let key = |n: u64| ((n % 3) as u8, n * 7919 % 41);
        for n in 0..40 {
            slots.insert(key(n), slot(n as u8));
            plain.insert(key(n), slot(n as u8));
            agree(&slots, &plain);
        }
        assert!(matches!(slots, Slots::Many(_)));
        for n in 0..40 {
            assert_eq!(slots.remove(&key(n)), plain.remove(&key(n)));
            agree(&slots, &plain);
        }
        assert!(slots.is_empty());
    }

    #[test]
    fn few_are_taken_out_and_found_as_many_are() {
        let (mut slots, mut plain) = (Slots::default(), BTreeMap::new());
        for n in [5, 1, 9, 3, 9, 7] {
            slots.insert((1, n), slot(n as u8));
            plain.insert((1, n), slot(n as u8));
        }
        assert!(matches!(slots, Slots::Few(_)));
        agree(&slots, &plain);
        slots.get_mut(&(1, 3)).unwrap().value = None;
        plain.get_mut(&(1, 3)).unwrap().value = None;
        assert_eq!(slots.remove(&(1, 5)), plain.remove(&(1, 5)));
        assert_eq!(slots.remove(&(1, 6)), None);
        agree(&slots, &plain);
    }

    fn agree(slots: &Slots, plain: &BTreeMap<SubKey, Slot>) {
        assert!(slots.iter().eq(plain.iter()));
        assert_eq!(slots.is_empty(), plain.is_empty());
        for key in (0..4).flat_map(|kind| (0..42).map(move |offset| (kind, offset))) {
            assert_eq!(slots.get(&key), plain.get(&key));
            assert_eq!(slots.contains_key(&key), plain.contains_key(&key));
            assert_eq!(slots.at_or_after(&key), plain.range(key..).next());
            assert_eq!(slots.at_or_before(&key), plain.range(..=key).next_back());
        }
    }
}
