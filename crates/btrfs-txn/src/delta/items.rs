//! Changed items, sharded by the object they belong to.
//!
//! All items of one object (an inode, mostly) live together, so that one lock covers what
//! an operation changes of it.

use super::bare::Bare;
use super::slot::{Base, Slot, SubKey};
use super::slots::{SlotEntry, Slots};
use super::touched::TouchedTrees;
use super::watch::{Watch, is_ref};
use crate::budget::Changes;
use crate::object::ObjectId;
use btrfs_disk::key::kind;
use btrfs_disk::node::ITEM_SIZE;
use btrfs_disk::{Generation, Key, TreeId};
use locks::{Mutex, Rank};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Several times as many as threads that may change objects at once: a thread that is stopped with
/// one held makes all wait who come there (`spinney-bench contention`: with 64 shards 64 threads
/// waited twice as often).
const SHARDS: usize = 256;
/// What a slot costs beside its bytes, roughly.
/// Chosen, not measured.
pub(super) const SLOT_COST: u64 = 64;

/// What one object's number costs in a list of the log's.
pub(super) const NUMBER_COST: u64 = size_of::<(TreeId, u64)>() as u64;

#[derive(Default)]
pub(super) struct Object {
    pub items: Slots,
    /// Made in this epoch: none of its keys exist below.
    pub born: bool,
    /// For the tree log: it went to another directory, or something that the log did not have
    /// went from it to another.
    pub moved: bool,
    /// For the tree log; `None`: it never asked, and there are no gaps.
    pub watch: Option<Box<Watch>>,
    /// `None`: nobody has passed over much of what was deleted.
    pub(super) bare: Option<Box<Bare>>,
}

#[derive(Default)]
pub(super) struct Shard {
    pub objects: FxHashMap<(TreeId, u64), Object>,
    /// Objects whose names changed while something was watched.
    pub(super) renamed: Vec<(TreeId, u64)>,
    /// Objects that a rename took out of a directory that the log has with its entries.
    pub(super) left_log: Vec<(TreeId, u64)>,
}

/// A changed key of an object, and its item; `None`: deleted.
pub type Changed = (Key, Option<Box<[u8]>>);

/// What a delta has beside a key.
pub struct Beside {
    /// From there on it was looked, and the layers below are to be; between the key and that nothing is.
    pub at: Key,
    /// The first one.
    pub found: Option<Changed>,
}

impl Beside {
    fn of(at: Key, slot: Option<(&SubKey, &Slot)>) -> Beside {
        let found = slot.map(|(&(kind, offset), slot)| {
            (Key::new(at.objectid, kind, offset), slot.value.clone())
        });
        Beside { at, found }
    }
}

/// Items that changed, by tree, object and key.
pub struct ItemDelta {
    /// The tree log has taken something in this epoch.
    pub(super) watched: AtomicBool,
    pub(super) shards: Box<[Mutex<Shard>]>,
    pub(super) bytes: AtomicU64,
    /// Bytes of the log's notes: they come with operations that change no more items, too.
    pub(super) notes: AtomicU64,
    pub(super) slots: AtomicU64,
    pub(super) spread: AtomicU64,
    pub(super) touched: TouchedTrees,
    /// Keys that the commit will put or delete beside those that are here.
    pub(super) owed: AtomicU64,
    /// The tree in which an object was born last; see `spread`.
    pub(super) birthplace: AtomicU64,
}

pub(super) fn shard_of(tree: TreeId, objectid: u64) -> usize {
    ObjectId::new(tree, objectid).shard(SHARDS)
}

impl ItemDelta {
    /// Of the epoch `generation`.
    pub fn new(generation: Generation) -> ItemDelta {
        let number = u128::from(generation.0);
        ItemDelta {
            watched: AtomicBool::new(false),
            shards: (0..SHARDS)
                .map(|_| Mutex::numbered(Rank::DeltaItems, number, Shard::default()))
                .collect(),
            bytes: AtomicU64::new(0),
            notes: AtomicU64::new(0),
            slots: AtomicU64::new(0),
            spread: AtomicU64::new(0),
            touched: TouchedTrees::default(),
            owed: AtomicU64::new(0),
            birthplace: AtomicU64::new(0),
        }
    }

    /// True if no item changed.
    pub fn is_empty(&self) -> bool {
        self.slots() == 0
    }

    /// Gives its memory back, calling `rest` now and then.
    pub fn free(self, mut rest: impl FnMut()) {
        self.shards.into_iter().for_each(|shard| {
            drop(shard);
            rest();
        });
    }

