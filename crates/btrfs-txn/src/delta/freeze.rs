//! What the tree log takes of objects: what changed since it last did, or all of it.
//!
//! What it does not know: how changes are noted (`watch`).

use super::items::{ItemDelta, NUMBER_COST, Object, Shard, shard_of};
use super::slot::SubKey;
use super::slots::Slots;
use super::watch::{Ask, Frozen, Level, is_ref};
use btrfs_disk::TreeId;
use btrfs_disk::key::kind;
use std::collections::{BTreeMap, BTreeSet};

/// What `ask` wants of an object's slots, where `changed` says which changed since.
///
/// Everybody who changes something waits meanwhile, and a directory or a file can have a million
/// slots of which one changed: so only what is taken is looked at, and where the next kind begins.
fn take_slots(
    items: &Slots,
    ask: &Ask,
    changed: &BTreeSet<SubKey>,
) -> BTreeMap<SubKey, Option<Box<[u8]>>> {
    let mut slots = BTreeMap::new();
    let mut from = Some((0, 0));
    while let Some((kind, _)) = from.and_then(|key| Some(*items.at_or_after(&key)?.0)) {
        if ask.wants_all(kind) {
            let first = (kind, 0);
            let of_kind = items.from(&first).take_while(|(key, _)| key.0 == kind);
            slots.extend(of_kind.map(|(key, slot)| (*key, slot.value.clone())));
        }
        from = kind.checked_add(1).map(|next| (next, 0));
    }
    let single = |(kind, _): &&SubKey| ask.wants_changed(*kind) && !ask.wants_all(*kind);
    for key in changed.iter().filter(single) {
        if let Some(slot) = items.get(key) {
            slots.insert(*key, slot.value.clone());
        }
    }
    slots
}

fn extents_of<'a>(keys: impl Iterator<Item = &'a SubKey>) -> BTreeSet<u64> {
    keys.filter(|(kind, _)| *kind == kind::EXTENT_DATA).map(|(_, offset)| *offset).collect()
}

impl Object {
    /// Memory that the log's notes take.
    pub(super) fn noted(&self) -> u64 {
        self.watch.as_ref().map_or(0, |watch| watch.bytes())
    }

    fn freeze(&mut self, ask: Ask) -> Frozen {
        let watch = self.watch.get_or_insert_default();
        let mut all = ask.of(watch.level);
        watch.level = watch.level.max(ask.level);
        let changed = std::mem::take(&mut watch.changed);
        all.names |= changed.iter().any(|(kind, _)| is_ref(*kind));
        let gaps = watch.take_gaps(all.whole);
        let left = match watch.level {
            Level::Entries => watch.take_left(all.entries),
            _ => Vec::new(),
        };
        let followers = watch.followers.clone();
        // A key that was born and is gone has no slot, but the log may have it.
        let gone = changed.iter().filter(|key| !self.items.contains_key(key));
        let mut slots: BTreeMap<SubKey, Option<Box<[u8]>>> = gone.map(|key| (*key, None)).collect();
        slots.extend(take_slots(&self.items, &all, &changed));
        watch.logged |= !slots.is_empty();
        let item = (kind::INODE_ITEM, 0);
        let item_changed =
            ask.whole || changed.contains(&item) || all.whole && self.items.contains_key(&item);
        // Where nobody noted what changed, everything may have.
        let extents = match all.whole {
            true => extents_of(slots.keys()),
            false => extents_of(changed.iter()),
        };
        let (born, whole) = (self.born, ask.whole);
        Frozen { born, whole, item_changed, slots, extents, gaps, followers, left }
    }

    fn has_refs(&self) -> bool {
        let first = self.items.at_or_after(&(kind::INODE_REF, 0));
        first.is_some_and(|((kind, _), _)| *kind <= kind::INODE_EXTREF)
    }
}

impl ItemDelta {
    /// Takes what there is to log of an object, and watches it from now on. Nobody changes
    /// the delta meanwhile.
    pub fn freeze(&self, tree: TreeId, objectid: u64, ask: Ask) -> Frozen {
        self.watch_names();
        self.with_object(tree, objectid, |object| self.take(object, ask))
    }

