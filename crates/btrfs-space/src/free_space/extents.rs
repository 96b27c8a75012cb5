//! The free ranges of a block group as the extent tree has them: what no extent takes.
//!
//! Needed where no free-space tree says it (version 1 space cache), or none that may be
//! believed. Superblock copies inside the group count as free, as in that tree.
//!
//! What it does not know: whether the extent tree tells the truth, and extents that reach in
//! from another block group with others between.

use super::{GroupSpan, Ranges};
use crate::items::Items;
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Key, Logical, Result};

impl GroupSpan {
    /// One scan of the group's part of the extent tree. Extents that overlap, or end outside of
    /// the group, are damage.
    pub fn between_extents(&self, extents: &mut dyn Items, node_size: u64) -> Result<Ranges> {
        let mut free = Ranges::new();
        let mut at = self.start;
        if let Some((start, len)) = last_before(extents, self.start, node_size)?
            && start.checked_add(len).is_none_or(|end| end > self.start)
        {
            return Err(self.bad(start, len));
        }
        let to = Key::new(self.end() - 1, u8::MAX, u64::MAX);
        extents.scan(Key::new(self.start, 0, 0), to, &mut |key, _| {
            let Some((start, len)) = extent_of(&key, node_size) else { return Ok(()) };
            let end = start.checked_add(len).filter(|end| *end <= self.end());
            let Some(end) = end.filter(|_| start >= at && len > 0) else {
                return Err(self.bad(start, len));
            };
            self.gap(&mut free, at, start)?;
            at = end;
            Ok(())
        })?;
        self.gap(&mut free, at, self.end())?;
        Ok(free)
    }

    fn gap(&self, free: &mut Ranges, from: u64, to: u64) -> Result<()> {
        if from == to {
            return Ok(());
        }
        free.insert(from, to - from).map(drop).map_err(|_| self.bad(from, to - from))
    }

    fn bad(&self, start: u64, len: u64) -> btrfs_disk::Error {
        let what = format!(
            "block group of {} bytes: extent {start} of {len} bytes overlaps another or ends \
             outside",
            self.len
        );
        Corrupt::new(what).at(Logical(self.start)).into()
    }
}

/// Start and length of an extent, if the key is one's.
pub(crate) fn extent_of(key: &Key, node_size: u64) -> Option<(u64, u64)> {
    match key.kind {
        kind::EXTENT_ITEM => Some((key.objectid, key.offset)),
        kind::METADATA_ITEM => Some((key.objectid, node_size)),
        _ => None,
    }
}

/// The extent that begins last in front of `start`.
pub(crate) fn last_before(
    items: &mut dyn Items,
    start: u64,
    node_size: u64,
) -> Result<Option<(u64, u64)>> {
    let Some((key, _)) = items.at_or_before(&Key::new(start, 0, 0))? else { return Ok(None) };
    // What was found may be a reference to it, or a block group.
    let found = items.at_or_after(&Key::new(key.objectid, kind::EXTENT_ITEM, 0))?;
    Ok(found.and_then(|(key, _)| extent_of(&key, node_size)).filter(|(at, _)| *at < start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const SPAN: GroupSpan = GroupSpan { start: 1 << 20, len: 1 << 20, sector: 4096 };

    fn free(keys: &[(u64, u8, u64)]) -> Result<Vec<(u64, u64)>> {
        let mut items: BTreeMap<Key, Vec<u8>> =
            keys.iter().map(|(at, kind, len)| (Key::new(*at, *kind, *len), vec![])).collect();
        SPAN.between_extents(&mut items, 16384).map(|free| free.iter().collect())
    }

    #[test]
    fn gaps_are_free() {
        let (start, end) = (SPAN.start, SPAN.end());
        assert_eq!(free(&[]).unwrap(), [(start, SPAN.len)]);
        let keys = [
            (start - 4096, kind::EXTENT_ITEM, 4096),
            (start, kind::EXTENT_ITEM, 8192),
            (start, kind::BLOCK_GROUP_ITEM, SPAN.len),
            (start + 8192, kind::METADATA_ITEM, 0),
            (end - 4096, kind::EXTENT_ITEM, 4096),
            (end, kind::EXTENT_ITEM, 4096),
        ];
        let first = start + 8192 + 16384;
        assert_eq!(free(&keys).unwrap(), [(first, end - 4096 - first)]);
    }

    #[test]
    fn what_overlaps_is_damage() {
        let (start, end) = (SPAN.start, SPAN.end());
        for keys in [
            [(start - 4096, kind::EXTENT_ITEM, 8192), (start + 8192, kind::EXTENT_ITEM, 4096)],
            [(start, kind::EXTENT_ITEM, 8192), (start + 4096, kind::EXTENT_ITEM, 4096)],
            [(start, kind::EXTENT_ITEM, 0), (start + 4096, kind::EXTENT_ITEM, 4096)],
            [(start, kind::EXTENT_ITEM, 4096), (end - 4096, kind::EXTENT_ITEM, u64::MAX)],
            [(start, kind::EXTENT_ITEM, 4096), (end - 4096, kind::METADATA_ITEM, 0)],
        ] {
            assert!(free(&keys).is_err(), "{keys:?}");
        }
    }
}