    /// As `edit_in_run`, not in a run.
    #[cfg(test)]
    pub fn edit<T>(
        &self,
        tree: TreeId,
        objectid: u64,
        edit: impl FnOnce(&mut ObjectEdit<'_>) -> T,
    ) -> T {
        self.edit_in_run(tree, objectid, None, edit).0
    }

    /// Runs `edit` on the items of one object under its shard's lock. `run`: how many places
    /// more the changes are, if they are part of one run of keys, between which no other key
    /// stays. Answers what changed, too.
    pub fn edit_in_run<T>(
        &self,
        tree: TreeId,
        objectid: u64,
        run: Option<&Cell<u32>>,
        edit: impl FnOnce(&mut ObjectEdit<'_>) -> T,
    ) -> (T, Changes) {
        let mut shard = self.shards[shard_of(tree, objectid)].lock();
        let object = shard.objects.entry((tree, objectid)).or_default();
        let noted = object.noted();
        let mut edit_object = ObjectEdit::new(object, run);
        let result = edit(&mut edit_object);
        let ObjectEdit { bytes, new_bytes, slots, mut spread, renamed, birth, .. } = edit_object;
        let mut notes = object.noted() as i64 - noted as i64;
        if object.items.is_empty() && object.watch.is_none() && object.bare.is_none() {
            shard.objects.remove(&(tree, objectid));
        }
        if renamed && self.watched.load(Ordering::Relaxed) {
            shard.renamed.push((tree, objectid));
            notes += NUMBER_COST as i64;
        }
        self.touched.add(tree);
        // Before anybody else comes to the object: what he takes away was counted then.
        self.count_notes(notes);
        if birth && self.birthplace.load(Ordering::Relaxed) != tree.0 {
            self.birthplace.store(tree.0, Ordering::Relaxed);
            spread += 1;
        }
        // Lines that all threads share: what does not change is left alone.
        for (count, more) in [(&self.bytes, bytes), (&self.slots, slots), (&self.spread, spread)] {
            if more != 0 {
                count.fetch_add(more as u64, Ordering::Relaxed);
            }
        }
        drop(shard);
        (result, Changes { places: spread, bytes: new_bytes })
    }

    /// `None`: the delta says nothing about `key`. `Some(None)`: it does not exist.
    pub fn get(&self, tree: TreeId, key: &Key) -> Option<Option<Box<[u8]>>> {
        let shard = self.shards[shard_of(tree, key.objectid)].lock();
        let object = shard.objects.get(&(tree, key.objectid))?;
        match object.items.get(&(key.kind, key.offset)) {
            Some(slot) => Some(slot.value.clone()),
            None if object.born => Some(None),
            None => None,
        }
    }

    /// True if `objectid` was made in this epoch: nothing of it lies in a lower layer.
    pub fn is_born(&self, tree: TreeId, objectid: u64) -> bool {
        let shard = self.shards[shard_of(tree, objectid)].lock();
        shard.objects.get(&(tree, objectid)).is_some_and(|object| object.born)
    }

    /// The first changed key at or behind `from`, or behind what is known to be bare there.
    pub fn next(&self, tree: TreeId, from: &Key) -> Beside {
        let shard = self.shards[shard_of(tree, from.objectid)].lock();
        let Some(object) = shard.objects.get(&(tree, from.objectid)) else {
            return Beside { at: *from, found: None };
        };
        let at = object.behind_bare(from);
        Beside::of(at, object.items.at_or_after(&(at.kind, at.offset)))
    }

    /// The last changed key at or before `from`, or in front of what is known to be bare there.
    pub fn previous(&self, tree: TreeId, from: &Key) -> Beside {
        let shard = self.shards[shard_of(tree, from.objectid)].lock();
        let Some(object) = shard.objects.get(&(tree, from.objectid)) else {
            return Beside { at: *from, found: None };
        };
        let at = object.in_front_of_bare(from);
        Beside::of(at, object.items.at_or_before(&(at.kind, at.offset)))
    }

    /// The last changed key at or before `from`, whatever is known to be bare: what was deleted counts.
    pub fn changed_before(&self, tree: TreeId, from: &Key) -> Option<Key> {
        let shard = self.shards[shard_of(tree, from.objectid)].lock();
        let object = shard.objects.get(&(tree, from.objectid))?;
        Beside::of(*from, object.items.at_or_before(&(from.kind, from.offset)))
            .found
            .map(|found| found.0)
    }

    /// The object ids that each tree has changes of, ascending, calling `rest` now and then.
    /// Sealed deltas only.
    pub fn objects(&self, mut rest: impl FnMut()) -> BTreeMap<TreeId, Vec<u64>> {
        let mut all: BTreeMap<TreeId, Vec<u64>> = BTreeMap::new();
        for shard in &self.shards {
            let shard = shard.lock();
            for ((tree, objectid), _) in shard.objects.iter().filter(|(_, o)| !o.items.is_empty()) {
                all.entry(*tree).or_default().push(*objectid);
            }
            drop(shard);
            rest();
        }
        all.values_mut().for_each(|ids| ids.sort_unstable());
        all
    }

    /// Shows at most `most` slots of an object at or behind `from`, in key order, under its shard's lock;
    /// answers the key behind the last, if there may be more. Sealed deltas only: nothing
    /// changes between two calls.
    pub fn visit(
        &self,
        tree: TreeId,
        from: &Key,
        most: usize,
        mut show: impl FnMut(Key, Option<&[u8]>),
    ) -> Option<Key> {
        let shard = self.shards[shard_of(tree, from.objectid)].lock();
        let object = shard.objects.get(&(tree, from.objectid))?;
        let mut left = most;
        for (&(kind, offset), slot) in object.items.from(&(from.kind, from.offset)) {
            let key = Key::new(from.objectid, kind, offset);
            if left == 0 {
                return Some(key);
            }
            show(key, slot.value.as_deref());
            left -= 1;
        }
        None
    }

    /// The object, made if the delta says nothing of it.
    pub(super) fn with_object<T>(
        &self,
        tree: TreeId,
        objectid: u64,
        use_it: impl FnOnce(&mut Object) -> T,
    ) -> T {
        let mut shard = self.shards[shard_of(tree, objectid)].lock();
        use_it(shard.objects.entry((tree, objectid)).or_default())
    }

    /// `None` where the delta says nothing of the object.
    pub(super) fn with_known<T>(
        &self,
        tree: TreeId,
        objectid: u64,
        use_it: impl FnOnce(&mut Object) -> T,
    ) -> Option<T> {
        let mut shard = self.shards[shard_of(tree, objectid)].lock();
        shard.objects.get_mut(&(tree, objectid)).map(use_it)
    }
}

/// The items of one object, locked.
pub struct ObjectEdit<'a> {
    object: &'a mut Object,
    run: Option<&'a Cell<u32>>,
    bytes: i64,
    /// Of items that no lower layer has, with their headers.
    new_bytes: i64,
    slots: i64,
    spread: i64,
    /// Names of the object changed, or it is gone.
    renamed: bool,
    /// It was born in this edit.
    birth: bool,
}

impl<'a> ObjectEdit<'a> {
    fn new(object: &'a mut Object, run: Option<&'a Cell<u32>>) -> ObjectEdit<'a> {
        let (bytes, new_bytes, slots, spread) = (0, 0, 0, 0);
        let (renamed, birth) = (false, false);
        ObjectEdit { object, run, bytes, new_bytes, slots, spread, renamed, birth }
    }

