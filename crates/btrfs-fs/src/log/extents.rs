//! The content of a logged file: extents that changed, and holes over what the commit has.
//!
//! A replay puts each logged extent over what lies in its range, and drops what lies behind
//! the logged size. What became a hole leaves no item on a volume with NO_HOLES, so the log
//! gets an item that says so; and preallocated extents behind the end are logged even if
//! they did not change, or the replay would drop them.

use super::committed::Committed;
use super::holes::Holes;
use super::state::Member;
use crate::extents::{Mapped, hole_item};
use crate::ino::InodeId;
use btrfs_disk::items::{InodeItem, inode_flags};
use btrfs_disk::key::kind::EXTENT_DATA;
use btrfs_disk::{Generation, Key, Result};
use btrfs_tree::Edit;
use btrfs_txn::delta::Frozen;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Content<'a> {
    pub committed: &'a Committed<'a>,
    pub id: InodeId,
    pub item: &'a InodeItem,
    pub frozen: &'a Frozen,
    pub sector: u64,
    pub generation: Generation,
}

impl Content<'_> {
    pub(crate) fn edits(&self, member: &mut Member, edits: &mut BTreeMap<Key, Edit>) -> Result<()> {
        let slots = &self.frozen.slots;
        let new = self.frozen.extents.iter();
        for (offset, value) in new.filter_map(|at| Some((*at, slots.get(&(EXTENT_DATA, *at))?))) {
            let edit = value.as_ref().map_or(Edit::Delete, |bytes| Edit::Put(self.of_log(bytes)));
            edits.insert(self.key(offset), edit);
        }
        if self.frozen.born {
            return Ok(());
        }
        if self.frozen.whole && self.item.flags & inode_flags::PREALLOC != 0 {
            self.behind_the_end(edits)?;
        }
        self.holes(&mut member.holes, edits)
    }

    /// The item, not of a later generation than the log.
    fn of_log(&self, item: &[u8]) -> Box<[u8]> {
        let mut item: Box<[u8]> = item.into();
        if let Some((generation, _)) = item.split_first_chunk_mut() {
            let least = u64::from_le_bytes(*generation).min(self.generation.0);
            *generation = least.to_le_bytes();
        }
        item
    }

    fn key(&self, offset: u64) -> Key {
        Key::new(self.id.objectid, EXTENT_DATA, offset)
    }

    fn slots(&self) -> impl Iterator<Item = (&(u8, u64), &Option<Box<[u8]>>)> {
        self.frozen.slots.range((EXTENT_DATA, 0)..=(EXTENT_DATA, u64::MAX))
    }

    /// The commit's extents that overlap [start, end) and did not change.
    fn kept(&self, start: u64, end: u64, mut each: impl FnMut(&Mapped, &[u8])) -> Result<()> {
        self.committed.extents(self.id, self.sector, start, end, |key, mapped, data| {
            if !self.frozen.slots.contains_key(&(EXTENT_DATA, key.offset)) {
                each(mapped, data);
            }
        })
    }

    fn behind_the_end(&self, edits: &mut BTreeMap<Key, Edit>) -> Result<()> {
        let end = self.item.size.next_multiple_of(self.sector);
        self.kept(end, u64::MAX, |mapped, data| {
            edits.insert(self.key(mapped.start), Edit::Put(data.into()));
        })
    }

    /// Items for what is a hole now where the commit has content. Whatever becomes one is told
    /// (`gaps`), and what was one is that no more where an extent came: so what is known of earlier
    /// writes changes by the new gaps and the new extents alone.
    fn holes(&self, holes: &mut Holes, edits: &mut BTreeMap<Key, Edit>) -> Result<()> {
        if holes.is_empty() && self.frozen.gaps.is_empty() {
            return Ok(());
        }
        let mut touched = BTreeSet::new();
        for at in &self.frozen.extents {
            match self.frozen.slots.get(&(EXTENT_DATA, *at)) {
                Some(Some(bytes)) => {
                    let mapped = Mapped::parse(&self.key(*at), bytes, self.sector)?;
                    holes.cut(mapped.start, mapped.end, &mut touched);
                }
                // What was in the commit under the key of a hole's item.
                _ => _ = touched.insert(*at),
            }
        }
        let gaps = join(self.frozen.gaps.clone());
        let now = if gaps.is_empty() { Vec::new() } else { self.extents_now()? };
        for (start, end) in gaps {
            if self.committed.has_content(self.id, self.sector, &[(start, end)])? {
                for (from, to) in self.bare(&now, start, end)? {
                    holes.add(from, to, &mut touched);
                }
            }
        }
        for from in touched {
            match holes.end_of(from) {
                Some(to) => {
                    let item = hole_item(self.generation, from, to);
                    edits.insert(self.key(from), Edit::Put(item));
                }
                None => _ = edits.entry(self.key(from)).or_insert(Edit::Delete),
            }
        }
        Ok(())
    }

    /// The parts of [start, end) that no extent covers now. Where the commit has content in it, all
    /// extents were taken, and those that came since lie where `now` says.
    fn bare(&self, now: &[(u64, u64)], start: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        let mut covered = within(now, start, end).to_vec();
        self.kept(start, end, |mapped, _| covered.push((mapped.start, mapped.end)))?;
        Ok(uncovered(covered, start, end))
    }

    /// Where the file has extents of this epoch, in order.
    fn extents_now(&self) -> Result<Vec<(u64, u64)>> {
        let mut now = Vec::new();
        for (&(_, offset), value) in self.slots() {
            if let Some(bytes) = value {
                let mapped = Mapped::parse(&self.key(offset), bytes, self.sector)?;
                now.push((mapped.start, mapped.end));
            }
        }
        Ok(join(now))
    }
}

