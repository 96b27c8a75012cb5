//! One extent: its items in the extent tree and the epoch's changes make its new items.
//!
//! Invariants: an extent's `refs` is the sum of its references, inline and separate;
//! a holder stands at one place. Inline references ascend by type and descend by
//! sequence within one; in front of all stands who wrote the extent first, where that is known: it is no holder,
//! and stays as long as the item. A new holder goes inline while the item stays below the
//! kernel's limit and no separate reference exists, else it gets an item of its own.
//! Whatever does not add up is damage on the volume and changes nothing.

use super::deltas::ExtentDelta;
use super::owner::{ExtentKind, RefOwner};
use super::separate::{ANYWHERE, NEAR, RefItem, Separate, by_key};
use crate::items::{Change, Items, NoItems};
use btrfs_disk::items::{ExtentItem, ExtentItemFields, InlineRef, extent_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Error, Generation, Geometry, Key, Logical, Result};
use std::cmp::Reverse;

/// What new items are made by.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The commit's: what new extent items say about their age.
    pub generation: Generation,
    /// Bytes of a tree block: what a METADATA_ITEM does not say, since its key has the level there.
    pub node_size: u64,
    /// An inline reference that makes its item this long or longer goes separate.
    pub item_limit: usize,
    /// A node's item says its level in the key (METADATA_ITEM); otherwise it is an EXTENT_ITEM
    /// that has level and first key in it.
    pub skinny: bool,
    /// Content that is new says who wrote it first (simple quotas).
    pub owners: bool,
}

impl Format {
    /// What the kernel makes by default in nodes of this size: skinny metadata, inline references
    /// up to a sixteenth of a leaf, no simple quotas.
    pub fn new(geometry: &Geometry, generation: Generation) -> Format {
        Format {
            generation,
            node_size: u64::from(geometry.node_size),
            item_limit: (geometry.leaf_space() >> 4) - btrfs_disk::node::ITEM_SIZE,
            skinny: true,
            owners: false,
        }
    }
}

/// What became of the extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Created,
    Kept,
    Freed,
    /// Allocated in this epoch and unreferenced again: no tree ever knew it.
    Stillborn,
}

/// The extent item that `logical` has, whatever its form.
pub(crate) fn find_item(
    items: &mut dyn Items,
    logical: Logical,
) -> Result<Option<(Key, ExtentItem)>> {
    let Some((key, data)) = items.at_or_after(&Key::new(logical.0, kind::EXTENT_ITEM, 0))? else {
        return Ok(None);
    };
    if key.objectid != logical.0 || !matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM) {
        return Ok(None);
    }
    let item = ExtentItem::parse(key.kind, &data).map_err(|c| c.key(key))?;
    Ok(Some((key, item)))
}

/// A new extent's range has no items, not even what an old one left behind, and the extent
/// in front ends before it. Otherwise what was called free is in use.
fn nothing_there(items: &mut dyn Items, format: &Format, at: Logical, len: u64) -> Result<()> {
    let taken = |what: &str, key| Err(Error::Corrupt(Corrupt::new(what).at(at).key(key)));
    match items.at_or_after(&Key::new(at.0, 0, 0))? {
        Some((key, _)) if key.objectid - at.0 < len && key.kind < kind::BLOCK_GROUP_ITEM => {
            return taken("a new extent is there already", key);
        }
        _ => {}
    }
    let Some(before) = at.0.checked_sub(1) else { return Ok(()) };
    match items.at_or_before(&Key::new(before, u8::MAX, u64::MAX))? {
        Some((key, _)) if end_of(format, &key).is_some_and(|end| end > at.0) => {
            taken("a new extent begins inside another", key)
        }
        _ => Ok(()),
    }
}

/// Where an extent ends; `None` for items that do not say it.
fn end_of(format: &Format, key: &Key) -> Option<u64> {
    match key.kind {
        kind::EXTENT_ITEM => Some(key.objectid.saturating_add(key.offset)),
        kind::METADATA_ITEM => Some(key.objectid.saturating_add(format.node_size)),
        _ => None,
    }
}

struct Record<'a> {
    key: Key,
    item: ExtentItem,
    separate: Separate<'a>,
    item_limit: usize,
}