    /// Whether a new slot lies beside one that is there: see `ItemDelta::spread`.
    fn lies_close(&self, item: u8, base: Base) -> bool {
        let is_index = item == kind::DIR_INDEX && base == Base::Absent;
        self.object.born || is_index && self.new_index().is_some()
    }

    /// Of a run of keys the first few changes are places; the others lie between them.
    fn takes_place(run: Option<&Cell<u32>>) -> bool {
        let Some(left) = run else { return true };
        let one_less = left.get().checked_sub(1);
        left.set(one_less.unwrap_or(0));
        one_less.is_some()
    }

    /// A new name of a directory by index.
    fn new_index(&self) -> Option<SubKey> {
        let (key, slot) = self.object.items.at_or_before(&(kind::DIR_INDEX, u64::MAX))?;
        (key.0 == kind::DIR_INDEX && slot.base == Base::Absent).then_some(*key)
    }

    /// The object did not exist before this epoch. Put its first item in the same edit.
    pub fn mark_born(&mut self) {
        debug_assert!(self.object.items.is_empty());
        self.object.born = true;
        self.birth = true;
    }

    /// Content may have become a hole where holes have no items of their own.
    pub fn note_gap(&mut self, start: u64, end: u64) {
        if !self.object.born && start < end {
            self.object.watch.get_or_insert_default().gaps.push((start, end));
        }
    }

