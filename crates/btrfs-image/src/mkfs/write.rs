//! The planned volume onto the device.
//!
//! Order: old signatures are wiped, so that a half-made volume is none; then all nodes
//! and the later superblock copies, a flush, the first copy, a flush.

use super::error::{MkfsError, Result};
use super::ids::Identities;
use super::layout::Layout;
use super::options::{SECTOR, Settled};
use super::trees::{self, GENERATION, PlannedTree, PlannedVolume};
use blockdev::BlockDevice;
use btrfs_disk::ids::block_group;
use btrfs_disk::node::FLAG_WRITTEN;
use btrfs_disk::superblock::{
    BACKUP_ROOTS, COPIES, MAGIC, RootBackup, SUPER_SIZE, SuperFields, TAIL_AT,
};
use btrfs_disk::{Expect, Generation, Node, Superblock, TreeId, build, check};

/// Other formats keep their signatures in the first bytes and the last.
const WIPE: u64 = 2 << 20;

pub(super) fn all(
    dev: &dyn BlockDevice,
    settled: &Settled,
    layout: &Layout,
    ids: &Identities,
    volume: &PlannedVolume,
) -> Result<()> {
    let failed = |e: std::io::Error| MkfsError::io(dev.name(), e);
    wipe(dev, settled.discard).map_err(failed)?;
    for node in &volume.nodes {
        let bytes = judged(volume, node)?;
        for at in layout.physical(node.logical().0) {
            dev.write_at(at, &bytes).map_err(failed)?;
        }
    }
    let superblock = superblock(settled, layout, ids, volume);
    let copy = |at: u64| {
        let bytes = superblock.to_bytes(at).map_err(|e| MkfsError::Invalid(e.to_string()))?;
        dev.write_at(at, &bytes).map_err(failed)
    };
    let fits = |at: &&u64| **at + SUPER_SIZE as u64 <= layout.total_bytes;
    COPIES.iter().skip(1).filter(fits).try_for_each(|at| copy(*at))?;
    dev.flush().map_err(failed)?;
    copy(COPIES[0])?;
    dev.flush().map_err(failed)
}

/// The node's bytes, after the gate that every reader will put them through.
fn judged(volume: &PlannedVolume, node: &Node) -> Result<Vec<u8>> {
    let bytes = build::seal(&volume.geometry, node);
    let expect = Expect {
        logical: node.logical(),
        level: node.level(),
        generation: Some(GENERATION),
        owner: Some(node.owner()),
        first_key: (!node.is_empty()).then(|| node.key(0)),
    };
    check::node(bytes.clone().into_boxed_slice(), &volume.geometry, &expect)
        .map_err(|e| MkfsError::Invalid(format!("internal: a node fails the gate: {e}")))?;
    Ok(bytes)
}

fn wipe(dev: &dyn BlockDevice, discard: bool) -> std::io::Result<()> {
    let len = dev.len();
    if discard {
        dev.discard(0, len)?;
    }
    let mut ranges = vec![(0, WIPE), (len.saturating_sub(WIPE), WIPE)];
    ranges.extend(COPIES.map(|at| (at, SUPER_SIZE as u64)));
    for (start, want) in ranges {
        if start < len {
            zero(dev, start, want.min(len - start))?;
        }
    }
    dev.flush()
}

/// Writes only where something stands, so that sparse images stay sparse.
fn zero(dev: &dyn BlockDevice, start: u64, len: u64) -> std::io::Result<()> {
    let mut buf = vec![0; len as usize];
    dev.read_at(start, &mut buf)?;
    if buf.iter().all(|b| *b == 0) {
        return Ok(());
    }
    buf.fill(0);
    dev.write_at(start, &buf)
}

fn superblock(
    settled: &Settled,
    layout: &Layout,
    ids: &Identities,
    volume: &PlannedVolume,
) -> Superblock {
    let [root, chunk] = [TreeId::ROOT, TreeId::CHUNK].map(|id| volume.tree(id).expect("planned"));
    let fields = SuperFields {
        fsid: ids.fsid,
        flags: FLAG_WRITTEN,
        magic: MAGIC,
        generation: GENERATION,
        root: root.root(),
        root_level: root.level(),
        chunk_root: chunk.root(),
        chunk_root_level: chunk.level(),
        chunk_root_generation: GENERATION,
        total_bytes: layout.total_bytes,
        bytes_used: volume.bytes_used(settled.node_size),
        root_dir_objectid: TreeId::ROOT_DIR.0,
        num_devices: 1,
        sectorsize: SECTOR,
        nodesize: settled.node_size,
        unused_leafsize: settled.node_size,
        stripesize: SECTOR,
        compat_ro_flags: settled.compat_ro(),
        incompat_flags: settled.incompat(),
        csum_type: settled.csum.to_disk(),
        dev_item: trees::dev_item(settled, layout, ids),
        label: settled.label,
        // No version 1 space cache was ever written.
        cache_generation: if settled.features.free_space_tree { 0 } else { u64::MAX },
        ..SuperFields::default()
    };
    let mut backups = [RootBackup::default(); BACKUP_ROOTS];
    backups[0] = backup(&fields, volume);
    let tail = SUPER_SIZE - TAIL_AT;
    Superblock { fields, sys_chunks: system_chunks(layout, ids), backups, tail: vec![0; tail] }
}

fn system_chunks(layout: &Layout, ids: &Identities) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in layout.chunks.iter().filter(|c| c.is(block_group::SYSTEM)) {
        let (key, item) = trees::chunk_item(chunk, ids);
        out.extend_from_slice(&key.to_bytes());
        out.extend_from_slice(&item);
    }
    out
}

fn backup(fields: &SuperFields, volume: &PlannedVolume) -> RootBackup {
    let tree = |id: TreeId| -> &PlannedTree { volume.tree(id).expect("planned") };
    let (extent, fs) = (tree(TreeId::EXTENT), tree(TreeId::FS));
    let (dev, csum) = (tree(TreeId::DEV), tree(TreeId::CSUM));
    let generation: Generation = GENERATION;
    RootBackup {
        tree_root: fields.root,
        tree_root_gen: generation,
        tree_root_level: fields.root_level,
        chunk_root: fields.chunk_root,
        chunk_root_gen: generation,
        chunk_root_level: fields.chunk_root_level,
        extent_root: extent.root(),
        extent_root_gen: generation,
        extent_root_level: extent.level(),
        fs_root: fs.root(),
        fs_root_gen: generation,
        fs_root_level: fs.level(),
        dev_root: dev.root(),
        dev_root_gen: generation,
        dev_root_level: dev.level(),
        csum_root: csum.root(),
        csum_root_gen: generation,
        csum_root_level: csum.level(),
        total_bytes: fields.total_bytes,
        bytes_used: fields.bytes_used,
        num_devices: 1,
        ..RootBackup::default()
    }
}