/// Applies `delta` to the extent at `logical`; answers its item as well, of one that is freed the last.
pub(crate) fn merge(
    items: &mut dyn Items,
    format: &Format,
    logical: Logical,
    delta: &ExtentDelta,
) -> Result<(Outcome, Vec<Change>, ExtentItem)> {
    if delta.torn {
        return Err(damage(logical, "trees disagree about an extent's length or kind"));
    }
    let (key, item) = match delta.born {
        true => {
            nothing_there(items, format, logical, delta.len)?;
            let (key, item) = new_item(format, logical, delta);
            if delta.owners().is_empty() {
                return Ok((Outcome::Stillborn, Vec::new(), item));
            }
            (key, item)
        }
        false => {
            let absent = || damage(logical, "references to an extent that is not there");
            let (key, item) = find_item(items, logical)?.ok_or_else(absent)?;
            judge_item(format, &key, &item, logical, delta)?;
            (key, item)
        }
    };
    // A new extent has no separate references that would have to be looked for.
    let mut nothing = NoItems;
    let below: &mut dyn Items = if delta.born { &mut nothing } else { items };
    let separate = Separate::new(logical.0, below);
    let mut record = Record { key, item, separate, item_limit: format.item_limit };
    record.apply(delta)?;
    record.finish(delta.born)
}

fn damage(logical: Logical, what: impl Into<String>) -> Error {
    Corrupt::new(what).at(logical).into()
}

fn new_item(format: &Format, logical: Logical, delta: &ExtentDelta) -> (Key, ExtentItem) {
    let extent_key = Key::new(logical.0, kind::EXTENT_ITEM, delta.len);
    let (key, flags, block_info) = match delta.kind {
        ExtentKind::Data => (extent_key, extent_flags::DATA, None),
        ExtentKind::Node { level } if format.skinny => {
            let key = Key::new(logical.0, kind::METADATA_ITEM, u64::from(level));
            (key, extent_flags::TREE_BLOCK, None)
        }
        ExtentKind::Node { level } => {
            (extent_key, extent_flags::TREE_BLOCK, Some((delta.first_key, level)))
        }
    };
    let fields = ExtentItemFields { refs: 0, generation: format.generation.0, flags };
    let owned = format.owners && delta.kind == ExtentKind::Data;
    let inline = owned.then_some(InlineRef::Owner { root: delta.first_owner });
    (key, ExtentItem { fields, block_info, inline: Vec::from_iter(inline) })
}

/// Whether the stored item is of the kind and size that the trees say.
fn judge_item(
    format: &Format,
    key: &Key,
    item: &ExtentItem,
    logical: Logical,
    delta: &ExtentDelta,
) -> Result<()> {
    let fits = match delta.kind {
        ExtentKind::Data => {
            key.kind == kind::EXTENT_ITEM
                && key.offset == delta.len
                && item.fields.flags & extent_flags::DATA != 0
        }
        ExtentKind::Node { level } => {
            let level_fits = match item.block_info {
                Some((_, stored)) => stored == level && key.offset == format.node_size,
                None => key.kind == kind::METADATA_ITEM && key.offset == u64::from(level),
            };
            level_fits && item.fields.flags & extent_flags::TREE_BLOCK != 0
        }
    };
    let inline: u64 = item.inline.iter().map(InlineRef::count).sum();
    if !fits {
        return Err(Error::Corrupt(
            Corrupt::new(format!("extent item does not fit {:?} of {}", delta.kind, delta.len))
                .at(logical)
                .key(*key),
        ));
    }
    if inline > item.fields.refs {
        return Err(Error::Corrupt(
            Corrupt::new("extent has more inline references than references").key(*key),
        ));
    }
    Ok(())
}

/// Where a holder's references stand.
enum RefSlot {
    Inline(usize, u64),
    Separate(Key, u64),
    /// What its item's key would be.
    Nowhere(Key),
}

