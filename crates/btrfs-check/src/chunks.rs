//! Chunk tree, device tree and block groups: three views of where bytes lie.

use crate::extents::StoredBlockGroup;
use crate::source::Context;
use crate::walk::Leaf;
use crate::{Finding, FindingKind};
use btrfs_disk::ids::block_group::SYSTEM;
use btrfs_disk::ids::{DEV_ITEMS_OBJECTID, FIRST_CHUNK_TREE_OBJECTID};
use btrfs_disk::items::{Chunk, DevExtent, DevItem};
use btrfs_disk::key::{KEY_SIZE, kind};
use btrfs_disk::{Corrupt, FixedSize, Key, TreeId};
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Layout {
    /// By logical start.
    chunks: BTreeMap<u64, Chunk>,
    devices: BTreeMap<u64, DevItem>,
    /// By (device, physical start).
    dev_extents: BTreeMap<(u64, u64), DevExtent>,
}

impl Layout {
    pub(crate) fn chunk_leaf(&mut self, cx: &mut Context<'_>, leaf: &Leaf<'_>) {
        for (key, data) in leaf.node.items() {
            if let Err(kind) = self.chunk_item(key, data) {
                cx.add(Finding::new(kind).tree(leaf.tree).key(key));
            }
        }
    }

    fn chunk_item(&mut self, key: Key, data: &[u8]) -> Result<(), FindingKind> {
        let malformed = |c: Corrupt| FindingKind::ItemMalformed { why: c.what };
        match (key.objectid, key.kind) {
            (FIRST_CHUNK_TREE_OBJECTID, kind::CHUNK_ITEM) => {
                self.chunks.insert(key.offset, Chunk::parse(data).map_err(malformed)?);
            }
            (DEV_ITEMS_OBJECTID, kind::DEV_ITEM) => {
                self.devices.insert(key.offset, DevItem::read(data).map_err(malformed)?);
            }
            _ => return Err(FindingKind::ItemUnknown),
        }
        Ok(())
    }

    pub(crate) fn dev_leaf(&mut self, cx: &mut Context<'_>, leaf: &Leaf<'_>) {
        for (key, data) in leaf.node.items() {
            let finding = match key.kind {
                kind::DEV_EXTENT => match DevExtent::read(data) {
                    Ok(extent) => {
                        self.dev_extents.insert((key.objectid, key.offset), extent);
                        continue;
                    }
                    Err(c) => FindingKind::ItemMalformed { why: c.what },
                },
                // Error counters of devices, and the state of a device replacement.
                kind::PERSISTENT_ITEM | kind::DEV_REPLACE => continue,
                _ => FindingKind::ItemUnknown,
            };
            cx.add(Finding::new(finding).tree(leaf.tree).key(key));
        }
    }

    pub(crate) fn chunk_count(&self) -> u64 {
        self.chunks.len() as u64
    }