    /// What is noted of it may become less by that.
    fn take(&self, object: &mut Object, ask: Ask) -> Frozen {
        let before = object.noted();
        let frozen = object.freeze(ask);
        self.count_notes(object.noted() as i64 - before as i64);
        frozen
    }

    /// As `freeze`, of a delta that never changes again.
    pub fn freeze_sealed(&self, tree: TreeId, objectid: u64, ask: Ask) -> Frozen {
        self.with_known(tree, objectid, |object| self.take(object, ask)).unwrap_or_default()
    }

    /// Notes from now on whose names change.
    pub fn watch_names(&self) {
        self.watched.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// True if names of the object changed in this epoch.
    pub fn renames(&self, tree: TreeId, objectid: u64) -> bool {
        self.with_known(tree, objectid, |object| object.has_refs()).unwrap_or(false)
    }

    /// How the log took what this epoch changed of the object; `Nothing`, too, if there was
    /// nothing to take.
    pub fn logged(&self, tree: TreeId, objectid: u64) -> Level {
        let logged = |object: &mut Object| match &object.watch {
            Some(watch) if watch.logged => watch.level,
            _ => Level::Nothing,
        };
        self.with_known(tree, objectid, logged).unwrap_or_default()
    }

    /// True if the object, or something out of it, went to another directory.
    pub fn was_moved(&self, tree: TreeId, objectid: u64) -> bool {
        self.with_known(tree, objectid, |object| object.moved).unwrap_or(false)
    }

    /// True if names of the object changed since they were last taken.
    pub fn renames_since(&self, tree: TreeId, objectid: u64) -> bool {
        let since = |object: &mut Object| match &object.watch {
            Some(watch) if watch.level > Level::Nothing => {
                watch.changed.iter().any(|(kind, _)| is_ref(*kind))
            }
            _ => object.has_refs(),
        };
        self.with_known(tree, objectid, since).unwrap_or(false)
    }

    /// A rename took the object out of a directory that the log has with its entries.
    pub fn leaves_log(&self, tree: TreeId, objectid: u64) {
        let mut shard = self.shards[shard_of(tree, objectid)].lock();
        shard.left_log.push((tree, objectid));
        self.count_notes(NUMBER_COST as i64);
    }

    /// What `leaves_log` was told since the last call.
    pub fn take_left(&self) -> Vec<(TreeId, u64)> {
        self.taken(|shard| &mut shard.left_log)
    }

    fn taken(&self, of: impl Fn(&mut Shard) -> &mut Vec<(TreeId, u64)>) -> Vec<(TreeId, u64)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let taken = of(&mut shard);
            self.count_notes(-((taken.len() as u64 * NUMBER_COST) as i64));
            all.append(taken);
        }
        all
    }

    /// Objects whose names changed, or that are gone, since the last call; only while
    /// something is watched.
    pub fn take_renamed(&self) -> Vec<(TreeId, u64)> {
        self.taken(|shard| &mut shard.renamed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::{Base, Slot};
    use super::super::slots::LOOKED_AT;
    use super::*;

    fn slot(value: u8) -> Slot {
        Slot { value: Some(Box::new([value])), base: Base::Absent, spread: false }
    }

    fn object(kinds: &[u8], each: u64) -> Object {
        let mut object = Object::default();
        for (kind, offset) in kinds.iter().flat_map(|kind| (0..each).map(|at| (*kind, at))) {
            object.items.insert((kind, offset), slot(kind));
        }
        object
    }

    const ALL: [u8; 8] = [
        kind::INODE_ITEM,
        kind::INODE_REF,
        kind::INODE_EXTREF,
        kind::XATTR_ITEM,
        kind::DIR_ITEM,
        kind::DIR_INDEX,
        kind::EXTENT_DATA,
        u8::MAX,
    ];

    /// The rule, one slot after the other.
    fn wanted(ask: &Ask, key: &SubKey, changed: &BTreeSet<SubKey>) -> bool {
        match key.0 {
            kind::DIR_ITEM => false,
            kind::DIR_INDEX => ask.entries || changed.contains(key),
            kind::INODE_ITEM => true,
            kind::EXTENT_DATA => ask.whole || ask.content || changed.contains(key),
            kind if is_ref(kind) => ask.whole || ask.names,
            _ => ask.whole || changed.contains(key),
        }
    }

    #[test]
    fn what_is_taken_is_what_looking_at_each_slot_finds() {
        let changes: [&[SubKey]; 3] = [
            &[],
            &[(kind::EXTENT_DATA, 3), (kind::DIR_INDEX, 1), (kind::DIR_ITEM, 2)],
            &[(kind::XATTR_ITEM, 0), (kind::INODE_REF, 1), (kind::EXTENT_DATA, 99), (u8::MAX, 4)],
        ];
        for (mask, changed) in (0..1 << ALL.len()).flat_map(|m| changes.map(|c| (m, c))) {
            let kinds = ALL.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1);
            let object = object(&kinds.map(|(_, kind)| *kind).collect::<Vec<_>>(), 5);
            let changed: BTreeSet<SubKey> = changed.iter().copied().collect();
            for bits in 0..16 {
                let bit = |at: u8| bits >> at & 1 == 1;
                let (whole, entries, content, names) = (bit(0), bit(1), bit(2), bit(3));
                let ask = Ask { level: Level::Inode, whole, entries, content, names };
                let taken = take_slots(&object.items, &ask, &changed);
                let rule = object.items.iter().filter(|(key, _)| wanted(&ask, key, &changed));
                let rule: BTreeMap<_, _> = rule.map(|(k, s)| (*k, s.value.clone())).collect();
                assert_eq!(taken, rule, "{mask:b} {ask:?} {changed:?}");
            }
        }
    }

    /// A file in ten thousand pieces, or a directory of as many names: an fsync of one more.
    #[test]
    fn what_did_not_change_is_not_passed_over() {
        let of = [&[kind::EXTENT_DATA][..], &[kind::DIR_ITEM, kind::DIR_INDEX][..]];
        for kinds in of {
            let mut object = object(kinds, 10_000);
            object.items.insert((kind::INODE_ITEM, 0), slot(0));
            let (level, no) = (Level::Entries, false);
            let ask = Ask { level, whole: no, entries: no, content: no, names: no };
            object.freeze(Ask { whole: true, entries: true, ..ask });
            let key = (kinds[kinds.len() - 1], 10_000);
            object.items.insert(key, slot(1));
            object.watch.as_mut().unwrap().note(key.0, key.1);
            LOOKED_AT.set(0);
            let frozen = object.freeze(ask);
            let keys: Vec<SubKey> = frozen.slots.keys().copied().collect();
            assert_eq!(keys, [(kind::INODE_ITEM, 0), key]);
            assert!(LOOKED_AT.get() < 20, "{} slots were looked at", LOOKED_AT.get());
        }
    }

    /// All extents are taken where it matters what lies beside a hole; the log has the others.
    #[test]
    fn which_extents_changed_is_told_whatever_is_taken() {
        let (level, no) = (Level::Inode, false);
        let changed = Ask { level, whole: no, entries: no, content: no, names: no };
        let (all, content) = (Ask { whole: true, ..changed }, Ask { content: true, ..changed });
        let extents = |frozen: &Frozen| frozen.extents.iter().copied().collect::<Vec<_>>();
        let mut object = object(&[kind::EXTENT_DATA], 4);
        assert_eq!(extents(&object.freeze(all)), [0, 1, 2, 3]);
        object.watch.as_mut().unwrap().note(kind::EXTENT_DATA, 2);
        let mut frozen = object.freeze(content);
        assert_eq!((extents(&frozen), frozen.slots.len()), (vec![2], 4));
        object.watch.as_mut().unwrap().note(kind::EXTENT_DATA, 9);
        frozen.absorb(object.freeze(content));
        assert_eq!(extents(&frozen), [2, 9]);
        assert_eq!(frozen.slots[&(kind::EXTENT_DATA, 9)], None, "it came and went");
    }
}