/// Those of sorted ranges that have something of [start, end): a file can have as many gaps as extents.
fn within(ranges: &[(u64, u64)], start: u64, end: u64) -> &[(u64, u64)] {
    let first = ranges.partition_point(|(_, to)| *to <= start);
    let behind = ranges[first..].partition_point(|(from, _)| *from < end);
    &ranges[first..first + behind]
}

/// The parts of [start, end) that no range covers.
fn uncovered(mut covered: Vec<(u64, u64)>, start: u64, end: u64) -> Vec<(u64, u64)> {
    #[cfg(feature = "fault-injection")]
    COMPARED.with(|compared| compared.set(compared.get() + covered.len()));
    covered.sort_unstable();
    let (mut out, mut at) = (Vec::new(), start);
    for (from, to) in covered {
        if from > at && at < end {
            out.push((at, from.min(end)));
        }
        at = at.max(to);
    }
    if at < end {
        out.push((at, end));
    }
    out
}

#[cfg(feature = "fault-injection")]
thread_local! {
    static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many extents this thread has compared with gaps since it asked last.
#[cfg(feature = "fault-injection")]
pub fn compared_with_gaps() -> usize {
    COMPARED.with(|compared| compared.replace(0))
}

/// Sorted ranges, those that touch as one.
fn join(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match out.last_mut() {
            Some((_, last)) if *last >= start => *last = (*last).max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let joined = join(vec![(8, 12), (0, 4), (4, 6), (10, 20), (30, 31)]);
        assert_eq!(joined, [(0, 6), (8, 20), (30, 31)]);
    }

    #[test]
    fn what_no_range_covers_is_bare() {
        let ranges = [(0, 6), (8, 20), (30, 31)];
        assert!(within(&ranges, 6, 8).is_empty());
        assert_eq!(within(&ranges, 5, 9), &ranges[..2]);
        assert_eq!(within(&ranges, 20, 99), &ranges[2..]);
        assert_eq!(uncovered(ranges.to_vec(), 5, 40), [(6, 8), (20, 30), (31, 40)]);
        assert_eq!(uncovered(Vec::new(), 6, 8), [(6, 8)]);
        assert_eq!(uncovered(vec![(7, 9), (0, 3)], 2, 8), [(3, 7)]);
    }
}
