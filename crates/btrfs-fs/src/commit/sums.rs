//! The checksum tree's edits of one commit: sums of data that landed go in, sums of
//! extents that died go out.
//!
//! Invariants: items do not overlap; a run goes on in the item in front of it while that
//! has room. Sums of data that died in the same epoch are never put.

use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::key::kind::EXTENT_CSUM;
use btrfs_disk::{Key, Logical, Result};
use btrfs_space::Extent;
use btrfs_tree::{Cursor, Edit, NodeReader, TreeRoot};
use std::collections::BTreeMap;

pub struct SumFormat {
    pub sector: u64,
    /// Bytes of one checksum.
    pub size: usize,
    /// Largest item, in bytes.
    pub max_item: usize,
}

fn key_of(address: u64) -> Key {
    Key::new(EXTENT_CSUM_OBJECTID, EXTENT_CSUM, address)
}

/// The tree's items as they will be, where they differ from what they are.
struct Changes<'a> {
    format: &'a SumFormat,
    /// Items read or made so far; `None`: deleted.
    items: BTreeMap<u64, Option<Vec<u8>>>,
}

impl Changes<'_> {
    fn end(&self, start: u64, sums: &[u8]) -> u64 {
        start + (sums.len() / self.format.size) as u64 * self.format.sector
    }

    /// The last item that begins at or before `address`, changed or not.
    fn at_or_before<R: NodeReader + ?Sized>(
        &self,
        reader: &R,
        root: &TreeRoot,
        address: u64,
    ) -> Result<Option<(u64, Vec<u8>)>> {
        let mut limit = address;
        loop {
            let changed = self.items.range(..=limit).next_back();
            let mut cursor = Cursor::new(reader, root);
            cursor.seek_back(&key_of(limit))?;
            let stored = cursor
                .item()
                .filter(|(key, _)| key.objectid == EXTENT_CSUM_OBJECTID && key.kind == EXTENT_CSUM)
                .map(|(key, data)| (key.offset, data.to_vec()));
            let stored_at = stored.as_ref().map(|s| s.0);
            match changed {
                Some((start, value)) if Some(*start) >= stored_at => match value {
                    Some(sums) => return Ok(Some((*start, sums.clone()))),
                    None if *start == 0 => return Ok(None),
                    None => limit = *start - 1,
                },
                _ => return Ok(stored),
            }
        }
    }

    /// Removes the sums of [from, to).
    fn remove<R: NodeReader + ?Sized>(
        &mut self,
        reader: &R,
        root: &TreeRoot,
        from: u64,
        to: u64,
    ) -> Result<()> {
        let (sector, size) = (self.format.sector, self.format.size);
        let mut limit = to;
        while limit > 0 {
            let Some((start, sums)) = self.at_or_before(reader, root, limit - 1)? else { break };
            let end = self.end(start, &sums);
            if end <= from {
                break;
            }
            limit = start;
            let keep_head = (from.saturating_sub(start) / sector) as usize * size;
            self.items.insert(start, (keep_head > 0).then(|| sums[..keep_head].to_vec()));
            if end > to {
                let skip = ((to - start) / sector) as usize * size;
                self.items.insert(to, Some(sums[skip..].to_vec()));
            }
        }
        Ok(())
    }

    /// Puts a run of sums, behind the item in front where they join.
    fn insert<R: NodeReader + ?Sized>(
        &mut self,
        reader: &R,
        root: &TreeRoot,
        at: u64,
        sums: &[u8],
    ) -> Result<()> {
        let (mut at, mut sums) = (at, sums);
        let room = self.format.max_item / self.format.size * self.format.size;
        if let Some((start, mut front)) = self.at_or_before(reader, root, at)?
            && self.end(start, &front) == at
            && front.len() < room
        {
            let take = sums.len().min(room - front.len());
            front.extend_from_slice(&sums[..take]);
            at = self.end(start, &front);
            self.items.insert(start, Some(front));
            sums = &sums[take..];
        }
        for part in sums.chunks(room) {
            self.items.insert(at, Some(part.to_vec()));
            at = self.end(at, part);
        }
        Ok(())
    }
}

/// `landed`: runs of checksums by first sector. `dead`: extents whose last reference went
/// (or that never got one).
pub fn edits<R: NodeReader + ?Sized>(
    reader: &R,
    root: &TreeRoot,
    format: &SumFormat,
    landed: &BTreeMap<Logical, Box<[u8]>>,
    freed: &[Extent],
    stillborn: &[Extent],
) -> Result<Vec<(Key, Edit)>> {
    let mut changes = Changes { format, items: BTreeMap::new() };
    for extent in freed {
        changes.remove(reader, root, extent.logical.0, extent.end())?;
    }
    let mut dead: Vec<Extent> = freed.iter().chain(stillborn).copied().collect();
    dead.sort_unstable();
    for (at, sums) in landed {
        let behind = dead.partition_point(|extent| extent.logical <= *at);
        if behind > 0 && dead[behind - 1].end() > at.0 {
            continue;
        }
        changes.insert(reader, root, at.0, sums)?;
    }
    let to_edit = |(start, value): (u64, Option<Vec<u8>>)| {
        (key_of(start), value.map_or(Edit::Delete, |sums| Edit::Put(sums.into())))
    };
    Ok(changes.items.into_iter().map(to_edit).collect())
}
