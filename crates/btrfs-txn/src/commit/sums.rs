//! The checksum tree's edits of one commit: sums of data that landed go in, sums of
//! extents that died go out.
//!
//! Invariants: items do not overlap; a run goes on in the item in front of it while that
//! has room. Sums of data that died in the same epoch are never put.

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
mod tests {
    use super::*;
    use btrfs_disk::{ChecksumType, Generation, TreeId};
    use btrfs_tree::{DirtyNodes, NodeSink};
    use std::sync::Arc;

    const SECTOR: u64 = 4096;

    /// Hands out addresses, counts nothing.
    struct Addresses(u64);

    impl NodeSink for Addresses {
        fn detach(&mut self, _: TreeId, _: &Arc<btrfs_disk::Node>) -> Result<()> {
            Ok(())
        }
        fn alloc(&mut self, _: TreeId, _: u8, _: Key) -> Result<Logical> {
            self.0 += 16384;
            Ok(Logical(self.0))
        }
        fn free_dirty(&mut self, _: TreeId, _: Logical, _: u8) -> Result<()> {
            Ok(())
        }
    }

    /// Commit after commit against a map of sector to checksum.
    #[test]
    fn random_commits_match_a_map() {
        let geometry = Geometry {
            sector_size: SECTOR as u32,
            node_size: 4096,
            csum: ChecksumType::Crc32c,
            metadata_uuid: [1; 16],
            chunk_tree_uuid: [2; 16],
        };
        let format = SumFormat { sector: SECTOR, size: 4, max_item: 256 };
        let blank = btrfs_tree::Blank(geometry);
        let (mut dirty, mut sink) = (DirtyNodes::new(), Addresses(1 << 30));
        let generation = Generation(7);
        let mut root =
            btrfs_tree::new_tree(&geometry, &mut dirty, &mut sink, generation, TreeId::CSUM)
                .unwrap();
        let mut model: BTreeMap<u64, [u8; 4]> = BTreeMap::new();
        let mut seed = 5u64;
        let mut random = move |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for round in 0..300u32 {
            let (mut landed, mut freed) = (BTreeMap::new(), Vec::new());
            for _ in 0..random(6) {
                let (at, count) = (random(600), 1 + random(90));
                let range = at..at + count;
                let known = |s: &u64| model.contains_key(&(s * SECTOR));
                if range.clone().all(|s| known(&s)) {
                    let extent = Extent { logical: Logical(at * SECTOR), len: count * SECTOR };
                    freed.push(extent);
                    range.for_each(|s| {
                        model.remove(&(s * SECTOR));
                    });
                } else if range.clone().all(|s| !known(&s)) && freed.is_empty() {
                    let mut sums = Vec::new();
                    for sector in range {
                        let sum = [round as u8, sector as u8, 3, 4];
                        model.insert(sector * SECTOR, sum);
                        sums.extend_from_slice(&sum);
                    }
                    landed.insert(Logical(at * SECTOR), sums.into());
                }
            }
            // Stillborn data leaves no checksums.
            let dead = Extent { logical: Logical(1 << 29), len: SECTOR };
            landed.insert(dead.logical, vec![9u8; 4].into());
            let fate = Obsolete { freed: &freed, stillborn: &[dead], stale: &[] };
            let edits = edits(&dirty.over(&blank), &root, &format, &landed, &fate).unwrap();
            root =
                btrfs_tree::apply(&blank, &mut dirty, &mut sink, generation, &root, edits).unwrap();
            assert_eq!(read_all(&dirty.over(&blank), &root), model, "round {round}");
        }
    }

    fn read_all<R: NodeReader>(reader: &R, root: &TreeRoot) -> BTreeMap<u64, [u8; 4]> {
        let mut all = BTreeMap::new();
        let mut cursor = Cursor::new(reader, root);
        cursor.first().unwrap();
        while let Some((key, data)) = cursor.item() {
            assert!(data.len() <= 256 && !data.is_empty());
            for (i, sum) in data.chunks_exact(4).enumerate() {
                let old = all.insert(key.offset + i as u64 * SECTOR, sum.try_into().unwrap());
                assert!(old.is_none(), "items overlap at {key}");
            }
            cursor.next().unwrap();
        }
        all
    }
}
