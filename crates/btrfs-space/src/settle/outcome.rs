//! What a settled commit hands over: nodes to write, the superblock behind them.

use super::Settle;
use crate::Extent;
use crate::space::{GoneChunk, MetadataReservation};
use btrfs_disk::items::{Chunk, RootItem};
use btrfs_disk::key::KEY_SIZE;
use btrfs_disk::superblock::{BACKUP_ROOTS, RootBackup, SYS_CHUNK_ARRAY_SIZE};
use btrfs_disk::{Error, Key, Result, Superblock, TreeId};
use btrfs_tree::{DirtyNodes, NodeReader, TreeRoot};
use std::collections::BTreeMap;

/// A commit that only has to be written: nodes, flush, superblock, flush; then
/// [`crate::Space::unpin`] of `pinned`.
#[derive(Debug)]
pub struct Settled {
    /// To be written first.
    pub dirty: DirtyNodes,
    /// Without a log tree; to be written when the nodes are durable.
    pub superblock: Superblock,
    /// The roots of all trees that this commit touched or looked at.
    pub roots: BTreeMap<TreeId, TreeRoot>,
    /// What the root tree says of those of them that it names.
    pub items: BTreeMap<TreeId, RootItem>,
    /// Trees that the root tree names no more.
    pub removed: Vec<TreeId>,
    /// Free for reuse once the superblock is durable.
    pub pinned: Vec<Extent>,
    /// Bytes of nodes that were taken from metadata.
    pub taken: u64,
    /// Extents whose change of owners quotas looked at ("quota-dirty").
    pub quota_extents: u64,
    /// What new nodes did not need.
    pub reservation: Option<MetadataReservation>,
}

impl<R: NodeReader> Settle<'_, R> {
    /// Settles everything. Nothing is written. Where there is no room for all of it, the space is
    /// as it was before.
    pub fn finish(mut self) -> Result<Settled> {
        let superblock = match self.settle().and_then(|()| self.stamp()) {
            Err(Error::NoSpace) => return Err(self.no_room()),
            other => other?,
        };
        self.space.assert_settled();
        let items = self.trees.iter().filter_map(|(id, tree)| {
            debug_assert!(!tree.is_unrecorded(), "tree {id} was settled");
            tree.item.as_ref().map(|(_, item)| (*id, *item))
        });
        Ok(Settled {
            taken: self.taken(),
            quota_extents: self.quota_extents,
            items: items.collect(),
            removed: self.removed,
            superblock,
            roots: self.trees.iter().map(|(id, tree)| (*id, tree.root)).collect(),
            dirty: self.dirty,
            pinned: self.pinned,
            reservation: self.reservation,
        })
    }

    fn stamp(&mut self) -> Result<Superblock> {
        let mut sb = self.superblock.clone();
        let (root, chunk) = (self.root(TreeId::ROOT)?, self.root(TreeId::CHUNK)?);
        let previous = sb.fields.generation;
        let fields = &mut sb.fields;
        fields.generation = self.generation;
        (fields.root, fields.root_level) = (root.logical, root.level);
        (fields.chunk_root, fields.chunk_root_level) = (chunk.logical, chunk.level);
        fields.chunk_root_generation = chunk.generation;
        fields.bytes_used = self.space.used();
        (fields.log_root, fields.log_root_level) = (btrfs_disk::Logical(0), 0);
        // Equal to the generation as long as the UUID tree is kept up to date.
        if fields.uuid_tree_generation == previous.0 {
            fields.uuid_tree_generation = self.generation.0;
        }
        if let Some(item) = self.dev_item {
            if item.total_bytes != fields.dev_item.total_bytes {
                fields.total_bytes = item.total_bytes;
            }
            fields.dev_item = item;
        }
        sb.sys_chunks.extend_from_slice(&self.new_system_chunks);
        sb.sys_chunks = without(&sb.sys_chunks, &self.ledger.gone)?;
        if sb.sys_chunks.len() > SYS_CHUNK_ARRAY_SIZE {
            return Err(Error::NoSpace);
        }
        let newest = sb.backups.iter().position(|b| b.tree_root_gen == previous);
        let slot = newest.map_or(0, |newest| (newest + 1) % BACKUP_ROOTS);
        sb.backups[slot] = self.backup(&sb)?;
        Ok(sb)
    }

    fn backup(&mut self, sb: &Superblock) -> Result<RootBackup> {
        let mut backup = RootBackup {
            tree_root: sb.fields.root,
            tree_root_gen: sb.fields.generation,
            tree_root_level: sb.fields.root_level,
            chunk_root: sb.fields.chunk_root,
            chunk_root_gen: sb.fields.chunk_root_generation,
            chunk_root_level: sb.fields.chunk_root_level,
            total_bytes: sb.fields.total_bytes,
            bytes_used: sb.fields.bytes_used,
            num_devices: sb.fields.num_devices,
            ..RootBackup::default()
        };
        let at = |root: TreeRoot| (root.logical, root.generation, root.level);
        (backup.extent_root, backup.extent_root_gen, backup.extent_root_level) =
            at(self.root(TreeId::EXTENT)?);
        (backup.fs_root, backup.fs_root_gen, backup.fs_root_level) = at(self.root(TreeId::FS)?);
        (backup.dev_root, backup.dev_root_gen, backup.dev_root_level) = at(self.root(TreeId::DEV)?);
        (backup.csum_root, backup.csum_root_gen, backup.csum_root_level) =
            at(self.root(TreeId::CSUM)?);
        Ok(backup)
    }
}

/// The superblock's array of system chunks, less those that are gone.
fn without(array: &[u8], gone: &[GoneChunk]) -> Result<Vec<u8>> {
    let (mut rest, mut left) = (array, Vec::new());
    while let Some((key, data)) = rest.split_first_chunk::<KEY_SIZE>() {
        let size = KEY_SIZE + Chunk::parse(data)?.size();
        let at = Key::read(key).offset;
        if !gone.iter().any(|gone| gone.logical.0 == at) {
            left.extend_from_slice(&rest[..size]);
        }
        rest = &rest[size..];
    }
    Ok(left)
}
