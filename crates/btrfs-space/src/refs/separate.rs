//! References of one extent that have items of their own.
//!
//! Invariants: data references of one hash follow each other, with gaps where some went, so a holder that
//! is not at its hash may be behind it, by as many keys as hashes met there. Holders are looked for
//! there, one by one, and nothing else of the extent is read: a snapshot of what a million others share costs
//! what the first did. Who looks for many goes by ascending keys ([`by_key`]), and finds most of them in
//! the leaf of the one before.
//!
//! A holder that comes is looked for [`NEAR`] its hash. One that stands further behind, because more hashes than
//! that met there and gaps came in front of it, gets a second item; the kernel gives it one whenever there is a gap.
//! Who drops references looks for the next item until there were enough.
//!
//! What it does not know: inline references and counts of the extent.

use super::owner::RefOwner;
use crate::items::{Change, Items, Overlay};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Key, Result};
use std::borrow::Cow;

/// Keys behind its hash at which a holder is looked for that may have no item. The hashes of one tree's holders
/// differ in 32 bits: of ten million holders hardly four meet anywhere, and two or three others stand so near.
pub(crate) const NEAR: u64 = 1 << 10;
/// For a holder that must have an item.
pub(crate) const ANYWHERE: u64 = u64::MAX;
/// So few are looked for in any order.
/// Chosen, not measured.
const FEW: usize = 8;

/// Where a holder's item is, or would be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RefItem {
    /// With its count.
    Stored(Key, u64),
    Vacant(Key),
}

/// Holders in the order of their items.
pub(crate) fn by_key(owners: &[(RefOwner, i64)]) -> Cow<'_, [(RefOwner, i64)]> {
    if owners.len() <= FEW {
        return Cow::Borrowed(owners);
    }
    let mut sorted = owners.to_vec();
    sorted.sort_by_cached_key(|(owner, _)| (owner.kind(), owner.sequence()));
    Cow::Owned(sorted)
}

pub(crate) struct Separate<'a> {
    extent: u64,
    items: Overlay<'a>,
    /// There is one that was put, and is there still.
    some: bool,
}

impl<'a> Separate<'a> {
    pub(crate) fn new(extent: u64, below: &'a mut dyn Items) -> Separate<'a> {
        Separate { extent, items: Overlay::new(below), some: false }
    }

    /// Looks for the holder at so many keys.
    pub(crate) fn find(&mut self, owner: &RefOwner, within: u64) -> Result<RefItem> {
        let key = Key::new(self.extent, owner.kind(), owner.sequence());
        // All others stand at what they are.
        let window = if matches!(owner, RefOwner::Data { .. }) { within } else { 0 };
        let last = Key { offset: key.offset.saturating_add(window), ..key };
        let (mut from, mut vacant) = (key, None);
        while let Some((at, data)) = self.items.at_or_after(&from)?.filter(|(at, _)| *at <= last) {
            let holder = RefOwner::of_separate(&at, &data)?;
            if let Some((_, count)) = holder.filter(|(holder, _)| holder == owner) {
                return Ok(RefItem::Stored(at, count));
            }
            if at > from {
                vacant = vacant.or(Some(from));
            }
            match at.offset.checked_add(1) {
                Some(next) => from.offset = next,
                None => {
                    let full = || Corrupt::new("no key is left for a reference").key(at);
                    return Ok(RefItem::Vacant(vacant.ok_or_else(full)?));
                }
            }
        }
        Ok(RefItem::Vacant(vacant.unwrap_or(from)))
    }

    pub(crate) fn any(&mut self) -> Result<bool> {
        let (from, to) = (
            Key::new(self.extent, kind::TREE_BLOCK_REF, 0),
            Key::new(self.extent, kind::BLOCK_GROUP_ITEM - 1, u64::MAX),
        );
        Ok(self.some || self.items.at_or_after(&from)?.is_some_and(|(key, _)| key <= to))
    }

    /// The item at `key` says `count` references of `owner`; 0: it goes.
    pub(crate) fn set(&mut self, key: Key, owner: &RefOwner, count: u64) -> Result<()> {
        match count {
            0 => self.items.delete(key),
            _ => self.items.put(key, owner.separate_data(count)?),
        }
        self.some = count > 0;
        Ok(())
    }

    pub(crate) fn into_changes(self) -> Result<Vec<Change>> {
        self.items.into_changes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use btrfs_disk::TreeId;
    use std::collections::BTreeMap;

    const EXTENT: u64 = 1 << 20;
    const MANY: u64 = 50_000;

    /// Counts how often it is asked.
    #[derive(Default)]
    struct Counted {
        items: BTreeMap<Key, Vec<u8>>,
        asked: u64,
    }

    impl Items for Counted {
        fn at_or_after(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
            self.asked += 1;
            self.items.at_or_after(key)
        }

        fn at_or_before(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
            self.asked += 1;
            self.items.at_or_before(key)
        }
    }

    fn holder(n: u64) -> RefOwner {
        RefOwner::Data { root: TreeId(5), ino: 257, offset: n * 4096 }
    }

    fn enter(items: &mut Counted, holders: impl Iterator<Item = u64>) {
        let mut separate = Separate::new(EXTENT, items);
        for n in holders {
            let RefItem::Vacant(key) = separate.find(&holder(n), NEAR).expect("looked for") else {
                panic!("{n} is there already");
            };
            separate.set(key, &holder(n), 1).expect("put");
        }
        for (key, data) in separate.into_changes().expect("changes") {
            items.items.insert(key, data.expect("nothing goes").to_vec());
        }
    }

    #[test]
    fn what_is_changed_is_asked_for_and_nothing_else() {
        let mut items = Counted::default();
        enter(&mut items, 0..MANY);
        assert_eq!(items.items.len() as u64, MANY);
        items.asked = 0;
        enter(&mut items, MANY..MANY + 1000);
        assert!(items.asked <= 2000, "asked {} times", items.asked);
        let mut separate = Separate::new(EXTENT, &mut items);
        for n in 0..MANY + 1000 {
            let found = separate.find(&holder(n), NEAR).expect("looked for");
            assert!(matches!(found, RefItem::Stored(_, 1)), "{n}: {found:?}");
        }
    }

    #[test]
    fn a_holder_behind_a_gap_is_found_and_the_gap_is_vacant() {
        let (mut items, one) = (Counted::default(), holder(1));
        let key = |by: u64| Key::new(EXTENT, one.kind(), one.sequence() + by);
        let put = |items: &mut Counted, by, of: &RefOwner| {
            items.items.insert(key(by), of.separate_data(3).expect("fits"));
        };
        put(&mut items, 0, &holder(2));
        put(&mut items, 1, &holder(3));
        put(&mut items, 4, &one);
        let find = |items: &mut Counted, of: &RefOwner| Separate::new(EXTENT, items).find(of, NEAR);
        let found = find(&mut items, &one).expect("looked for");
        assert!(matches!(found, RefItem::Stored(at, 3) if at == key(4)), "{found:?}");
        items.items.remove(&key(4));
        put(&mut items, 3, &holder(4));
        let found = find(&mut items, &one).expect("looked for");
        assert!(matches!(found, RefItem::Vacant(at) if at == key(2)), "{found:?}");
        put(&mut items, 2 * NEAR, &one);
        let found = find(&mut items, &one).expect("looked for");
        assert!(matches!(found, RefItem::Vacant(at) if at == key(2)), "{found:?}");
        let found = Separate::new(EXTENT, &mut items).find(&one, ANYWHERE).expect("looked for");
        assert!(matches!(found, RefItem::Stored(at, 3) if at == key(2 * NEAR)), "{found:?}");
    }
}
