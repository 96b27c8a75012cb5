//! Updates of a group's free space that touch nothing but what is near the changes.
//!
//! Invariant: `count` is the number of free runs after every step. Each step checks all
//! that it builds on: what is put was not free, what is taken was.

use super::form::GroupSpan;
use super::{FREE_ALREADY, NOT_FREE, clash};
use crate::Extent;
use crate::items::{Changes, Items, Overlay};
use btrfs_disk::items::{FREE_SPACE_USING_BITMAPS, FreeSpaceInfo};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Error, FixedSize, Key, Result};
use std::collections::BTreeMap;

/// `None` where the group must be rewritten: its form changes, or its bitmaps are not
/// laid out as the format's writers do.
pub(super) fn update(
    items: &mut dyn Items,
    span: &GroupSpan,
    created: &[Extent],
    freed: &[Extent],
) -> Result<Option<Changes>> {
    let info = span.info(items)?;
    created.iter().chain(freed).try_for_each(|extent| span.holds(extent))?;
    let bitmaps = info.flags & FREE_SPACE_USING_BITMAPS != 0;
    let mut items = Overlay::new(items);
    let count = i64::from(info.extent_count);
    let count = match bitmaps {
        false => Extents { span, items: &mut items, count }.run(created, freed)?,
        true => {
            let maps = BTreeMap::new();
            match (Bitmaps { span, items: &mut items, count, maps }).run(created, freed)? {
                Some(count) => count,
                None => return Ok(None),
            }
        }
    };
    let damage = || Corrupt::new("free extents are fewer than announced").key(span.info_key());
    let count = u32::try_from(count).map_err(|_| damage())?;
    if span.wants_bitmaps(bitmaps, u64::from(count)) != bitmaps {
        return Ok(None);
    }
    if count != info.extent_count {
        let info = FreeSpaceInfo { extent_count: count, flags: info.flags };
        items.put(span.info_key(), info.to_vec());
    }
    items.into_changes().map(Some)
}

struct Extents<'s, 'o, 'a> {
    span: &'s GroupSpan,
    items: &'o mut Overlay<'a>,
    count: i64,
}

impl Extents<'_, '_, '_> {
    fn run(mut self, created: &[Extent], freed: &[Extent]) -> Result<i64> {
        freed.iter().try_for_each(|extent| self.put(extent))?;
        created.iter().try_for_each(|extent| self.take(extent))?;
        Ok(self.count)
    }

    fn key(start: u64, len: u64) -> Key {
        Key::new(start, kind::FREE_SPACE_EXTENT, len)
    }

    /// The last free extent that begins at `at` or before: (start, end).
    fn before(&mut self, at: u64) -> Result<Option<(u64, u64)>> {
        let found = self.items.at_or_before(&Self::key(at, u64::MAX))?;
        self.mine(found)
    }

    /// The first free extent that begins behind `at`.
    fn behind(&mut self, at: u64) -> Result<Option<(u64, u64)>> {
        let found = self.items.at_or_after(&Key::new(at + 1, 0, 0))?;
        self.mine(found)
    }

    fn mine(&self, found: Option<(Key, Vec<u8>)>) -> Result<Option<(u64, u64)>> {
        let Some((key, _)) = found else { return Ok(None) };
        if key == self.span.info_key()
            || !(self.span.start..self.span.end()).contains(&key.objectid)
        {
            return Ok(None);
        }
        let end = key.objectid.checked_add(key.offset).filter(|end| *end <= self.span.end());
        match end {
            Some(end) if key.kind == kind::FREE_SPACE_EXTENT => Ok(Some((key.objectid, end))),
            _ => Err(Error::Corrupt(
                Corrupt::new("item does not belong in this form of a block group").key(key),
            )),
        }
    }

    fn put(&mut self, extent: &Extent) -> Result<()> {
        let (mut start, mut end) = (extent.logical.0, extent.end());
        let (before, behind) = (self.before(start)?, self.behind(start)?);
        if before.is_some_and(|(_, e)| e > start) || behind.is_some_and(|(s, _)| s < end) {
            return Err(clash(extent, FREE_ALREADY));
        }
        if let Some((low, _)) = before.filter(|(_, e)| *e == start) {
            self.items.delete(Self::key(low, start - low));
            (start, self.count) = (low, self.count - 1);
        }
        if let Some((_, high)) = behind.filter(|(s, _)| *s == end) {
            self.items.delete(Self::key(end, high - end));
            (end, self.count) = (high, self.count - 1);
        }
        self.add(start, end);
        Ok(())
    }

    fn take(&mut self, extent: &Extent) -> Result<()> {
        let (start, end) = (extent.logical.0, extent.end());
        let found = self.before(start)?.filter(|(_, high)| *high >= end);
        let (low, high) = found.ok_or_else(|| clash(extent, NOT_FREE))?;
        self.items.delete(Self::key(low, high - low));
        self.count -= 1;
        if low < start {
            self.add(low, start);
        }
        if end < high {
            self.add(end, high);
        }
        Ok(())
    }

    fn add(&mut self, start: u64, end: u64) {
        self.items.put(Self::key(start, end - start), Vec::new());
        self.count += 1;
    }
}