impl Record<'_> {
    fn apply(&mut self, delta: &ExtentDelta) -> Result<()> {
        // Drops first: they may make the room that new holders find inline.
        let owners = by_key(delta.owners());
        for (owner, count) in owners.iter().filter(|(_, count)| *count < 0) {
            self.drop_refs(owner, count.unsigned_abs())?;
        }
        for (owner, count) in owners.iter().filter(|(_, count)| *count > 0) {
            self.add_refs(owner, count.unsigned_abs())?;
        }
        if delta.full_backref {
            self.item.fields.flags |= extent_flags::FULL_BACKREF;
        }
        Ok(())
    }

    /// Of every item of `owner`, until it were enough: where hashes met, kernels make a second one.
    fn drop_refs(&mut self, owner: &RefOwner, count: u64) -> Result<()> {
        let total = self.item.fields.refs;
        let mut left = count;
        while left > 0 {
            let place = self.find(owner, ANYWHERE)?;
            let has = match place {
                RefSlot::Inline(_, has) | RefSlot::Separate(_, has) => has,
                RefSlot::Nowhere(_) => 0,
            };
            let taken = has.min(left);
            if taken == 0 || count > total {
                let (has, total) = (count - left, self.item.fields.refs);
                let what = format!("{owner:?} drops {count} references and has {has} of {total}");
                return Err(Error::Corrupt(Corrupt::new(what).key(self.key)));
            }
            self.store(owner, place, has - taken)?;
            left -= taken;
        }
        self.item.fields.refs = total - count;
        Ok(())
    }

    fn add_refs(&mut self, owner: &RefOwner, count: u64) -> Result<()> {
        let place = self.find(owner, NEAR)?;
        let has = match place {
            RefSlot::Inline(_, has) | RefSlot::Separate(_, has) => has,
            RefSlot::Nowhere(_) => 0,
        };
        let total = self.item.fields.refs.checked_add(count);
        let (Some(now), Some(total)) = (has.checked_add(count), total) else {
            return Err(Error::Corrupt(Corrupt::new("reference count overflows").key(self.key)));
        };
        if !owner.is_data() && now != 1 {
            let what = format!("{owner:?} refers to one tree block {now} times");
            return Err(Error::Corrupt(Corrupt::new(what).key(self.key)));
        }
        self.item.fields.refs = total;
        self.store(owner, place, now)
    }

    /// Writes `count` references of `owner` to where they stand or shall stand.
    fn store(&mut self, owner: &RefOwner, place: RefSlot, count: u64) -> Result<()> {
        match place {
            RefSlot::Inline(at, _) if count == 0 => {
                self.item.inline.remove(at);
            }
            RefSlot::Inline(at, _) => self.item.inline[at] = owner.to_inline(count)?,
            RefSlot::Separate(key, _) => self.separate.set(key, owner, count)?,
            RefSlot::Nowhere(_) if self.fits_inline(owner)? => {
                let at = self.inline_slot(owner);
                self.item.inline.insert(at, owner.to_inline(count)?);
            }
            RefSlot::Nowhere(key) => self.separate.set(key, owner, count)?,
        }
        Ok(())
    }

    fn find(&mut self, owner: &RefOwner, within: u64) -> Result<RefSlot> {
        let inline =
            self.item.inline.iter().position(|i| RefOwner::of_inline(i).as_ref() == Some(owner));
        if let Some(at) = inline {
            return Ok(RefSlot::Inline(at, self.item.inline[at].count()));
        }
        Ok(match self.separate.find(owner, within)? {
            RefItem::Stored(key, count) => RefSlot::Separate(key, count),
            RefItem::Vacant(key) => RefSlot::Nowhere(key),
        })
    }

    fn fits_inline(&mut self, owner: &RefOwner) -> Result<bool> {
        let size: usize = self.item.to_vec().len() + owner.inline_size();
        Ok(size < self.item_limit && !self.separate.any()?)
    }

    /// Where among the inline references `owner` belongs.
    fn inline_slot(&self, owner: &RefOwner) -> usize {
        let rank = |owner: &RefOwner| (owner.kind(), Reverse(owner.sequence()));
        let new = rank(owner);
        self.item
            .inline
            .iter()
            .position(|i| RefOwner::of_inline(i).is_some_and(|there| rank(&there) > new))
            .unwrap_or(self.item.inline.len())
    }

    fn finish(mut self, born: bool) -> Result<(Outcome, Vec<Change>, ExtentItem)> {
        let fate = match (self.item.fields.refs, born) {
            (0, _) => Outcome::Freed,
            (_, true) => Outcome::Created,
            (_, false) => Outcome::Kept,
        };
        let holders = self.item.inline.iter().any(|i| i.count() > 0);
        if fate == Outcome::Freed && (holders || self.separate.any()?) {
            let what = "extent without references has holders";
            return Err(Error::Corrupt(Corrupt::new(what).key(self.key)));
        }
        let item = match fate {
            Outcome::Freed => None,
            _ => Some(self.item.to_vec().into_boxed_slice()),
        };
        let mut changes = vec![(self.key, item)];
        changes.extend(self.separate.into_changes()?);
        Ok((fate, changes, self.item))
    }
}
