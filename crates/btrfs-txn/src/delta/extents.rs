//! Data extents: references that came and went in this epoch, and checksums of data
//! that landed.
//!
//! Invariant: a change whose reference counts all cancel is dropped; if its extent was
//! also allocated in this epoch, nobody can reach it any more and the caller gives it
//! back to the allocator at once. Who came to an extent is remembered all the same: a log that was
//! written in between may give it to him.

use crate::object::spread;
use btrfs_disk::ids::SECTOR_SIZE;
use btrfs_disk::items::{ExtentDataRef, ExtentItemFields};
use btrfs_disk::node::ITEM_SIZE;
use btrfs_disk::{FixedSize, Generation, Logical, TreeId};
use btrfs_space::Extent;
use locks::{Mutex, Rank};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A writer holds one of these for a map's insert, and commits go through all: fewer than items
/// have, since an extent comes for many items. Not measured apart from those.
const SHARDS: usize = 16;

/// One referrer of a data extent: a file, and where in it the extent would begin.
pub(super) type Referrer = (TreeId, u64, u64);
/// All changes of a delta by extent.
pub(super) type Changes = BTreeMap<Logical, ExtentChange>;
/// Runs of checksums by first sector.
pub(super) type Sums = BTreeMap<Logical, Box<[u8]>>;

#[derive(Clone, Debug, Default)]
pub struct ExtentChange {
    pub len: u64,
    /// Allocated in this epoch: no tree knows it yet.
    pub fresh: bool,
    /// The subvolume whose file it was allocated for, if it is fresh; others may have it alone meanwhile.
    pub owner: TreeId,
    /// The tree log refers to it: it must not be used for anything else in this epoch.
    pub logged: bool,
    /// By referrer; none is 0.
    pub counts: Vec<(Referrer, i64)>,
}

impl ExtentChange {
    /// Adds `count` references of `referrer`. True: it had none here before.
    pub(super) fn count(&mut self, referrer: Referrer, count: i64) -> bool {
        match self.counts.binary_search_by_key(&referrer, |(r, _)| *r) {
            Ok(at) => {
                self.counts[at].1 += count;
                if self.counts[at].1 == 0 {
                    self.counts.remove(at);
                }
                false
            }
            Err(_) if count == 0 => false,
            Err(at) => {
                self.counts.insert(at, (referrer, count));
                true
            }
        }
    }
}

/// Who came to an extent within the epoch, beside whom it was allocated for, and whether or not he
/// has it still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gained {
    One(Referrer),
    Several,
}

impl Gained {
    fn by(self, other: Gained) -> Gained {
        if self == other { self } else { Gained::Several }
    }
}

/// What an epoch says of who has an extent, to one who has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: whether an extent may be written in place hangs on it.
pub enum Holders {
    /// Somebody else has it, or had it for a while.
    Others,
    /// It was allocated in this epoch, and nobody else ever had it.
    AskerAlone,
    /// Nobody else came to it; who had it before it does not know.
    NoOthersCame,
}

#[derive(Default)]
pub(super) struct Shard {
    pub changes: BTreeMap<Logical, ExtentChange>,
    /// By extent.
    pub gained: BTreeMap<Logical, Gained>,
    /// Checksums by first sector; runs do not overlap.
    pub sums: BTreeMap<Logical, Box<[u8]>>,
}

impl Shard {
    /// Nobody has the extent any more, and its space may be another's.
    fn forget(&mut self, extent: Logical, len: u64) {
        let end = Logical(extent.0 + len);
        let gone: Vec<_> = self.sums.range(extent..end).map(|(k, _)| *k).collect();
        gone.iter().for_each(|k| {
            self.sums.remove(k);
        });
        self.gained.remove(&extent);
    }
}

