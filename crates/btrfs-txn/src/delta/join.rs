//! Two epochs as one: a commit found no room, so the epoch that it had sealed and the one after it
//! are committed together.
//!
//! Invariant: over the same trees the joined delta shows what the upper one over the lower one
//! shows. A key that only the lower epoch had, and that is gone, leaves nothing; an extent that was
//! allocated in the lower one and that nobody refers to any more stays untouched until the next
//! commit, since a log may refer to it.
//!
//! What it does not know of the tree log: what that has seen of either. So a log must not go on
//! with a joined delta ([`crate::log::LogState::give_up`]).

use super::Delta;
use super::actions::TreeActions;
use super::extents::{self, ExtentChange, ExtentDelta};
use super::items::{ItemDelta, Object};
use super::slot::{Base, Slot, SubKey};
use super::slots::Slots;
use super::touched::TouchedTrees;
use btrfs_disk::{Generation, Logical};
use btrfs_space::Extent;
use std::sync::atomic::{AtomicU64, Ordering};

impl Delta {
    /// `above`, whose epoch follows that of `below`, with all that `below` has. Nobody changes
    /// either. `None`: they contradict each other, which is damage.
    pub fn joined(below: &Delta, above: &Delta) -> Option<Delta> {
        Some(Delta {
            items: join_items(&below.items, &above.items, above.generation),
            extents: join_extents(&below.extents, &above.extents, above.generation)?,
            trees: TreeActions::joined(&below.trees, &above.trees),
            ..Delta::new(above.generation)
        })
    }
}

fn join_items(below: &ItemDelta, above: &ItemDelta, generation: Generation) -> ItemDelta {
    let mut joined = ItemDelta::new(generation);
    let (mut bytes, mut slots, mut twice) = (0, 0, 0);
    for (at, out) in joined.shards.iter_mut().enumerate() {
        let out = out.get_mut();
        let (below, above) = (below.shards[at].lock(), above.shards[at].lock());
        for (id, object) in &below.objects {
            let both = join_object(object, above.objects.get(id), &mut twice);
            out.objects.insert(*id, both);
        }
        for (id, object) in &above.objects {
            if !below.objects.contains_key(id) {
                let (items, born) = (object.items.clone(), object.born);
                out.objects.insert(*id, Object { items, born, ..Object::default() });
            }
        }
        out.objects.retain(|_, object| !object.items.is_empty());
        for slot in out.objects.values().flat_map(|object| object.items.values()) {
            slots += 1;
            bytes += slot.value.as_ref().map_or(0, |value| value.len() as u64);
        }
    }
    joined.bytes.store(bytes, Ordering::Relaxed);
    joined.slots.store(slots, Ordering::Relaxed);
    let spread = |items: &ItemDelta| items.spread.load(Ordering::Relaxed);
    joined.spread.store(spread(below) + spread(above) - twice, Ordering::Relaxed);
    joined.touched = TouchedTrees::joined(&below.touched, &above.touched);
    joined.owed.store(below.owed() + above.owed(), Ordering::Relaxed);
    let births = [below, above].map(|items| items.birthplace.load(Ordering::Relaxed));
    joined.birthplace.store(births[0].max(births[1]), Ordering::Relaxed);
    joined
}

/// Adds to `twice` the places that both have counted.
fn join_object(below: &Object, above: Option<&Object>, twice: &mut u64) -> Object {
    let mut items = below.items.clone();
    for (key, slot) in above.iter().flat_map(|object| object.items.iter()) {
        join_slot(&mut items, below.born, *key, slot, twice);
    }
    Object { items, born: below.born, ..Object::default() }
}

fn join_slot(items: &mut Slots, born: bool, key: SubKey, slot: &Slot, twice: &mut u64) {
    let old = items.remove(&key);
    let base = match &old {
        Some(old) => old.base,
        None if born => Base::Absent,
        None => slot.base,
    };
    let counted = old.is_some_and(|old| old.spread);
    *twice += u64::from(counted && slot.spread);
    if slot.value.is_some() || base == Base::Possible {
        let spread = counted || slot.spread;
        items.insert(key, Slot { value: slot.value.clone(), base, spread });
    }
}

fn join_extents(
    below: &ExtentDelta,
    above: &ExtentDelta,
    generation: Generation,
) -> Option<ExtentDelta> {
    let mut joined = ExtentDelta::new(generation);
    let mut retained = below.retained();
    retained.extend(above.retained());
    for (at, out) in joined.shards.iter_mut().enumerate() {
        let out = out.get_mut();
        let (below, above) = (below.shards[at].lock(), above.shards[at].lock());
        out.changes = join_changes(&below.changes, &above.changes, &mut retained)?;
        out.gained = extents::join_gained(&below, &above.gained);
        out.sums = below.sums.clone();
        out.sums.extend(above.sums.iter().map(|(at, sums)| (*at, sums.clone())));
    }
    *joined.retained.get_mut() = retained;
    *joined.stale.get_mut() = [below.stale_sums(), above.stale_sums()].concat();
    let sum = |of: fn(&ExtentDelta) -> u64, to: &AtomicU64| {
        to.store(of(below) + of(above), Ordering::Relaxed);
    };
    sum(ExtentDelta::bytes, &joined.bytes);
    sum(ExtentDelta::count, &joined.count);
    sum(ExtentDelta::records, &joined.records);
    sum(ExtentDelta::dropped, &joined.dropped);
    Some(joined)
}

fn join_changes(
    below: &extents::Changes,
    above: &extents::Changes,
    retained: &mut Vec<Extent>,
) -> Option<extents::Changes> {
    let mut all = below.clone();
    // A log may have been written while nobody noted which extents it refers to.
    all.values_mut().for_each(|change| change.logged |= change.fresh);
    for (extent, change) in above {
        let Some(both) = all.get_mut(extent) else {
            all.insert(*extent, change.clone());
            continue;
        };
        if change.fresh || change.len != both.len {
            return None;
        }
        change.counts.iter().for_each(|(who, count)| _ = both.count(*who, *count));
    }
    let unused = |(at, change): (&Logical, &ExtentChange)| {
        let gone = change.fresh && change.counts.is_empty();
        gone.then_some(Extent { logical: *at, len: change.len })
    };
    retained.extend(all.iter().filter_map(unused));
    all.retain(|_, change| !change.counts.is_empty());
    Some(all)
}