    /// `other` takes the place of this object under a name, in the same operation.
    pub fn follow(&mut self, other: u64) {
        self.object.watch.get_or_insert_default().followers.push(other);
    }

    /// The object went to another directory, or something went from it to another.
    pub fn moved(&mut self) {
        self.object.moved = true;
    }

    /// A rename takes `other`, which no commit has, out of this directory.
    pub fn leave(&mut self, other: u64) {
        self.object.watch.get_or_insert_default().left.push(other);
    }

    fn note(&mut self, kind: u8, offset: u64, gone: bool) {
        self.renamed |= is_ref(kind) || gone && kind == kind::INODE_ITEM;
        if let Some(watch) = &mut self.object.watch {
            watch.note(kind, offset);
        }
    }

    /// Sets an item of this object; `base` is what the trees have of the key.
    pub fn put(&mut self, kind: u8, offset: u64, value: Box<[u8]>, base: Base) {
        self.note(kind, offset, false);
        if let Some(bare) = &mut self.object.bare {
            bare.cut((kind, offset));
        }
        let len = value.len() as i64;
        self.bytes += len;
        let close = self.lies_close(kind, base);
        let place = match self.object.items.place((kind, offset)) {
            SlotEntry::Taken(slot) => {
                let old = slot.value.replace(value).map_or(0, |v| v.len() as i64);
                self.bytes -= old;
                if slot.base == Base::Absent {
                    self.new_bytes += len - old;
                }
                return;
            }
            SlotEntry::Free(place) => place,
        };
        let spread = !close && Self::takes_place(self.run);
        let base = if self.object.born { Base::Absent } else { base };
        if base == Base::Absent {
            self.new_bytes += len + ITEM_SIZE as i64;
        }
        place.fill(Slot { value: Some(value), base, spread });
        self.slots += 1;
        self.spread += i64::from(spread);
    }

    /// The first of a directory's new names by index goes: another one stands for the place.
    fn hand_over(&mut self, item: u8) -> bool {
        let heir = if item == kind::DIR_INDEX { self.new_index() } else { None };
        heir.and_then(|key| self.object.items.get_mut(&key))
            .map(|slot| slot.spread = true)
            .is_some()
    }

    /// Takes an item of this object away.
    pub fn delete(&mut self, kind: u8, offset: u64) {
        self.note(kind, offset, true);
        match self.object.items.get_mut(&(kind, offset)) {
            Some(slot) if slot.base == Base::Absent => self.unmake(kind, offset),
            Some(slot) => self.bytes -= slot.value.take().map_or(0, |old| old.len() as i64),
            None if self.object.born => {}
            None => {
                let spread = !self.lies_close(kind, Base::Possible) && Self::takes_place(self.run);
                let slot = Slot { value: None, base: Base::Possible, spread };
                self.object.items.insert((kind, offset), slot);
                self.slots += 1;
                self.spread += i64::from(spread);
            }
        }
    }

    /// An item that no lower layer has goes, and leaves nothing.
    fn unmake(&mut self, kind: u8, offset: u64) {
        let Some(old) = self.object.items.remove(&(kind, offset)) else { return };
        let len = old.value.map_or(0, |v| v.len() as i64);
        self.bytes -= len;
        self.new_bytes -= len + ITEM_SIZE as i64;
        self.slots -= 1;
        self.spread -= i64::from(old.spread && !self.hand_over(kind));
    }
}

#[cfg(test)]
mod tests {
    use super::super::watch::{Ask, Level};
    use super::*;

    const T: TreeId = TreeId::FS;

    fn bytes(b: u8) -> Box<[u8]> {
        vec![b; 3].into()
    }

    #[test]
    fn what_is_born_and_gone_leaves_nothing() {
        let delta = ItemDelta::new(Generation(1));
        delta.edit(T, 300, |o| {
            o.mark_born();
            o.put(1, 0, bytes(1), Base::Possible);
            o.put(12, 256, bytes(2), Base::Possible);
        });
        delta.edit(T, 256, |o| o.put(84, 7, bytes(3), Base::Absent));
        assert_eq!(delta.slots(), 3);
        delta.edit(T, 300, |o| {
            o.delete(1, 0);
            o.delete(12, 256);
        });
        delta.edit(T, 256, |o| o.delete(84, 7));
        assert!(delta.is_empty());
        assert_eq!(delta.bytes(), 0);
        assert!(delta.objects(|| ()).is_empty());
    }