/// References to data extents that came and went, and checksums that came.
pub struct ExtentDelta {
    pub(super) shards: Box<[Mutex<Shard>]>,
    /// Ranges whose checksums in the tree are out of date.
    pub(super) stale: Mutex<Vec<Extent>>,
    /// Fresh extents without references that the tree log refers to.
    pub(super) retained: Mutex<Vec<Extent>>,
    pub(super) bytes: AtomicU64,
    pub(super) count: AtomicU64,
    pub(super) records: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// Bytes of a new extent's item with one reference, and of the ends of free ranges that it
/// makes, headers included; and of who wrote it first (simple quotas).
const RECORD: u64 = (ExtentItemFields::SIZE + 1 + ExtentDataRef::SIZE + 9 + 3 * ITEM_SIZE) as u64;
/// Bytes of a reference more, if it stands apart.
const REFERENCE: u64 = (ExtentDataRef::SIZE + ITEM_SIZE) as u64;
/// Bytes of the headers of the items that a run of checksums is in, at most: an extent's lie in
/// a few.
const RUN: u64 = 16 * ITEM_SIZE as u64;

/// Extents never cross a 128 MiB boundary of this hash on purpose: the shard of an extent
/// and of its checksums is that of its first byte, given by the caller as `extent`.
fn shard_of(extent: Logical) -> usize {
    spread(extent.0 / u64::from(SECTOR_SIZE), SHARDS)
}

impl ExtentDelta {
    /// Of the epoch `generation`.
    pub fn new(generation: Generation) -> ExtentDelta {
        let number = u128::from(generation.0);
        ExtentDelta {
            shards: (0..SHARDS)
                .map(|_| Mutex::numbered(Rank::DeltaExtents, number, Shard::default()))
                .collect(),
            stale: Mutex::new(Rank::DeltaLists, Vec::new()),
            retained: Mutex::new(Rank::DeltaLists, Vec::new()),
            bytes: AtomicU64::new(0),
            count: AtomicU64::new(0),
            records: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// True if nothing came or went.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|s| {
            let shard = s.lock();
            shard.changes.is_empty() && shard.sums.is_empty()
        })
    }

