//! Block groups from the trees.
//!
//! Every chunk has its block group and the other way round, and what the free-space
//! tree calls free and the block group item calls used add up to the group: a volume
//! where they do not must not be written.

use super::chunk_alloc::{Device, excluded};
use super::group::Group;
use super::{Class, Space};
use crate::Extent;
use crate::free_space::GroupSpan;
use crate::items::{Items, TreeItems};
use btrfs_disk::ids::block_group::{PROFILE_MASK, TYPE_MASK};
use btrfs_disk::ids::incompat;
use btrfs_disk::items::BlockGroupItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Error, FixedSize, Key, Logical, Result};
use btrfs_tree::{NodeReader, TreeRoot};
use btrfs_volume::{ChunkInfo, Volume};
use locks::{Mutex, Rank, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// The trees that say what is free.
#[derive(Clone, Copy, Debug)]
pub struct SpaceRoots {
    pub extent: TreeRoot,
    /// Where the block group items are, if not in the extent tree.
    pub block_group: Option<TreeRoot>,
    pub free_space: TreeRoot,
}

impl Space {
    /// Without any block group, for volumes that are only read: nothing can be
    /// allocated, and a damaged free-space tree is no reason not to mount.
    pub fn unloaded(volume: &Arc<Volume>) -> Space {
        let geometry = volume.geometry();
        let (sector, node) = (u64::from(geometry.sector_size), u64::from(geometry.node_size));
        Space {
            volume: Arc::clone(volume),
            classes: Space::new_classes(sector, node, false),
            groups: RwLock::new(Rank::Groups, BTreeMap::new()),
            device: Mutex::new(Rank::Chunks, Device::load(volume)),
            unallocated: AtomicU64::new(0),
            all_recorded: AtomicU64::new(0),
            device_bytes: AtomicU64::new(volume.superblock().fields.dev_item.total_bytes),
            prover: OnceLock::new(),
            #[cfg(feature = "fault-injection")]
            faults: super::fail::Faults::default(),
        }
    }

    pub fn load<R: NodeReader>(
        reader: &R,
        volume: &Arc<Volume>,
        roots: &SpaceRoots,
    ) -> Result<Space> {
        let geometry = reader.geometry();
        let (sector, node) = (u64::from(geometry.sector_size), u64::from(geometry.node_size));
        let flags = volume.superblock().fields.incompat_flags;
        let mixed = flags & incompat::MIXED_GROUPS != 0;
        let space = Space {
            volume: Arc::clone(volume),
            classes: Space::new_classes(sector, node, mixed),
            groups: RwLock::new(Rank::Groups, BTreeMap::new()),
            device: Mutex::new(Rank::Chunks, Device::load(volume)),
            unallocated: AtomicU64::new(0),
            all_recorded: AtomicU64::new(0),
            device_bytes: AtomicU64::new(volume.superblock().fields.dev_item.total_bytes),
            prover: OnceLock::new(),
            #[cfg(feature = "fault-injection")]
            faults: super::fail::Faults::default(),
        };
        let mut free_space = TreeItems::new(reader, &roots.free_space);
        let mut groups =
            TreeItems::new(reader, roots.block_group.as_ref().unwrap_or(&roots.extent));
        for chunk in volume.chunks() {
            let group = space.load_group(&mut groups, &chunk)?;
            let span = GroupSpan { start: group.start, len: group.len, sector };
            let (stored, _) = span.read(&mut free_space)?;
            if stored.free.bytes() + group.used() != group.len {
                return Err(mismatch(&group, stored.free.bytes()));
            }
            space.groups.write().insert(group.start, Arc::clone(&group));
            group.class.add_group(Arc::clone(&group));
            group.add_free(stored.free.iter())?;
        }
        space.no_stray_groups(&mut groups)?;
        space.retune(&space.device.lock());
        Ok(space)
    }

    fn load_group(&self, items: &mut dyn Items, chunk: &ChunkInfo) -> Result<Arc<Group>> {
        let key = Key::new(chunk.logical.0, kind::BLOCK_GROUP_ITEM, chunk.len);
        let damage = |what: &str| Error::Corrupt(Corrupt::new(what).key(key));
        let data = items.get(&key)?.ok_or_else(|| damage("chunk without a block group"))?;
        let item = BlockGroupItem::read(&data).map_err(|c| c.key(key))?;
        if item.used > chunk.len {
            return Err(damage("block group is used beyond its length"));
        }
        let same = TYPE_MASK | PROFILE_MASK;
        if item.flags & same != chunk.flags & same {
            return Err(damage("block group and chunk differ in type or profile"));
        }
        let class: &Arc<Class> = self.class_of_flags(item.flags);
        if item.flags & TYPE_MASK != class.type_flags {
            return Err(damage("mixed block group on a volume that is not mixed, or plain one"));
        }
        let span = Extent { logical: chunk.logical, len: chunk.len };
        let group = Group::new(span, item.flags, Arc::clone(class), excluded(chunk), item.used);
        Ok(Arc::new(group))
    }

    /// Each block group item belongs to a chunk.
    fn no_stray_groups(&self, items: &mut dyn Items) -> Result<()> {
        let groups = self.groups.read();
        let mut from = 0;
        // One look behind each known group, so the extent tree is not read as a whole.
        for group in groups.values() {
            stray_before(items, from, group.start)?;
            from = group.end();
        }
        Ok(())
    }
}

/// Between two block groups there is nothing in the tree.
fn stray_before(items: &mut dyn Items, from: u64, to: u64) -> Result<()> {
    if from >= to {
        return Ok(());
    }
    match items.at_or_after(&Key::new(from, 0, 0))? {
        Some((key, _)) if key.objectid < to => {
            Err(Error::Corrupt(Corrupt::new("item outside of every chunk").key(key)))
        }
        _ => Ok(()),
    }
}

fn mismatch(group: &Group, free: u64) -> Error {
    let what = format!(
        "block group of {} bytes uses {} and has {free} free in the free-space tree",
        group.len,
        group.used()
    );
    Corrupt::new(what).at(Logical(group.start)).into()
}
