//! Free ranges of one block group <-> its items: FREE_SPACE_INFO and either extents or
//! bitmaps.
//!
//! Facts of the format. A bitmap item covers 2048 sectors (256 bytes, one bit a sector,
//! least significant first); the last one of a group what is left. In bitmap form every
//! part of the group has its item. `extent_count` counts runs of free sectors, across
//! bitmaps. Which form: bitmaps as soon as the extents' item headers would take more of
//! the tree than all bitmaps, extents again 100 below that. Superblock copies inside a
//! block group count as free here.

use super::ranges::Ranges;
use crate::items::Items;
use btrfs_disk::items::{FREE_SPACE_USING_BITMAPS, FreeSpaceInfo};
use btrfs_disk::key::kind;
use btrfs_disk::node::ITEM_SIZE;
use btrfs_disk::{Corrupt, Error, FixedSize, Key, Result};

/// Key and data of items as stored.
pub type Stored = Vec<(Key, Vec<u8>)>;

/// Of one bitmap item; the format's.
const BITMAP_BYTES: u64 = 256;

/// What of a block group the free-space tree needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupSpan {
    /// Where the group begins, a logical address.
    pub start: u64,
    /// Bytes of the group: its chunk's length.
    pub len: u64,
    /// Bytes of a sector: what one bit of a bitmap stands for.
    pub sector: u64,
}

/// A group's free space as the tree has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupFree {
    /// Its items are bitmaps, as its info says; else one item stands for each free range.
    pub bitmaps: bool,
    /// What is free, by logical address; superblock copies are free here.
    pub free: Ranges,
}

impl GroupSpan {
    /// The first logical address behind the group.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Key of its FREE_SPACE_INFO, which says how many extents there are and in which form.
    pub fn info_key(&self) -> Key {
        Key::new(self.start, kind::FREE_SPACE_INFO, self.len)
    }

    pub(super) fn bitmap_range(&self) -> u64 {
        BITMAP_BYTES * 8 * self.sector
    }

    /// More extents than this: bitmaps.
    pub fn high(&self) -> u64 {
        let header = ITEM_SIZE as u64;
        self.len.div_ceil(self.bitmap_range()) * (header + BITMAP_BYTES) / header
    }

    /// Fewer extents than this: extents again.
    pub fn low(&self) -> u64 {
        self.high().saturating_sub(100)
    }

    /// Bytes that the items of `count` free ranges take at most, with their headers.
    pub fn most_bytes(&self, count: u64) -> u64 {
        let header = ITEM_SIZE as u64;
        let info = header + FreeSpaceInfo::SIZE as u64;
        let bitmaps = self.len.div_ceil(self.bitmap_range()) * (header + BITMAP_BYTES);
        info + bitmaps.max(header * count.min(self.high()))
    }

    /// The form that `count` extents take which are in form `bitmaps` now.
    pub fn wants_bitmaps(&self, bitmaps: bool, count: u64) -> bool {
        if bitmaps { count >= self.low() } else { count > self.high() }
    }

    /// All items of the group, the info first.
    pub fn items_of(&self, space: &GroupFree) -> Stored {
        let flags = if space.bitmaps { FREE_SPACE_USING_BITMAPS } else { 0 };
        let info = FreeSpaceInfo { extent_count: space.free.len() as u32, flags };
        let mut out = vec![(self.info_key(), info.to_vec())];
        if space.bitmaps {
            out.extend(self.bitmaps_of(&space.free));
        } else {
            out.extend(
                space
                    .free
                    .iter()
                    .map(|(start, len)| (Key::new(start, kind::FREE_SPACE_EXTENT, len), vec![])),
            );
        }
        out.sort_unstable_by_key(|(key, _)| *key);
        out
    }

