//! What a volume is made of, in numbers: its devices, and its block groups by what they are for.
//!
//! Of a volume that takes changes, what is used is as of the last commit that was settled; what
//! exists only in memory is no part of it. It does not know who asks, nor how it is told.

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::fs::BtrfsFs;
use crate::reserve::global_reserve;
use btrfs_disk::ids::block_group::{PROFILE_MASK, TYPE_MASK};
use btrfs_disk::items::BlockGroupItem;
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key};
use btrfs_volume::ChunkInfo;
use std::collections::BTreeMap;
use vfs::Result;

/// One device of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceUsage {
    /// Its number in the volume.
    pub id: u64,
    /// Its own UUID.
    pub uuid: [u8; 16],
    /// Its bytes.
    pub total: u64,
    /// Those of them that chunks occupy.
    pub used: u64,
}

/// All block groups of one kind and profile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupUsage {
    /// `block_group` flags.
    pub flags: u64,
    /// What they hold, each byte once however often it is stored.
    pub total: u64,
    /// What of it is in use.
    pub used: u64,
    /// Device numbers, and what they occupy there.
    pub on_devices: Vec<(u64, u64)>,
}

/// The numbers of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usage {
    /// The volume's UUID.
    pub fsid: [u8; 16],
    /// Its label.
    pub label: Vec<u8>,
    /// The commit that they are of.
    pub generation: u64,
    /// By number.
    pub devices: Vec<DeviceUsage>,
    /// In the order in which the kernel tells of them: data, system, metadata.
    pub groups: Vec<GroupUsage>,
    /// Metadata that is kept for removals.
    pub global_reserve: u64,
    /// What files can still have, as statfs says.
    pub available: u64,
}

impl BtrfsFs {
    /// Where the volume's space is had from: tests let allocations fail there.
    #[cfg(feature = "fault-injection")]
    pub fn space(&self) -> &btrfs_space::Space {
        &self.engine.core.space
    }

    /// What the volume is made of, in numbers.
    pub fn usage(&self) -> Result<Usage> {
        let engine = self.open()?;
        let sb = engine.core.volume.superblock();
        let told = crate::ops::statfs::statfs(engine)?;
        let item = &sb.fields.dev_item;
        let chunks = engine.core.volume.chunks();
        let device = DeviceUsage {
            id: item.devid,
            uuid: item.uuid,
            total: item.total_bytes,
            used: chunks.iter().map(ChunkInfo::on_devices).sum(),
        };
        Ok(Usage {
            fsid: sb.fields.fsid,
            label: crate::ops::label::get(engine),
            generation: sb.fields.generation.0,
            devices: vec![device],
            groups: groups(engine, &chunks)?,
            global_reserve: global_reserve(&engine.core)?,
            available: told.blocks_available * u64::from(told.block_size),
        })
    }
}

fn groups(engine: &Engine, chunks: &[ChunkInfo]) -> Result<Vec<GroupUsage>> {
    let used = used_bytes(engine, chunks)?;
    let mut all: BTreeMap<(u64, u64), GroupUsage> = BTreeMap::new();
    for (chunk, used) in chunks.iter().zip(used) {
        let flags = chunk.flags & (TYPE_MASK | PROFILE_MASK);
        // Types by their bits are data, system, metadata; a mixed group has more bits than data.
        let group = all.entry((flags & TYPE_MASK, flags)).or_default();
        group.flags = flags;
        group.total += chunk.len;
        group.used += used;
        for (device, _) in &chunk.stripes {
            match group.on_devices.iter_mut().find(|(known, _)| known == device) {
                Some((_, bytes)) => *bytes += chunk.len,
                None => group.on_devices.push((*device, chunk.len)),
            }
        }
    }
    Ok(all.into_values().collect())
}

/// Of each chunk. What is only read has its block groups in the trees alone.
fn used_bytes(engine: &Engine, chunks: &[ChunkInfo]) -> Result<Vec<u64>> {
    let live: BTreeMap<u64, u64> = engine.core.space.used_by_groups().into_iter().collect();
    let view = engine.core.view();
    let tree = engine.core.roots().of_block_groups();
    let of = |chunk: &ChunkInfo| match live.get(&chunk.logical.0) {
        Some(used) => Ok(*used),
        None => {
            let key = Key::new(chunk.logical.0, kind::BLOCK_GROUP_ITEM, chunk.len);
            let Some(data) = view.get(tree, &key).fs()? else { return Ok(0) };
            Ok(BlockGroupItem::read(&data).fs()?.used)
        }
    };
    chunks.iter().map(of).collect()
}
