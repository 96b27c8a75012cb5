//! Where the first chunks lie, and where in them the nodes go.
//!
//! Chunks follow each other from the first MiB on, logically and physically: data,
//! system, metadata (or system and mixed). Nodes fill system and metadata from the
//! front, around superblock copies that lie under a chunk.

use super::error::{MkfsError, Result};
use super::options::{Profile, SECTOR, Settled};
use btrfs_disk::ids::{DEVICE_RESERVED, STRIPE_LEN, block_group};
use btrfs_disk::superblock::COPIES;

const MIB: u64 = 1 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PlannedChunk {
    pub logical: u64,
    pub len: u64,
    pub flags: u64,
    /// Physical start of each copy.
    pub stripes: Vec<u64>,
}

impl PlannedChunk {
    pub(super) fn is(&self, kind: u64) -> bool {
        self.flags & kind != 0
    }

    /// True if a copy of the range lies where a superblock copy may be.
    fn over_super(&self, offset: u64, len: u64) -> bool {
        self.stripes.iter().any(|start| {
            let at = start + offset;
            COPIES.iter().any(|copy| *copy < at + len && at < copy + STRIPE_LEN)
        })
    }

    /// The first `count` places of `size` bytes that may hold a node.
    pub(super) fn places(&self, size: u64) -> impl Iterator<Item = u64> + '_ {
        (0..self.len / size)
            .filter(move |i| !self.over_super(i * size, size))
            .map(move |i| self.logical + i * size)
    }
}

pub(super) struct Layout {
    pub total_bytes: u64,
    /// By logical address.
    pub chunks: Vec<PlannedChunk>,
}

/// (flags, length, copies) of each chunk, in order.
fn chunk_sizes(settled: &Settled, total: u64) -> Vec<(u64, u64, u64)> {
    let copies = settled.profile.copies();
    let dup = if settled.profile == Profile::Dup { block_group::DUP } else { 0 };
    let system = if dup != 0 && !settled.mixed { 8 * MIB } else { 4 * MIB };
    let system = (block_group::SYSTEM | dup, system, copies);
    if settled.mixed {
        let flags = block_group::DATA | block_group::METADATA | dup;
        return vec![system, (flags, 8 * MIB, copies)];
    }
    let most = if total > 50 << 30 { 1 << 30 } else { 256 * MIB };
    let tenth = total / 10;
    // Small volumes give a tenth to all copies together, as mkfs.btrfs does.
    let metadata = if tenth < most { tenth / copies / STRIPE_LEN * STRIPE_LEN } else { most };
    let metadata = metadata.max(32 * MIB);
    vec![(block_group::DATA, 8 * MIB, 1), system, (block_group::METADATA | dup, metadata, copies)]
}

/// The fewest bytes that these options need; not less than `mkfs.btrfs` asks for.
pub(super) fn minimum(settled: &Settled) -> u64 {
    let chunks: u64 = chunk_sizes(settled, 0).iter().map(|(_, len, copies)| len * copies).sum();
    let usual = match (settled.mixed, settled.profile) {
        (true, _) => 16 * MIB,
        (false, Profile::Single) => 45 * MIB,
        (false, Profile::Dup) => 109 * MIB,
    };
    usual.max(DEVICE_RESERVED + chunks)
}

impl Layout {
    pub(super) fn plan(settled: &Settled, device_len: u64) -> Result<Layout> {
        let total_bytes = device_len / u64::from(SECTOR) * u64::from(SECTOR);
        let minimum = minimum(settled);
        if total_bytes < minimum {
            return Err(MkfsError::TooSmall { minimum, have: device_len });
        }
        let (mut logical, mut physical) = (DEVICE_RESERVED, DEVICE_RESERVED);
        let mut chunks = Vec::new();
        for (flags, len, copies) in chunk_sizes(settled, total_bytes) {
            let stripes = (0..copies).map(|i| physical + i * len).collect();
            chunks.push(PlannedChunk { logical, len, flags, stripes });
            logical += len;
            physical += len * copies;
        }
        Ok(Layout { total_bytes, chunks })
    }

    /// The chunk for nodes of the chunk tree, or of all other trees.
    pub(super) fn chunk_for(&self, kind: u64) -> &PlannedChunk {
        self.chunks.iter().find(|c| c.is(kind)).expect("every layout has both kinds")
    }

    /// Physical places of a node.
    pub(super) fn physical(&self, logical: u64) -> Vec<u64> {
        let chunk = self.chunks.iter().find(|c| (c.logical..c.logical + c.len).contains(&logical));
        let chunk = chunk.expect("nodes lie in chunks");
        chunk.stripes.iter().map(|start| start + logical - chunk.logical).collect()
    }

    /// Bytes of the device that chunks occupy.
    pub(super) fn allocated(&self) -> u64 {
        self.chunks.iter().map(|c| c.len * c.stripes.len() as u64).sum()
    }
}
