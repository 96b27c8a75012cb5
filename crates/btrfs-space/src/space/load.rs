//! Block groups from the trees.
//!
//! Every chunk has its block group and the other way round, and what the free-space
//! tree calls free and the block group item calls used add up to the group: a volume
//! where they do not must not be written. Without such a tree the gaps between extents are held
//! against the block group items.

use super::chunk_alloc::{Device, excluded};
use super::group::Group;
use super::{Space, kind_of_flags};
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
    /// The extent tree, which says what is taken.
    pub extent: TreeRoot,
    /// Where the block group items are, if not in the extent tree.
    pub block_group: Option<TreeRoot>,
    /// `None`: there is none, or none that is valid; what no extent takes is free then.
    pub free_space: Option<TreeRoot>,
}

impl Space {
    /// Without any block group, for volumes that are only read: nothing can be
    /// allocated, and a damaged free-space tree is no reason not to mount.
    pub fn unloaded(volume: &Arc<Volume>) -> Space {
        Space::without_groups(volume, false)
    }

    fn without_groups(volume: &Arc<Volume>, mixed: bool) -> Space {
        let geometry = volume.geometry();
        let (sector, node) = (u64::from(geometry.sector_size), u64::from(geometry.node_size));
        Space {
            volume: Arc::clone(volume),
            lists: Space::new_lists(sector, node, mixed),
            groups: RwLock::new(Rank::Groups, BTreeMap::new()),
            device: Mutex::new(Rank::Chunks, Device::load(volume)),
            unallocated: AtomicU64::new(0),
            chunk_changes: AtomicU64::new(0),
            all_recorded: AtomicU64::new(0),
            device_bytes: AtomicU64::new(volume.superblock().fields.dev_item.total_bytes),
            prover: OnceLock::new(),
            #[cfg(feature = "fault-injection")]
            faults: super::fail::Faults::default(),
        }
    }

    /// Reads the groups of all chunks and what is free in them. `Corrupt` where a chunk has no
    /// group, a group no chunk, or where used and free bytes are not the group's length.
    pub fn load<R: NodeReader>(
        reader: &R,
        volume: &Arc<Volume>,
        roots: &SpaceRoots,
    ) -> Result<Space> {
        let geometry = reader.geometry();
        let (sector, node) = (u64::from(geometry.sector_size), u64::from(geometry.node_size));
        let flags = volume.superblock().fields.incompat_flags;
        let space = Space::without_groups(volume, flags & incompat::MIXED_GROUPS != 0);
        let mut free_space = roots.free_space.as_ref().map(|root| TreeItems::new(reader, root));
        let mut extents = TreeItems::new(reader, &roots.extent);
        let mut groups =
            TreeItems::new(reader, roots.block_group.as_ref().unwrap_or(&roots.extent));
        let mut loaded = Vec::new();
        for chunk in volume.chunks() {
            let group = space.load_group(&mut groups, &chunk)?;
            let span = GroupSpan { start: group.start, len: group.len, sector };
            let free = match &mut free_space {
                Some(tree) => span.read(tree)?.0.free,
                None => {
                    group.proof.needless();
                    span.between_extents(&mut extents, node)?
                }
            };
            if free.bytes() + group.used() != group.len {
                return Err(mismatch(&group, free.bytes()));
            }
            space.groups.write().insert(group.start, Arc::clone(&group));
            group.add_free(free.iter())?;
            loaded.push(group);
        }
        space.tell_classes(loaded);
        space.no_stray_groups(&mut groups)?;
        space.retune(&space.device.lock());
        Ok(space)
    }

    /// Start and length of all block groups.
    pub(crate) fn spans(&self) -> Vec<(u64, u64)> {
        self.groups.read().values().map(|group| (group.start, group.len)).collect()
    }

    /// Bytes that a free-space tree of all groups takes at most, headers of items among them.
    pub fn free_space_bytes(&self) -> u64 {
        let sector = u64::from(self.volume.geometry().sector_size);
        let groups = self.groups.read();
        let bytes = groups.values().map(|group| {
            let span = GroupSpan { start: group.start, len: group.len, sector };
            // Superblock copies count as free there, and may join ranges here.
            let ranges = group.claimed_ranges().len() + 2 * group.excluded_ranges().len();
            span.most_bytes(ranges as u64)
        });
        bytes.sum()
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
        let class = self.list_of_flags(item.flags).class();
        if item.flags & TYPE_MASK != class.type_flags {
            return Err(damage("mixed block group on a volume that is not mixed, or plain one"));
        }
        let span = Extent { logical: chunk.logical, len: chunk.len };
        let group = Group::new(span, item.flags, Arc::clone(class), excluded(chunk), item.used);
        Ok(Arc::new(group))
    }

    /// Each class has all of its groups at once: one at a time each would make its list anew.
    fn tell_classes(&self, groups: Vec<Arc<Group>>) {
        let mut of: [Vec<Arc<Group>>; 3] = Default::default();
        for group in groups {
            of[kind_of_flags(group.flags) as usize].push(group);
        }
        for (list, groups) in self.lists.iter().zip(of) {
            if !groups.is_empty() {
                list.add(groups);
            }
        }
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
    let what =
        format!("block group of {} bytes uses {} and has {free} free", group.len, group.used());
    Corrupt::new(what).at(Logical(group.start)).into()
}
