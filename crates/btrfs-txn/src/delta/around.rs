//! Looks at a delta that go around runs of keys under which nothing is (`bare`), and leave word of them.

use super::bare::before;
use super::items::{ItemDelta, Object, shard_of};
use btrfs_disk::{Key, TreeId};

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

    const T: TreeId = TreeId::FS;

    fn key(offset: u64) -> Key {
        Key::new(300, EXTENT_DATA, offset)
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
        assert_eq!(delta.changed_before(T, &key(15)), Some(key(15)), "whoever went around");
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