    /// Where a logical range lies on devices: (physical start, length) of each copy.
    pub(crate) fn physical(&self, logical: u64, len: u64) -> Vec<(u64, u64)> {
        match self.chunks.range(..=logical).next_back() {
            Some((start, chunk)) if logical - start < chunk.fields.length => chunk
                .stripes
                .iter()
                .map(|stripe| (stripe.offset.saturating_add(logical - start), len))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// `dev_tree`: whether the device tree could be read wholly.
    pub(crate) fn check(&self, cx: &mut Context<'_>, groups: &[StoredBlockGroup], dev_tree: bool) {
        self.block_groups(cx, groups);
        self.system_chunks(cx);
        self.device_items(cx);
        if dev_tree {
            self.stripes(cx);
            self.device_extents(cx);
        }
    }

    fn block_groups(&self, cx: &mut Context<'_>, groups: &[StoredBlockGroup]) {
        let by_start: BTreeMap<u64, &StoredBlockGroup> =
            groups.iter().map(|group| (group.start, group)).collect();
        for (start, chunk) in &self.chunks {
            let kind = match by_start.get(start) {
                None => FindingKind::ChunkWithoutBlockGroup,
                Some(group) if group.len != chunk.fields.length => {
                    let why = format!("{} bytes, not {}", group.len, chunk.fields.length);
                    FindingKind::BlockGroupDiffers { why }
                }
                Some(group) if group.item.flags != chunk.fields.kind => {
                    let why =
                        format!("flags {:#x}, not {:#x}", group.item.flags, chunk.fields.kind);
                    FindingKind::BlockGroupDiffers { why }
                }
                Some(group) if group.item.chunk_objectid != FIRST_CHUNK_TREE_OBJECTID => {
                    let why = format!("chunk object id {}", group.item.chunk_objectid);
                    FindingKind::BlockGroupDiffers { why }
                }
                Some(_) => continue,
            };
            cx.add(Finding::new(kind).at(*start));
        }
        for group in groups.iter().filter(|group| !self.chunks.contains_key(&group.start)) {
            cx.add(Finding::new(FindingKind::BlockGroupWithoutChunk).at(group.start));
        }
    }

    /// The superblock's copy of the system chunks, by which a mount finds the chunk tree.
    fn system_chunks(&self, cx: &mut Context<'_>) {
        let sb = cx.volume.superblock();
        let mut rest = &sb.sys_chunks[..];
        let mut found: BTreeMap<u64, Chunk> = BTreeMap::new();
        while let Some((key, data)) = rest.split_first_chunk::<KEY_SIZE>() {
            let Ok(chunk) = Chunk::parse(data) else { break };
            rest = &data[chunk.size()..];
            found.insert(Key::read(key).offset, chunk);
        }
        let system = |chunk: &Chunk| chunk.fields.kind & SYSTEM != 0;
        for (start, chunk) in self.chunks.iter().filter(|(_, chunk)| system(chunk)) {
            if found.remove(start).as_ref() != Some(chunk) {
                cx.add(Finding::new(FindingKind::SystemChunkNotInSuper { chunk: *start }));
            }
        }
        for start in found.into_keys() {
            cx.add(Finding::new(FindingKind::SuperChunkStray { chunk: start }));
        }
    }

    /// The device items against the superblock, which the allocator of chunks goes by.
    fn device_items(&self, cx: &mut Context<'_>) {
        let sb = cx.volume.superblock();
        let own = sb.fields.dev_item;
        for (devid, device) in &self.devices {
            let why = if device.fsid != sb.header_uuid() {
                "it belongs to another volume".to_owned()
            } else if *devid == own.devid && device.total_bytes != own.total_bytes {
                format!("{} bytes, {} in the superblock", device.total_bytes, own.total_bytes)
            } else {
                continue;
            };
            let kind = FindingKind::DeviceItemBad { devid: *devid, why };
            cx.add(Finding::new(kind).tree(TreeId::CHUNK));
        }
    }

    fn stripes(&self, cx: &mut Context<'_>) {
        for (start, chunk) in &self.chunks {
            for stripe in &chunk.stripes {
                let extent = self.dev_extents.get(&(stripe.devid, stripe.offset));
                let fits = extent.is_some_and(|e| {
                    e.chunk_offset == *start
                        && e.length == chunk.fields.length
                        && e.chunk_tree == TreeId::CHUNK.0
                        && e.chunk_objectid == FIRST_CHUNK_TREE_OBJECTID
                });
                if !fits {
                    let (devid, physical) = (stripe.devid, stripe.offset);
                    let kind = FindingKind::DevExtentMissing { devid, physical };
                    cx.add(Finding::new(kind).at(*start));
                }
            }
        }
    }

    fn device_extents(&self, cx: &mut Context<'_>) {
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        let mut before = (0, 0);
        for ((devid, physical), extent) in &self.dev_extents {
            let (devid, physical) = (*devid, *physical);
            let mut add = |kind| cx.add(Finding::new(kind).tree(TreeId::DEV));
            let end = physical.saturating_add(extent.length);
            if before.0 == devid && before.1 > physical {
                add(FindingKind::DevExtentsOverlap { devid, physical });
            }
            before = (devid, end);
            let chunk = extent.chunk_offset;
            let stripe_is_there = self.chunks.get(&chunk).is_some_and(|c| {
                c.stripes.iter().any(|s| (s.devid, s.offset) == (devid, physical))
            });
            if !stripe_is_there {
                add(FindingKind::DevExtentStray { devid, physical, chunk });
            }
            match self.devices.get(&devid) {
                None => add(FindingKind::DeviceItemMissing { devid }),
                Some(device) if end > device.total_bytes => {
                    add(FindingKind::DevExtentBeyondDevice { devid, physical });
                }
                Some(_) => {}
            }
            let sum = used.entry(devid).or_default();
            *sum = sum.saturating_add(extent.length);
        }
        for (devid, device) in &self.devices {
            let counted = used.get(devid).copied().unwrap_or(0);
            if device.bytes_used != counted {
                let (devid, stored) = (*devid, device.bytes_used);
                let kind = FindingKind::DeviceBytesUsed { devid, stored, counted };
                cx.add(Finding::new(kind).tree(TreeId::CHUNK));
            }
        }
    }
}