struct Bitmaps<'s, 'o, 'a> {
    span: &'s GroupSpan,
    items: &'o mut Overlay<'a>,
    count: i64,
    /// Bitmaps that were looked at, by index in the group; and whether they changed.
    maps: BTreeMap<u64, (Vec<u8>, bool)>,
}

/// Why a bit could not be looked at.
enum Unread {
    /// A bitmap is not where it should be.
    Displaced,
    Failed(Error),
}

impl From<Error> for Unread {
    fn from(error: Error) -> Unread {
        Unread::Failed(error)
    }
}

/// A bitmap, whether it changed, and a bit in it.
type BitmapBit<'m> = (&'m mut (Vec<u8>, bool), usize);

impl Bitmaps<'_, '_, '_> {
    fn run(mut self, created: &[Extent], freed: &[Extent]) -> Result<Option<i64>> {
        for (extents, free) in [(freed, true), (created, false)] {
            for extent in extents {
                match self.set(extent, free) {
                    Ok(()) => {}
                    Err(Unread::Displaced) => return Ok(None),
                    Err(Unread::Failed(error)) => return Err(error),
                }
            }
        }
        for (index, (bytes, changed)) in self.maps {
            if changed {
                self.items.put(key(self.span, index), bytes);
            }
        }
        Ok(Some(self.count))
    }

    /// Turns a run of bits that all were the other way.
    fn set(&mut self, extent: &Extent, free: bool) -> Result<(), Unread> {
        let span = *self.span;
        let first = (extent.logical.0 - span.start) / span.sector;
        let last = (extent.end() - span.start) / span.sector;
        for sector in first..last {
            if !self.turn(sector, free)? {
                return Err(clash(extent, if free { FREE_ALREADY } else { NOT_FREE }).into());
            }
        }
        let mut neighbours = 0;
        for sector in [first.checked_sub(1), Some(last)].into_iter().flatten() {
            if sector < span.len / span.sector {
                neighbours += i64::from(self.bit(sector)?);
            }
        }
        // A new run is one more, less for each that it joins; a gap the other way round.
        self.count += if free { 1 - neighbours } else { neighbours - 1 };
        Ok(())
    }

    fn map(&mut self, sector: u64) -> Result<BitmapBit<'_>, Unread> {
        let per_map = self.span.bitmap_range() / self.span.sector;
        let (index, bit) = (sector / per_map, (sector % per_map) as usize);
        if !self.maps.contains_key(&index) {
            let key = key(self.span, index);
            let Some(bytes) = self.items.get(&key)? else { return Err(Unread::Displaced) };
            if bytes.len() as u64 != (key.offset / self.span.sector).div_ceil(8) {
                let what = Corrupt::new("bitmap has another size than its range");
                return Err(Error::Corrupt(what.key(key)).into());
            }
            self.maps.insert(index, (bytes, false));
        }
        Ok((self.maps.get_mut(&index).expect("there or just put in"), bit))
    }

    fn bit(&mut self, sector: u64) -> Result<bool, Unread> {
        let ((bytes, _), bit) = self.map(sector)?;
        Ok(bytes[bit / 8] & (1 << (bit % 8)) != 0)
    }

    /// False if the bit was `free` before.
    fn turn(&mut self, sector: u64, free: bool) -> Result<bool, Unread> {
        let ((bytes, changed), bit) = self.map(sector)?;
        let (byte, mask) = (&mut bytes[bit / 8], 1u8 << (bit % 8));
        let turned = (*byte & mask != 0) != free;
        *byte ^= if turned { mask } else { 0 };
        *changed = true;
        Ok(turned)
    }
}

/// The key of bitmap number `index`.
fn key(span: &GroupSpan, index: u64) -> Key {
    let start = span.start + index * span.bitmap_range();
    Key::new(start, kind::FREE_SPACE_BITMAP, span.bitmap_range().min(span.end() - start))
}
