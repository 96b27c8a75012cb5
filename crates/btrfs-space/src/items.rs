//! Ordered items of one tree, as the rule parts of this crate need them.
//!
//! The rules (references, free space) are written against [`Items`] and answer with
//! [`Changes`]; so they run the same on a tree of a volume and on a map in a test.
//! What they do not know: nodes, who applies the changes.

use btrfs_disk::{Key, Result};
use btrfs_tree::{Cursor, NodeReader, TreeRoot};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// What becomes of one item: its new data, or `None` where it goes.
pub type Change = (Key, Option<Box<[u8]>>);
/// Changes of one tree by ascending key, no key twice.
pub type Changes = Vec<Change>;

/// One tree's items, to be asked by key. Errors are those of reading it.
pub trait Items {
    /// The first item whose key is `key` or larger.
    fn at_or_after(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>>;

    /// The last item whose key is `key` or smaller.
    fn at_or_before(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>>;

    /// Calls `each` with all items of `from..=to` in order.
    fn scan(
        &mut self,
        from: Key,
        to: Key,
        each: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut next = Some(from);
        while let Some(key) = next {
            match self.at_or_after(&key)? {
                Some((found, data)) if found <= to => {
                    each(found, &data)?;
                    next = found.successor();
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// The data of the item that has this very key.
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.at_or_after(key)?.filter(|(found, _)| found == key).map(|(_, data)| data))
    }
}

impl Items for BTreeMap<Key, Vec<u8>> {
    fn at_or_after(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        Ok(self.range(*key..).next().map(|(key, data)| (*key, data.clone())))
    }

    fn at_or_before(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        Ok(self.range(..=*key).next_back().map(|(key, data)| (*key, data.clone())))
    }
}

/// Items of a tree, read through a cursor.
pub struct TreeItems<'r, R: ?Sized> {
    cursor: Cursor<'r, R>,
}

impl<'r, R: NodeReader + ?Sized> TreeItems<'r, R> {
    /// Of the tree below `root`; nothing is read before the first question.
    pub fn new(reader: &'r R, root: &TreeRoot) -> TreeItems<'r, R> {
        TreeItems { cursor: Cursor::new(reader, root) }
    }
}

impl<R: NodeReader + ?Sized> Items for TreeItems<'_, R> {
    fn at_or_after(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        self.cursor.seek(key)?;
        Ok(self.cursor.item().map(|(key, data)| (key, data.to_vec())))
    }

    fn at_or_before(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        self.cursor.seek_back(key)?;
        Ok(self.cursor.item().map(|(key, data)| (key, data.to_vec())))
    }

    fn scan(
        &mut self,
        from: Key,
        to: Key,
        each: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.cursor.seek(&from)?;
        while let Some((key, data)) = self.cursor.item().filter(|(key, _)| *key <= to) {
            each(key, data)?;
            self.cursor.next()?;
        }
        Ok(())
    }
}

/// No items: what is known to be absent from a tree.
pub(crate) struct NoItems;

impl Items for NoItems {
    fn at_or_after(&mut self, _: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        Ok(None)
    }

    fn at_or_before(&mut self, _: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        Ok(None)
    }
}

/// Items with changes on top that nobody has applied yet.
///
/// Invariants: `again` has every key that was changed more than once; such a change may
/// be none in the end. No item is in `bare`.
pub(crate) struct Overlay<'a> {
    base: &'a mut dyn Items,
    changes: BTreeMap<Key, Option<Box<[u8]>>>,
    again: BTreeSet<Key>,
    /// Behind the one key, and up to the other: where the last look back went over what was deleted. Changes ascend, so
    /// the next one comes there again.
    bare: Option<(Key, Key)>,
}

impl<'a> Overlay<'a> {
    pub(crate) fn new(base: &'a mut dyn Items) -> Overlay<'a> {
        Overlay { base, changes: BTreeMap::new(), again: BTreeSet::new(), bare: None }
    }

    pub(crate) fn put(&mut self, key: Key, data: Vec<u8>) {
        if let Some((low, high)) = &mut self.bare
            && *low < key
            && key <= *high
        {
            *low = key;
        }
        self.change(key, Some(data.into_boxed_slice()));
    }

    pub(crate) fn delete(&mut self, key: Key) {
        self.change(key, None);
    }

    fn change(&mut self, key: Key, data: Option<Box<[u8]>>) {
        if self.changes.insert(key, data).is_some() {
            self.again.insert(key);
        }
    }

    /// What is to be done to the items below, and nothing that leaves them as they are.
    pub(crate) fn into_changes(mut self) -> Result<Changes> {
        for key in std::mem::take(&mut self.again) {
            let before = self.base.get(&key)?;
            if self.changes[&key].as_deref() == before.as_deref() {
                self.changes.remove(&key);
            }
        }
        Ok(self.changes.into_iter().collect())
    }
}

impl Items for Overlay<'_> {
    fn at_or_after(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        let mut from = *key;
        loop {
            let below = self.base.at_or_after(&from)?;
            let mut above = self.changes.range((Bound::Included(from), Bound::Unbounded));
            match (below, above.next()) {
                (below, None) => return Ok(below),
                (Some(below), Some((key, _))) if below.0 < *key => return Ok(Some(below)),
                (_, Some((key, Some(data)))) => return Ok(Some((*key, data.to_vec()))),
                (_, Some((key, None))) => match key.successor() {
                    Some(next) => from = next,
                    None => return Ok(None),
                },
            }
        }
    }

    fn at_or_before(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        let (mut from, mut top, mut is_long) = (*key, *key, false);
        let found = loop {
            if let Some((low, high)) = self.bare.filter(|(low, high)| *low < from && from <= *high)
            {
                (from, top) = (low, top.max(high));
            }
            let below = self.base.at_or_before(&from)?;
            match (below, self.changes.range(..=from).next_back()) {
                (below, None) => break below,
                (Some(below), Some((key, _))) if below.0 > *key => break Some(below),
                (_, Some((key, Some(data)))) => break Some((*key, data.to_vec())),
                (_, Some((key, None))) => match predecessor(key) {
                    Some(next) => (from, is_long) = (next, true),
                    None => break None,
                },
            }
        };
        if let Some((low, _)) = found.as_ref().filter(|_| is_long) {
            self.bare = Some((*low, top));
        }
        Ok(found)
    }
}

/// The next smaller key.
fn predecessor(key: &Key) -> Option<Key> {
    if let Some(offset) = key.offset.checked_sub(1) {
        return Some(Key { offset, ..*key });
    }
    if let Some(kind) = key.kind.checked_sub(1) {
        return Some(Key::new(key.objectid, kind, u64::MAX));
    }
    key.objectid.checked_sub(1).map(|objectid| Key::new(objectid, u8::MAX, u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_hides_adds_and_replaces() {
        let key = |offset| Key::new(1, 1, offset);
        let mut base: BTreeMap<Key, Vec<u8>> =
            [(key(1), vec![1]), (key(3), vec![3]), (key(5), vec![5])].into();
        let mut overlay = Overlay::new(&mut base);
        overlay.delete(key(1));
        overlay.put(key(3), vec![30]);
        overlay.put(key(4), vec![40]);
        let mut seen = Vec::new();
        overlay
            .scan(Key::MIN, Key::MAX, &mut |key, data| {
                seen.push((key.offset, data[0]));
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, [(3, 30), (4, 40), (5, 5)]);
        let mut within = Vec::new();
        let mut note = |found: Key, _: &[u8]| {
            within.push(found.offset);
            Ok(())
        };
        overlay.scan(key(3), key(4), &mut note).unwrap();
        assert_eq!(within, [3, 4], "both ends are of the range");
        let mut before = |offset| {
            let found = overlay.at_or_before(&key(offset)).unwrap();
            found.map(|(key, data)| (key.offset, data[0]))
        };
        assert_eq!(before(9), Some((5, 5)));
        assert_eq!(before(4), Some((4, 40)));
        assert_eq!(before(3), Some((3, 30)));
        assert_eq!(before(2), None);
    }

    /// What is known to be bare is that no longer where an item comes.
    #[test]
    fn looks_back_over_deleted_items_see_what_came_since() {
        let key = |offset| Key::new(1, 1, offset);
        let mut base: BTreeMap<Key, Vec<u8>> = (0..10).map(|i| (key(i), vec![i as u8])).collect();
        let mut overlay = Overlay::new(&mut base);
        let before = |overlay: &mut Overlay<'_>, offset| {
            overlay.at_or_before(&key(offset)).unwrap().map(|(key, _)| key.offset)
        };
        (2..8).for_each(|i| overlay.delete(key(i)));
        assert_eq!(before(&mut overlay, 7), Some(1));
        assert_eq!(before(&mut overlay, 8), Some(8));
        overlay.delete(key(8));
        assert_eq!(before(&mut overlay, 8), Some(1), "also over what joins it");
        overlay.put(key(4), vec![4]);
        assert_eq!(before(&mut overlay, 8), Some(4));
        assert_eq!(before(&mut overlay, 3), Some(1));
        overlay.delete(key(1));
        overlay.delete(key(4));
        assert_eq!(before(&mut overlay, 8), Some(0));
        overlay.put(key(8), vec![8]);
        assert_eq!(before(&mut overlay, 8), Some(8));
        assert_eq!(before(&mut overlay, 7), Some(0));
        overlay.delete(key(0));
        assert_eq!(before(&mut overlay, 7), None);
    }
}