    /// Bytes of items that the changes take in all trees, at most; about what they take of
    /// memory, too. Ever counting up within the epoch.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Extents that changed, ever counting up within the epoch.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Keys of the extent tree that the changes touch, at most: an extent and each of its referrers. Ever
    /// counting up within the epoch.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Bytes of extents that lost references in this epoch and stay until its end, older ones and
    /// those that the log refers to: the commit frees no more.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// A new extent with its first reference. False, and nothing changed: the epoch knows
    /// references to it already, so the volume calls free what is in use.
    #[must_use]
    pub fn allocate(&self, extent: Logical, len: u64, referrer: Referrer) -> bool {
        let mut shard = self.shards[shard_of(extent)].lock();
        if shard.changes.contains_key(&extent) {
            return false;
        }
        let counts = vec![(referrer, 1)];
        let owner = referrer.0;
        let change = ExtentChange { len, fresh: true, owner, logged: false, counts };
        shard.changes.insert(extent, change);
        self.bytes.fetch_add(RECORD, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(2, Ordering::Relaxed);
        true
    }

    /// Adds `count` references. True: the extent was allocated in this epoch and has no
    /// reference left; its space may be used again. `None`: the volume gives the extent
    /// two lengths, which is damage; nothing was changed.
    pub fn add(&self, extent: Logical, len: u64, referrer: Referrer, count: i64) -> Option<bool> {
        let mut shard = self.shards[shard_of(extent)].lock();
        let Shard { changes, gained, .. } = &mut *shard;
        let change = changes.entry(extent).or_insert_with(|| {
            self.bytes.fetch_add(RECORD, Ordering::Relaxed);
            self.count.fetch_add(1, Ordering::Relaxed);
            self.records.fetch_add(1, Ordering::Relaxed);
            ExtentChange { len, ..ExtentChange::default() }
        });
        if change.len != len {
            return None;
        }
        if count < 0 && !change.fresh {
            self.dropped.fetch_add(len, Ordering::Relaxed);
        }
        if count > 0 {
            note_gain(gained, extent, change, referrer);
        }
        if change.count(referrer, count) {
            self.bytes.fetch_add(REFERENCE, Ordering::Relaxed);
            self.records.fetch_add(1, Ordering::Relaxed);
        }
        if !change.counts.is_empty() {
            return Some(false);
        }
        let (fresh, logged) = (change.fresh, change.logged);
        changes.remove(&extent);
        if fresh && logged {
            // Its checksums stay, too: the log may still need them.
            self.retained.lock().push(Extent { logical: extent, len });
            self.dropped.fetch_add(len, Ordering::Relaxed);
            return Some(false);
        }
        if fresh {
            shard.forget(extent, len);
        }
        Some(fresh)
    }

    /// The tree log is about to refer to `extent`.
    pub fn mark_logged(&self, extent: Logical) {
        if let Some(change) = self.shards[shard_of(extent)].lock().changes.get_mut(&extent) {
            change.logged = true;
        }
    }

    /// Fresh extents that nothing but the tree log refers to: free with the next commit.
    pub fn retained(&self) -> Vec<Extent> {
        self.retained.lock().clone()
    }

    /// Makes a fresh extent with exactly one reference longer. False: it is not one, or another
    /// subvolume owns it, for which the rest would count; or the log refers to it: what it says of other inodes stays as it is when one is logged anew,
    /// and no replay knows what to do with one extent of two lengths.
    pub fn extend(&self, extent: Logical, len: u64, by: u64, referrer: Referrer) -> bool {
        let mut shard = self.shards[shard_of(extent)].lock();
        match shard.changes.get_mut(&extent) {
            Some(change)
                if change.fresh
                    && !change.logged
                    && change.len == len
                    && change.owner == referrer.0
                    && change.counts == [(referrer, 1)] =>
            {
                change.len += by;
                true
            }
            _ => false,
        }
    }

    /// What this epoch did to `extent`.
    pub fn change(&self, extent: Logical) -> Option<ExtentChange> {
        self.shards[shard_of(extent)].lock().changes.get(&extent).cloned()
    }

    /// What is known of others who have `extent`, or had it at any time of this epoch: a log may have
    /// them with it, whatever became of that since.
    pub fn holders(&self, extent: Logical, who: Referrer) -> Holders {
        let shard = self.shards[shard_of(extent)].lock();
        let others_came = |gained: &Gained| *gained != Gained::One(who);
        let change = shard.changes.get(&extent);
        let others_have = |c: &ExtentChange| c.counts.iter().any(|(r, n)| *r != who && *n > 0);
        if shard.gained.get(&extent).is_some_and(others_came) || change.is_some_and(others_have) {
            return Holders::Others;
        }
        match change {
            Some(change) if change.fresh => Holders::AskerAlone,
            _ => Holders::NoOthersCame,
        }
    }

    /// Checksums of the sectors from `at` on; `extent` is the extent they belong to.
    pub fn put_sums(&self, extent: Logical, at: Logical, sums: Box<[u8]>) {
        self.bytes.fetch_add(sums.len() as u64 + RUN, Ordering::Relaxed);
        self.shards[shard_of(extent)].lock().sums.insert(at, sums);
    }

    /// The checksums that the tree has of this range are not those of its content any more;
    /// `put_sums` says what they are.
    pub fn replace_sums(&self, range: Extent) {
        self.stale.lock().push(range);
    }

    /// Ranges of `replace_sums`, in order. Sealed deltas only.
    pub fn stale_sums(&self) -> Vec<Extent> {
        let mut stale = self.stale.lock().clone();
        stale.sort_unstable();
        stale
    }

    /// Copies into `out` what is known of the checksums of `out.len() / size` sectors from
    /// `at` on; `known` is marked sector by sector.
    pub fn sums(
        &self,
        extent: Logical,
        at: Logical,
        sector: u64,
        size: usize,
        out: &mut [u8],
        known: &mut [bool],
    ) {
        let shard = self.shards[shard_of(extent)].lock();
        let end = at.0 + known.len() as u64 * sector;
        let first = shard.sums.range(..=at).next_back().map_or(at, |(k, _)| *k);
        for (start, sums) in shard.sums.range(first..Logical(end)) {
            let run_end = start.0 + (sums.len() / size) as u64 * sector;
            let (from, to) = (start.0.max(at.0), run_end.min(end));
            let mut cursor = from;
            while cursor < to {
                let slot = ((cursor - at.0) / sector) as usize;
                let source = ((cursor - start.0) / sector) as usize * size;
                if !known[slot] {
                    out[slot * size..(slot + 1) * size]
                        .copy_from_slice(&sums[source..source + size]);
                    known[slot] = true;
                }
                cursor += sector;
            }
        }
    }

    /// All changes and all checksums in address order. Sealed deltas only.
    pub fn collect(&self, mut rest: impl FnMut()) -> (Changes, Sums) {
        let (mut changes, mut sums) = (BTreeMap::new(), BTreeMap::new());
        for shard in &self.shards {
            let shard = shard.lock();
            changes.extend(shard.changes.iter().map(|(k, v)| (*k, v.clone())));
            sums.extend(shard.sums.iter().map(|(k, v)| (*k, v.clone())));
            drop(shard);
            rest();
        }
        (changes, sums)
    }

    /// Gives its memory back, calling `rest` now and then.
    pub fn free(self, mut rest: impl FnMut()) {
        self.shards.into_iter().for_each(|shard| {
            drop(shard);
            rest();
        });
    }
}

/// `referrer` is about to come to `extent`, or has it once more.
fn note_gain(
    gained: &mut BTreeMap<Logical, Gained>,
    extent: Logical,
    change: &ExtentChange,
    referrer: Referrer,
) {
    let now = Gained::One(referrer);
    if !change.fresh {
        gained.entry(extent).and_modify(|known| *known = known.by(now)).or_insert(now);
    } else if change.counts.iter().any(|(who, _)| *who != referrer) {
        gained.insert(extent, Gained::Several);
    }
}

/// Who came in one epoch or the one after it, whose changes `below` are.
pub(super) fn join_gained(
    below: &Shard,
    above: &BTreeMap<Logical, Gained>,
) -> BTreeMap<Logical, Gained> {
    let mut all = below.gained.clone();
    for (extent, gained) in above {
        let holders = below.changes.get(extent).filter(|change| change.fresh);
        let holders = holders.iter().flat_map(|change| &change.counts);
        let joined = holders.fold(*gained, |all, (who, _)| all.by(Gained::One(*who)));
        all.entry(*extent).and_modify(|known| *known = known.by(joined)).or_insert(joined);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::Delta;

    const WHO: Referrer = (TreeId::FS, 257, 0);

    #[test]
    fn a_fresh_extent_without_references_comes_back() {
        let delta = ExtentDelta::new(Generation(1));
        assert!(delta.allocate(Logical(4096), 8192, WHO));
        delta.put_sums(Logical(4096), Logical(4096), vec![1; 8].into());
        assert_eq!(delta.add(Logical(4096), 8192, WHO, 1), Some(false));
        assert_eq!(delta.add(Logical(4096), 4096, WHO, 1), None);
        assert_eq!(delta.add(Logical(4096), 8192, WHO, -1), Some(false));
        assert_eq!(delta.add(Logical(4096), 8192, WHO, -1), Some(true));
        assert!(delta.is_empty());
    }

    #[test]
    fn what_the_log_has_does_not_grow() {
        let delta = ExtentDelta::new(Generation(1));
        assert!(delta.allocate(Logical(4096), 4096, WHO));
        assert!(delta.extend(Logical(4096), 4096, 4096, WHO));
        delta.mark_logged(Logical(4096));
        assert!(!delta.extend(Logical(4096), 8192, 4096, WHO));
        assert_eq!(delta.change(Logical(4096)).unwrap().len, 8192);
    }

    #[test]
    fn what_another_wrote_does_not_grow() {
        let other: Referrer = (TreeId(256), 257, 0);
        let delta = ExtentDelta::new(Generation(1));
        assert!(delta.allocate(Logical(4096), 4096, WHO));
        assert_eq!(delta.add(Logical(4096), 4096, other, 1), Some(false));
        assert_eq!(delta.add(Logical(4096), 4096, WHO, -1), Some(false));
        assert!(!delta.extend(Logical(4096), 4096, 4096, other), "it would count for the first");
        assert_eq!(delta.change(Logical(4096)).unwrap().len, 4096);
    }

    const OTHER: Referrer = (TreeId::FS, 258, 0);

    #[test]
    fn who_came_and_went_is_remembered() {
        let delta = ExtentDelta::new(Generation(1));
        let (old, new) = (Logical(4096), Logical(8192));
        assert_eq!(delta.holders(old, WHO), Holders::NoOthersCame);
        for count in [1, -1] {
            assert_eq!(delta.add(old, 4096, OTHER, count), Some(false));
        }
        assert!(delta.is_empty());
        assert_eq!(delta.holders(old, WHO), Holders::Others);
        assert_eq!(delta.holders(old, OTHER), Holders::NoOthersCame);
        assert!(delta.allocate(new, 4096, WHO));
        assert_eq!(delta.add(new, 4096, WHO, 1), Some(false));
        assert_eq!(delta.holders(new, WHO), Holders::AskerAlone);
        for (who, count) in [(OTHER, 1), (WHO, -2)] {
            assert_eq!(delta.add(new, 4096, who, count), Some(false));
        }
        assert_eq!(delta.holders(new, OTHER), Holders::Others, "a log may have the first one");
        assert_eq!(delta.add(new, 4096, OTHER, -1), Some(true));
        assert!(delta.allocate(new, 4096, OTHER));
        assert_eq!(delta.holders(new, OTHER), Holders::AskerAlone, "it is another one");
    }

    #[test]
    fn who_came_is_remembered_when_epochs_join() {
        let (below, above) = (Delta::new(Generation(1)), Delta::new(Generation(2)));
        let [old, fresh, own] = [Logical(4096), Logical(8192), Logical(12288)];
        assert_eq!(below.extents.add(old, 4096, OTHER, 1), Some(false));
        assert_eq!(above.extents.add(old, 4096, OTHER, -1), Some(false));
        for (extent, second) in [(fresh, OTHER), (own, WHO)] {
            assert!(below.extents.allocate(extent, 4096, WHO));
            assert_eq!(above.extents.add(extent, 4096, second, 1), Some(false));
            assert_eq!(above.extents.add(extent, 4096, WHO, -1), Some(false));
        }
        let joined = Delta::joined(&below, &above).expect("they fit").extents;
        assert_eq!(joined.holders(old, WHO), Holders::Others);
        assert_eq!(joined.holders(fresh, OTHER), Holders::Others);
        assert_eq!(joined.holders(own, WHO), Holders::AskerAlone);
    }

    #[test]
    fn an_old_extent_keeps_its_loss() {
        let delta = ExtentDelta::new(Generation(1));
        assert_eq!(delta.add(Logical(4096), 8192, WHO, -1), Some(false));
        assert_eq!(delta.change(Logical(4096)).unwrap().counts, vec![(WHO, -1)]);
        assert_eq!(delta.dropped(), 8192);
        assert!(!delta.allocate(Logical(4096), 8192, WHO), "it is in use");
        assert_eq!(delta.add(Logical(4096), 8192, WHO, 1), Some(false));
        assert!(delta.is_empty());
    }

    #[test]
    fn sums_are_found_from_the_middle_of_a_run() {
        let delta = ExtentDelta::new(Generation(1));
        let extent = Logical(1 << 20);
        delta.put_sums(extent, extent, vec![1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3].into());
        let (mut out, mut known) = (vec![0; 12], vec![false; 3]);
        delta.sums(extent, extent.offset(4096), 4096, 4, &mut out, &mut known);
        assert_eq!(out[..8], [2, 2, 2, 2, 3, 3, 3, 3]);
        assert_eq!(known, [true, true, false]);
    }
}
