//! The checksum tree's edits of one commit: sums of data that landed go in, sums of
//! extents that died go out.
//!
//! Invariants: items do not overlap; a run goes on in the item in front of it while that
//! has room. Sums of data that died in the same epoch are never put. Each look into the tree is for one
//! range or for an item in it: none goes on over what earlier ranges deleted, of which there may be any number.

use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::key::kind::EXTENT_CSUM;
use btrfs_disk::{Geometry, Key, Logical, Result};
use btrfs_space::Extent;
use btrfs_tree::{Cursor, Edit, NodeReader, TreeRoot};
use std::collections::BTreeMap;

pub(super) struct SumFormat {
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

    /// The last item that begins at or before `address`, changed or not. One that was deleted answers,
    /// too, as `None`: what is in front of it ends where it began.
    fn at_or_before<R: NodeReader + ?Sized>(
        &self,
        reader: &R,
        root: &TreeRoot,
        address: u64,
    ) -> Result<Option<(u64, Option<Vec<u8>>)>> {
        let changed = self.items.range(..=address).next_back();
        let mut cursor = Cursor::new(reader, root);
        cursor.seek_back(&key_of(address))?;
        let stored = cursor
            .item()
            .filter(|(key, _)| key.objectid == EXTENT_CSUM_OBJECTID && key.kind == EXTENT_CSUM);
        Ok(match (changed, stored) {
            (Some((start, sums)), stored)
                if stored.as_ref().is_none_or(|(key, _)| key.offset <= *start) =>
            {
                Some((*start, sums.clone()))
            }
            (_, stored) => stored.map(|(key, sums)| (key.offset, Some(sums.to_vec()))),
        })
    }

    /// The item that a run at `at` may go on in.
    fn in_front<R: NodeReader + ?Sized>(
        &self,
        reader: &R,
        root: &TreeRoot,
        at: u64,
    ) -> Result<Option<(u64, Vec<u8>)>> {
        let found = match self.at_or_before(reader, root, at)? {
            // The run takes the place of what was deleted.
            Some((start, None)) if start == at && at > 0 => {
                self.at_or_before(reader, root, at - 1)?
            }
            found => found,
        };
        Ok(found.and_then(|(start, sums)| Some((start, sums?))))
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
        // What is in front of an item ends where that begins.
        while limit > from {
            let Some((start, sums)) = self.at_or_before(reader, root, limit - 1)? else { break };
            limit = start;
            let Some(sums) = sums else { continue };
            let end = self.end(start, &sums);
            if end <= from {
                break;
            }
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
        if let Some((start, mut front)) = self.in_front(reader, root, at)?
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

/// What became of data whose checksums are or were on the way.
pub(super) struct Obsolete<'a> {
    /// Extents whose last reference went.
    pub freed: &'a [Extent],
    /// Extents that never got one.
    pub stillborn: &'a [Extent],
    /// Ranges whose stored checksums give way to landed ones.
    pub stale: &'a [Extent],
}

/// Bytes of the largest item of checksums: half a leaf, so that two such items share one.
pub fn max_item(geometry: &Geometry) -> usize {
    geometry.leaf_space() / 2 - 64
}

/// `landed`: runs of checksums by first sector.
pub(super) fn edits<R: NodeReader + ?Sized>(
    reader: &R,
    root: &TreeRoot,
    format: &SumFormat,
    landed: &BTreeMap<Logical, Box<[u8]>>,
    fate: &Obsolete<'_>,
) -> Result<Vec<(Key, Edit)>> {
    let mut changes = Changes { format, items: BTreeMap::new() };
    let mut dead: Vec<Extent> = fate.freed.to_vec();
    dead.sort_unstable();
    for (from, to) in joined(&dead).into_iter().chain(joined(fate.stale)) {
        changes.remove(reader, root, from, to)?;
    }
    dead.extend_from_slice(fate.stillborn);
    dead.sort_unstable();
    let alive = landed.iter().filter(|(at, _)| {
        let behind = dead.partition_point(|extent| extent.logical <= **at);
        behind == 0 || dead[behind - 1].end() <= at.0
    });
    // Runs that join on the volume go in as one: each costs a look into the tree.
    let mut run: Option<(u64, Vec<u8>)> = None;
    for (at, sums) in alive {
        match &mut run {
            Some((start, whole)) if changes.end(*start, whole) == at.0 => {
                whole.extend_from_slice(sums);
            }
            _ => {
                if let Some((start, whole)) = run.replace((at.0, sums.to_vec())) {
                    changes.insert(reader, root, start, &whole)?;
                }
            }
        }
    }
    if let Some((start, whole)) = run {
        changes.insert(reader, root, start, &whole)?;
    }
    let to_edit = |(start, value): (u64, Option<Vec<u8>>)| {
        (key_of(start), value.map_or(Edit::Delete, |sums| Edit::Put(sums.into())))
    };
    Ok(changes.items.into_iter().map(to_edit).collect())
}

/// Sorted extents as (start, end), neighbours as one.
fn joined(extents: &[Extent]) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for extent in extents {
        match out.last_mut() {
            Some((_, end)) if *end == extent.logical.0 => *end = extent.end(),
            _ => out.push((extent.logical.0, extent.end())),
        }
    }
    out
}

#[cfg(test)]
#[path = "sums_tests.rs"]
mod tests;
