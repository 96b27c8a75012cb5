//! References of one extent that have items of their own.
//!
//! Invariants: a holder stands in one item at most. Data references of one hash follow each other,
//! with gaps where some went, so a holder that is not at its hash may be behind it, by as many keys as
//! hashes met there. A few holders are looked for there, one by one: a snapshot of what ten thousand
//! others share costs what the first did. Where many are, all are read once, and none is searched after
//! that: an extent of a hundred thousand references gains as many more in time that grows with their
//! number, not with its square.
//!
//! What it does not know: inline references and counts of the extent.

use super::owner::RefOwner;
use crate::items::{Change, Items, Overlay};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Key, Result};
use std::collections::HashMap;

/// Where a holder's item is, and its count.
pub(crate) type Found = (Key, u64);

/// Holders that are looked for one by one before all are read. Near the end of a volume many commits
/// change a few hundred of two hundred thousand each.
const SINGLY: u32 = 512;
/// Keys behind its hash that a holder may stand at. A million hashes of 63 bits do not meet.
const WINDOW: u64 = 1 << 20;

pub(crate) struct Separate<'a> {
    extent: u64,
    singly: u32,
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
        Separate { extent, singly: 0, items: Overlay::new(below), known: new.then(Known::default) }
    }

    pub(crate) fn find(&mut self, owner: &RefOwner) -> Result<Option<Found>> {
        if self.known.is_none()
            && let Some(found) = self.at_its_hash(owner)?
        {
            return Ok(Some(found));
        }
        if self.known.is_none() && self.singly < SINGLY {
            self.singly += 1;
            return self.behind_its_hash(owner);
        }
        Ok(self.known()?.holders.get(owner).copied())
    }

    fn behind_its_hash(&mut self, owner: &RefOwner) -> Result<Option<Found>> {
        // All others stand at what they are.
        if !matches!(owner, RefOwner::Data { .. }) {
            return Ok(None);
        }
        let hash = owner.sequence();
        let key = |offset| Key::new(self.extent, owner.kind(), offset);
        let (from, to) = (key(hash.saturating_add(1)), key(hash.saturating_add(WINDOW)));
        let mut found = None;
        self.items.scan(from, to, &mut |key, data| {
            let holder = RefOwner::of_separate(&key, data)?;
            if let Some((_, count)) = holder.filter(|(holder, _)| holder == owner) {
                found.get_or_insert((key, count));
            }
            Ok(())
        })?;
        Ok(found)
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
