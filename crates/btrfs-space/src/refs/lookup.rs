//! Who holds an extent now: the extent tree, with changes that are not in it yet.

use super::deltas::RefDeltas;
use super::merge::find_item;
use super::owner::RefOwner;
use super::separate::{NEAR, RefItem, Separate};
use crate::items::Items;
use btrfs_disk::items::extent_flags;
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Error, Generation, Key, Logical, Result, TreeId};
use std::collections::BTreeMap;

/// All references of one extent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtentRefs {
    /// How many there are; as many as `owners` have together.
    pub refs: u64,
    /// `extent_flags` bits; of an extent that no tree has yet at most FULL_BACKREF.
    pub flags: u64,
    /// Generation in which the extent was allocated; 0 for one that no tree has yet.
    pub generation: u64,
    /// Who wrote it first, where that is known (simple quotas).
    pub first_owner: Option<TreeId>,
    /// How many each holder has; who has none is not in it.
    pub owners: BTreeMap<RefOwner, u64>,
}

impl ExtentRefs {
    /// Whether a tree block's own address holds what it points to, and not a tree.
    pub fn full_backref(&self) -> bool {
        self.flags & extent_flags::FULL_BACKREF != 0
    }
}

/// Count and flags alone, which need no walk over separate references. With `pending`
/// changes on top; `None` if the extent tree does not have the extent and none is born.
pub fn stored_refs(
    items: &mut dyn Items,
    pending: &[&RefDeltas],
    logical: Logical,
) -> Result<Option<(u64, u64)>> {
    let found = find_item(items, logical)?;
    let born = pending.iter().any(|p| p.get(logical).is_some_and(|delta| delta.born));
    let (mut refs, mut flags) = match found {
        Some((_, item)) => (item.fields.refs, item.fields.flags),
        None if born => (0, 0),
        None => return Ok(None),
    };
    for delta in pending.iter().filter_map(|p| p.get(logical)) {
        let below = || Corrupt::new("more references dropped than there are").at(logical);
        refs = refs.checked_add_signed(delta.net()).ok_or_else(below)?;
        if delta.full_backref {
            flags |= extent_flags::FULL_BACKREF;
        }
    }
    Ok(Some((refs, flags)))
}

/// Whether `owner` alone holds the extent (however often); others are not looked at. `None`: there
/// is no such extent.
pub fn held_by_alone(
    items: &mut dyn Items,
    logical: Logical,
    owner: &RefOwner,
) -> Result<Option<bool>> {
    let stored = stored_count(items, logical, owner)?;
    Ok(stored.map(|(has, refs)| has > 0 && has == refs))
}

/// True if `owner` holds the extent, whoever else does. With `pending` changes on top. What was allocated there
/// after commit `of` and until `now` is another extent; a generation later than that is damage, and says nothing.
pub(crate) fn held_by(
    items: &mut dyn Items,
    pending: &[&RefDeltas],
    (logical, of, now): (Logical, Generation, Generation),
    owner: &RefOwner,
) -> Result<bool> {
    let later = |generation| of.0 < generation && generation <= now.0;
    if find_item(items, logical)?.is_some_and(|(_, item)| later(item.fields.generation)) {
        return Ok(false);
    }
    let stored = stored_count(items, logical, owner)?.map_or(0, |(has, _)| has);
    let changes = pending.iter().filter_map(|p| p.get(logical)).flat_map(|delta| delta.owners());
    let change: i64 = changes.filter(|(of, _)| of == owner).map(|(_, change)| change).sum();
    Ok(stored.saturating_add_signed(change) > 0)
}

/// How often `owner` holds the extent, and how often all do; `None`: there is no such extent.
fn stored_count(
    items: &mut dyn Items,
    logical: Logical,
    owner: &RefOwner,
) -> Result<Option<(u64, u64)>> {
    let Some((_, item)) = find_item(items, logical)? else { return Ok(None) };
    let inline = item.inline.iter().find(|i| RefOwner::of_inline(i).as_ref() == Some(owner));
    let has = match inline {
        Some(inline) => inline.count(),
        None => match Separate::new(logical.0, items).find(owner, NEAR)? {
            RefItem::Stored(_, count) => count,
            RefItem::Vacant(_) => 0,
        },
    };
    Ok(Some((has, item.fields.refs)))
}

/// The extent's references, holder by holder.
pub fn current_refs(
    items: &mut dyn Items,
    pending: &[&RefDeltas],
    logical: Logical,
) -> Result<Option<ExtentRefs>> {
    let Some((refs, flags)) = stored_refs(items, pending, logical)? else { return Ok(None) };
    let mut out = ExtentRefs { refs, flags, ..ExtentRefs::default() };
    if let Some((_, item)) = find_item(items, logical)? {
        out.generation = item.fields.generation;
        out.first_owner = item.first_owner();
        for inline in &item.inline {
            if let Some(owner) = RefOwner::of_inline(inline) {
                *out.owners.entry(owner).or_default() += inline.count();
            }
        }
        let from = Key::new(logical.0, kind::TREE_BLOCK_REF, 0);
        let to = Key::new(logical.0, kind::BLOCK_GROUP_ITEM - 1, u64::MAX);
        items.scan(from, to, &mut |key, data| {
            if let Some((owner, count)) = RefOwner::of_separate(&key, data)? {
                *out.owners.entry(owner).or_default() += count;
            }
            Ok(())
        })?;
    }
    for delta in pending.iter().filter_map(|p| p.get(logical)) {
        for (owner, change) in delta.owners() {
            apply(&mut out.owners, owner, *change, logical)?;
        }
    }
    if out.owners.values().sum::<u64>() != out.refs {
        return Err(Error::Corrupt(
            Corrupt::new("extent's count is not the sum of its references").at(logical),
        ));
    }
    Ok(Some(out))
}

pub(crate) fn apply(
    owners: &mut BTreeMap<RefOwner, u64>,
    owner: &RefOwner,
    change: i64,
    logical: Logical,
) -> Result<()> {
    let has = owners.get(owner).copied().unwrap_or(0);
    let left = has.checked_add_signed(change).ok_or_else(|| {
        Corrupt::new(format!("{owner:?} drops more references than it has")).at(logical)
    })?;
    if left == 0 {
        owners.remove(owner);
    } else {
        owners.insert(*owner, left);
    }
    Ok(())
}
