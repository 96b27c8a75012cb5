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

use super::items::{ItemDelta, Object, shard_of};
use super::watch::SubKey;
use btrfs_disk::{Key, TreeId};
use std::collections::BTreeMap;

/// Of one object.
#[derive(Default)]
pub(super) struct Bare {
    /// Both ends are in it; apart from each other.
    runs: BTreeMap<SubKey, SubKey>,
    /// Items that were put since this is here.
    puts: u64,
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
    fn add(&mut self, (kind, mut start): SubKey, mut end: u64) {
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

impl Object {
    /// The last key at or before `key` that is in no run; `key`, if there is none.
    pub(super) fn in_front_of_bare(&self, key: &Key) -> Key {
        let run = self.bare.as_ref().and_then(|bare| bare.around((key.kind, key.offset)));
        let before =
            run.and_then(|((kind, start), _)| before(&Key::new(key.objectid, kind, start)));
        before.unwrap_or(*key)
    }

    /// The first key at or behind `key` that is in no run; `key`, if there is none.
    pub(super) fn behind_bare(&self, key: &Key) -> Key {
        let run = self.bare.as_ref().and_then(|bare| bare.around((key.kind, key.offset)));
        let behind = run.and_then(|(_, (kind, end))| Key::new(key.objectid, kind, end).successor());
        behind.filter(|behind| behind.objectid == key.objectid).unwrap_or(*key)
    }
}

/// The next smaller key of the same object.
pub fn before(key: &Key) -> Option<Key> {
    match key.offset.checked_sub(1) {
        Some(offset) => Some(Key { offset, ..*key }),
        None => key.kind.checked_sub(1).map(|kind| Key { kind, offset: u64::MAX, ..*key }),
    }
}

impl ItemDelta {
    /// What somebody sees of an object from now on may be remembered, with the number that this answers. `None`: the
    /// delta says nothing of the object.
    pub fn look(&self, tree: TreeId, objectid: u64) -> Option<u64> {
        self.with_known(tree, objectid, |object| object.bare.get_or_insert_default().puts)
    }

    /// Whether it says anything of the object.
    pub fn knows(&self, tree: TreeId, objectid: u64) -> bool {
        self.with_known(tree, objectid, |_| ()).is_some()
    }

    /// Under the keys from `first` to `last`, which are of one kind, who looked since saw nothing.
    pub fn remember_bare(&self, tree: TreeId, look: u64, first: &Key, last: &Key) {
        let mut shard = self.shards[shard_of(tree, first.objectid)].lock();
        let object = shard.objects.get_mut(&(tree, first.objectid));
        if let Some(bare) = object.and_then(|object| object.bare.as_mut())
            && bare.puts == look
        {
            bare.add((first.kind, first.offset), last.offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Base;
    use super::*;
    use btrfs_disk::Generation;
    use btrfs_disk::key::kind::{DIR_INDEX, EXTENT_DATA};
    use std::collections::BTreeSet;

    const T: TreeId = TreeId::FS;

    fn key(offset: u64) -> Key {
        Key::new(300, EXTENT_DATA, offset)
    }

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

    /// Of an object that has deleted items from 10 to 19.
    fn delta() -> ItemDelta {
        let delta = ItemDelta::new(Generation(1));
        delta.edit(T, 300, |o| (10..20).for_each(|at| o.delete(EXTENT_DATA, at)));
        delta
    }

    #[test]
    fn who_looks_next_goes_around() {
        let delta = delta();
        let look = delta.look(T, 300).expect("it is known");
        delta.remember_bare(T, look, &key(10), &key(18));
        let next = delta.next(T, &key(12));
        assert_eq!((next.at, next.found), (key(19), Some((key(19), None))));
        assert_eq!(delta.next(T, &key(5)).at, key(5));
        let previous = delta.previous(T, &key(18));
        assert_eq!((previous.at, previous.found), (key(9), None));
        delta.edit(T, 300, |o| o.put(EXTENT_DATA, 14, [1].into(), Base::Possible));
        assert_eq!(delta.next(T, &key(12)).found, Some((key(14), Some([1].into()))));
        assert_eq!(delta.previous(T, &key(18)).found, Some((key(14), Some([1].into()))));
        delta.remember_bare(T, look + 1, &key(0), &key(9));
        let first = delta.previous(T, &key(5)).at;
        assert_eq!(first, Key::new(300, EXTENT_DATA - 1, u64::MAX));
        assert!(first.kind >= DIR_INDEX, "no kind is passed over");
    }

    #[test]
    fn what_was_seen_before_an_item_came_is_not_remembered() {
        let delta = delta();
        assert!(delta.look(T, 301).is_none());
        let look = delta.look(T, 300).expect("it is known");
        delta.edit(T, 300, |o| o.put(EXTENT_DATA, 14, [1].into(), Base::Possible));
        delta.remember_bare(T, look, &key(10), &key(19));
        assert_eq!(delta.next(T, &key(12)).found, Some((key(12), None)));
    }

    /// Else somebody who began before would find the same number in another one.
    #[test]
    fn an_object_that_somebody_looks_at_stays() {
        let delta = ItemDelta::new(Generation(1));
        let put = |at| delta.edit(T, 300, |o| o.put(EXTENT_DATA, at, [1].into(), Base::Absent));
        let delete = |at| delta.edit(T, 300, |o| o.delete(EXTENT_DATA, at));
        put(1);
        let look = delta.look(T, 300).expect("it is known");
        delete(1);
        delta.look(T, 300).expect("it is known still");
        put(2);
        delta.remember_bare(T, look, &key(0), &key(9));
        assert_eq!(delta.next(T, &key(0)).found, Some((key(2), Some([1].into()))));
        assert!(!delta.is_empty());
        delete(2);
        assert!(delta.is_empty());
        assert!(delta.objects(|| ()).is_empty());
    }
}
