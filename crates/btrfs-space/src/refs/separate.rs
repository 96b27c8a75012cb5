//! References of one extent that have items of their own.
//!
//! Invariants: a holder stands in one item at most. Data references of one hash follow each other,
//! with gaps where some went, so a holder that is not at its hash may be anywhere behind it: the
//! first that is looked for in vain has all of them read once, and none is searched after that.
//! An extent of a hundred thousand references (one block shared everywhere) gains as many more in
//! time that grows with their number, not with its square.
//!
//! What it does not know: inline references and counts of the extent.

use super::owner::RefOwner;
use crate::items::{Change, Items, Overlay};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Key, Result};
use std::collections::HashMap;

/// Where a holder's item is, and its count.
pub(crate) type Found = (Key, u64);

pub(crate) struct Separate<'a> {
    extent: u64,
    items: Overlay<'a>,
    known: Option<Known>,
}

#[derive(Default)]
struct Known {
    holders: HashMap<RefOwner, Found>,
    /// Items that name no holder we know.
    strange: bool,
}

impl<'a> Separate<'a> {
    /// With `new`, the extent is one that no tree knows: nothing is read.
    pub(crate) fn new(extent: u64, new: bool, below: &'a mut dyn Items) -> Separate<'a> {
        Separate { extent, items: Overlay::new(below), known: new.then(Known::default) }
    }

    pub(crate) fn find(&mut self, owner: &RefOwner) -> Result<Option<Found>> {
        if self.known.is_none()
            && let Some(found) = self.at_its_hash(owner)?
        {
            return Ok(Some(found));
        }
        Ok(self.known()?.holders.get(owner).copied())
    }

    fn at_its_hash(&mut self, owner: &RefOwner) -> Result<Option<Found>> {
        let key = Key::new(self.extent, owner.kind(), owner.sequence());
        let Some(data) = self.items.get(&key)? else { return Ok(None) };
        let holder = RefOwner::of_separate(&key, &data)?;
        Ok(holder.filter(|(found, _)| found == owner).map(|(_, count)| (key, count)))
    }

    fn known(&mut self) -> Result<&mut Known> {
        let known = match self.known.take() {
            Some(known) => known,
            None => self.read_all()?,
        };
        Ok(self.known.insert(known))
    }

    fn read_all(&mut self) -> Result<Known> {
        let mut known = Known::default();
        let (from, to) = self.range();
        self.items.scan(from, to, &mut |key, data| {
            match RefOwner::of_separate(&key, data)? {
                Some((owner, count)) => {
                    known.holders.entry(owner).or_insert((key, count));
                }
                None => known.strange = true,
            }
            Ok(())
        })?;
        Ok(known)
    }

    fn range(&self) -> (Key, Key) {
        (
            Key::new(self.extent, kind::TREE_BLOCK_REF, 0),
            Key::new(self.extent, kind::BLOCK_GROUP_ITEM - 1, u64::MAX),
        )
    }

    pub(crate) fn any(&mut self) -> Result<bool> {
        if let Some(known) = &self.known {
            return Ok(known.strange || !known.holders.is_empty());
        }
        let (from, to) = self.range();
        Ok(self.items.at_or_after(&from)?.is_some_and(|(key, _)| key <= to))
    }

    /// The key of an item for a holder that has none.
    pub(crate) fn vacant_key(&mut self, owner: &RefOwner) -> Result<Key> {
        let mut key = Key::new(self.extent, owner.kind(), owner.sequence());
        while self.items.get(&key)?.is_some() {
            let full = || Corrupt::new("no key is left for a reference").key(key);
            key.offset = key.offset.checked_add(1).ok_or_else(full)?;
        }
        Ok(key)
    }

    /// The item at `key` says `count` references of `owner`; 0: it goes.
    pub(crate) fn set(&mut self, key: Key, owner: &RefOwner, count: u64) -> Result<()> {
        match count {
            0 => self.items.delete(key),
            _ => self.items.put(key, owner.separate_data(count)?),
        }
        if let Some(known) = &mut self.known {
            match count {
                0 => known.holders.remove(owner),
                _ => known.holders.insert(*owner, (key, count)),
            };
        }
        Ok(())
    }

    pub(crate) fn into_changes(self) -> Result<Vec<Change>> {
        self.items.into_changes()
    }
}