    /// Whoever does the same again and again changes no more items, but is to come to a commit.
    #[test]
    fn notes_of_the_log_count_as_memory() {
        let delta = ItemDelta::new(Generation(1));
        let ask = Ask {
            level: Level::Entries,
            whole: false,
            entries: false,
            content: false,
            names: false,
        };
        delta.freeze(T, 256, ask);
        let change = |times| {
            for n in 0..times {
                delta.edit(T, 256, |o| {
                    o.put(kind::INODE_REF, 256, bytes(1), Base::Possible);
                    o.note_gap(n, n + 1);
                    o.follow(n);
                    o.leave(n);
                });
                delta.leaves_log(T, 256);
            }
        };
        change(1);
        let before = delta.bytes();
        change(1000);
        let grown = delta.bytes() - before;
        assert_eq!((delta.slots(), grown), (1, 1000 * (32 + 2 * NUMBER_COST)));
        let names = (delta.take_renamed().len(), delta.take_left().len());
        assert_eq!((names, before + grown - delta.bytes()), ((1001, 1001), 2002 * NUMBER_COST));
        let changed = delta.bytes();
        delta.freeze(T, 256, ask);
        assert_eq!(changed - delta.bytes(), 32, "the changed key was taken");
    }

    /// Else it were so much that all wait for a commit.
    #[test]
    fn what_goes_was_counted_when_it_came() {
        let delta = ItemDelta::new(Generation(1));
        delta.watch_names();
        let change = |here: u8| {
            for n in 0..100_000 {
                match (n + u32::from(here)) % 2 {
                    0 => delta.edit(T, 256, |o| o.put(84, 7, bytes(3), Base::Absent)),
                    _ => delta.edit(T, 256, |o| o.delete(84, 7)),
                }
                let (slots, bytes) = (delta.slots(), delta.bytes());
                assert!(slots < 1 << 32 && bytes < 1 << 32, "{slots} slots, {bytes} bytes");
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|here| _ = scope.spawn(move || change(here))));
    }

    #[test]
    fn deleting_what_lies_below_leaves_a_tombstone() {
        let delta = ItemDelta::new(Generation(1));
        delta.edit(T, 256, |o| o.put(84, 7, bytes(3), Base::Possible));
        delta.edit(T, 256, |o| o.delete(84, 7));
        delta.edit(T, 256, |o| o.delete(96, 2));
        assert_eq!(delta.get(T, &Key::new(256, 84, 7)), Some(None));
        assert_eq!(delta.get(T, &Key::new(256, 96, 2)), Some(None));
        assert_eq!(delta.get(T, &Key::new(256, 96, 3)), None);
        assert_eq!(delta.slots(), 2);
    }

    #[test]
    fn neighbours_are_found_in_both_directions() {
        let delta = ItemDelta::new(Generation(1));
        delta.edit(T, 256, |o| {
            o.put(96, 2, bytes(1), Base::Absent);
            o.put(96, 9, bytes(2), Base::Absent);
        });
        let key = |offset| Key::new(256, 96, offset);
        assert_eq!(delta.next(T, &key(3)).found.unwrap().0, key(9));
        assert_eq!(delta.previous(T, &key(8)).found.unwrap().0, key(2));
        assert!(delta.next(T, &key(10)).found.is_none());
    }

    #[test]
    fn an_object_is_shown_in_steps() {
        let delta = ItemDelta::new(Generation(1));
        delta.edit(T, 256, |o| (0..50).for_each(|n| o.put(96, n, bytes(n as u8), Base::Absent)));
        delta.edit(T, 256, |o| o.delete(84, 3));
        for step in [1, 7, 51, 100] {
            let (mut seen, mut next) = (Vec::new(), Some(Key::new(256, 0, 0)));
            while let Some(from) = next {
                let before = seen.len();
                next = delta.visit(T, &from, step, |key, value| seen.push((key, value.is_some())));
                assert!(seen.len() - before <= step);
            }
            let names = (0..50).map(|n| (Key::new(256, 96, n), true));
            let all: Vec<_> = [(Key::new(256, 84, 3), false)].into_iter().chain(names).collect();
            assert_eq!(seen, all, "{step} at a time");
        }
        assert!(delta.visit(T, &Key::new(257, 0, 0), 9, |_, _| panic!("nothing")).is_none());
    }
}