    fn bitmaps_of(&self, free: &Ranges) -> Stored {
        let range = self.bitmap_range();
        let mut out: Stored = (0..self.len.div_ceil(range))
            .map(|i| {
                let start = self.start + i * range;
                let len = range.min(self.end() - start);
                let bytes = (len / self.sector).div_ceil(8) as usize;
                (Key::new(start, kind::FREE_SPACE_BITMAP, len), vec![0; bytes])
            })
            .collect();
        for (start, len) in free.iter() {
            for sector in
                (start - self.start) / self.sector..(start + len - self.start) / self.sector
            {
                let (item, bit) = (sector / (BITMAP_BYTES * 8), sector % (BITMAP_BYTES * 8));
                out[item as usize].1[bit as usize / 8] |= 1 << (bit % 8);
            }
        }
        out
    }

    pub(super) fn info(&self, items: &mut dyn Items) -> Result<FreeSpaceInfo> {
        let key = self.info_key();
        let absent = || Corrupt::new("block group without free space info").key(key);
        let info = items.get(&key)?.ok_or_else(absent)?;
        Ok(FreeSpaceInfo::read(&info).map_err(|c| c.key(key))?)
    }

    /// Reads the group's items, which must be whole and true to their count. Also
    /// answers all keys and data as stored.
    pub fn read(&self, items: &mut dyn Items) -> Result<(GroupFree, Stored)> {
        let info = self.info(items)?;
        let mut stored = vec![(self.info_key(), info.to_vec())];
        let mut space =
            GroupFree { bitmaps: info.flags & FREE_SPACE_USING_BITMAPS != 0, free: Ranges::new() };
        self.scan(items, &mut |key, data| {
            if key != self.info_key() {
                self.take_item(&mut space, key, data)?;
                stored.push((key, data.to_vec()));
            }
            Ok(())
        })?;
        let counted = if space.bitmaps { space.free.len() } else { stored.len() - 1 };
        if counted as u64 != u64::from(info.extent_count) {
            let what = format!("{counted} free extents, {} are announced", info.extent_count);
            return Err(Error::Corrupt(Corrupt::new(what).key(self.info_key())));
        }
        stored.sort_unstable_by_key(|(key, _)| *key);
        Ok((space, stored))
    }

    /// All items of the free-space tree whose keys lie in the group.
    pub(super) fn scan(
        &self,
        items: &mut dyn Items,
        each: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let to = Key::new(self.end() - 1, u8::MAX, u64::MAX);
        items.scan(Key::new(self.start, 0, 0), to, each)
    }

    fn take_item(&self, space: &mut GroupFree, key: Key, data: &[u8]) -> Result<()> {
        let damage = |what: &str| Error::Corrupt(Corrupt::new(what).key(key));
        let end = key.objectid.checked_add(key.offset);
        let aligned = key.objectid.is_multiple_of(self.sector)
            && key.offset.is_multiple_of(self.sector)
            && key.offset > 0;
        if !aligned || end.is_none_or(|end| end > self.end()) {
            return Err(damage("free space lies outside its block group"));
        }
        match (key.kind, space.bitmaps) {
            (kind::FREE_SPACE_EXTENT, false) => {
                space.free.insert(key.objectid, key.offset).map_err(|_| damage("overlaps"))?;
            }
            (kind::FREE_SPACE_BITMAP, true) => {
                let sectors = key.offset / self.sector;
                if data.len() as u64 != sectors.div_ceil(8) {
                    return Err(damage("bitmap has another size than its range"));
                }
                for (first, count) in runs(data, sectors) {
                    space
                        .free
                        .insert(key.objectid + first * self.sector, count * self.sector)
                        .map_err(|_| damage("overlaps"))?;
                }
            }
            _ => return Err(damage("item does not belong in this form of a block group")),
        }
        Ok(())
    }
}

/// Runs of set bits (first, count) among the first `bits`.
fn runs(data: &[u8], bits: u64) -> Vec<(u64, u64)> {
    let set = |bit: u64| data[bit as usize / 8] & (1 << (bit % 8)) != 0;
    let mut out = Vec::new();
    let mut at = 0;
    while at < bits {
        let first = at;
        while at < bits && set(at) {
            at += 1;
        }
        if at > first {
            out.push((first, at - first));
        }
        at += 1;
    }
    out
}
