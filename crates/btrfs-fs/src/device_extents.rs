//! The device tree against the chunks, before anything is written: the chunk allocator takes
//! what no chunk has for free, and would give away space that a device extent claims.
//!
//! Invariant of a volume that passes: device extents and stripes are the same ranges, of the
//! same chunks; the device's item says what the superblock says, but for a part of a sector, of which the item is right,
//! as for the kernel. It does not know how to mend one that does not pass; the kernel refuses it.
//!
//! Where the chunks are an older tree's, the device tree tells which of them are there still. It also tells of a
//! replacement of the device that has not ended.

use crate::each_item::each_item;
use btrfs_disk::ids::DEV_ITEMS_OBJECTID;
use btrfs_disk::items::{DevExtent, DevItem, DevReplace, dev_replace};
use btrfs_disk::key::kind;
use btrfs_disk::{Error, FixedSize, Key, Result, Superblock, TreeId};
use btrfs_tree::{Cursor, NodeStore};
use btrfs_txn::Roots;
use btrfs_volume::{ChunkInfo, Volume};
use std::collections::BTreeMap;

/// Device and place of stripes, with the chunk of each and its length.
type Stripes = BTreeMap<(u64, u64), (u64, u64)>;

fn stripes(volume: &Volume) -> Stripes {
    let of = |chunk: &ChunkInfo| {
        let whose = (chunk.logical.0, chunk.len);
        chunk.stripes.iter().map(move |(devid, at)| ((*devid, at.0), whose)).collect::<Vec<_>>()
    };
    volume.chunks().iter().flat_map(of).collect()
}

/// Chunks of a map that may be of another time than the device tree.
pub(crate) struct Compared {
    /// How far the map is from what the tree tells: whether parts of that are lost, and how many device extents no
    /// chunk has.
    pub(crate) distance: (bool, usize),
    /// Chunks that are elsewhere, or gone, or of which a lost part would have told.
    pub(crate) unconfirmed: Vec<ChunkInfo>,
}

pub(crate) fn compare(store: &NodeStore, roots: &Roots, volume: &Volume) -> Compared {
    let mut told = Stripes::new();
    let mut note = |key: Key, data: &[u8]| {
        if key.kind == kind::DEV_EXTENT {
            let extent = DevExtent::read(data).map_err(|c| c.key(key))?;
            told.insert((key.objectid, key.offset), (extent.chunk_offset, extent.length));
        }
        Ok(())
    };
    let lossy = Some("device extents that are named here are not known");
    let whole = roots
        .get(TreeId::DEV)
        .is_some_and(|root| each_item(store, &root.root, lossy, &mut note).unwrap_or(false));
    let had = stripes(volume);
    let lacking = told.iter().filter(|(place, chunk)| had.get(place) != Some(chunk)).count();
    let is_told = |chunk: &ChunkInfo| {
        let whose = (chunk.logical.0, chunk.len);
        chunk.stripes.iter().all(|(devid, at)| told.get(&(*devid, at.0)) == Some(&whose))
    };
    let unconfirmed = volume.chunks().into_iter().filter(|chunk| !is_told(chunk)).collect();
    Compared { distance: (!whole, lacking), unconfirmed }
}

/// Why the volume must not be written, if its device extents and chunks differ.
pub(crate) fn differ(store: &NodeStore, roots: &Roots, volume: &Volume) -> Result<Option<String>> {
    if let Some(why) = another_device(store, roots, volume)? {
        return Ok(Some(why));
    }
    let Some(root) = roots.get(TreeId::DEV) else {
        return Ok(Some("there is no device tree".into()));
    };
    let mut stripes = stripes(volume);
    let mut cursor = Cursor::new(store, &root.root);
    cursor.first()?;
    while let Some((key, data)) = cursor.item() {
        if key.kind == kind::DEV_EXTENT {
            let extent = DevExtent::read(data).map_err(|c| c.key(key))?;
            let place = (key.objectid, key.offset);
            if stripes.remove(&place) != Some((extent.chunk_offset, extent.length)) {
                return Ok(Some(format!(
                    "device extent at {} of device {} belongs to no chunk: new chunks would be \
                     laid over it (`btrfs check` tells more)",
                    key.offset, key.objectid
                )));
            }
        }
        cursor.next()?;
    }
    Ok(stripes.into_iter().next().map(|((devid, at), (chunk, _))| {
        format!("chunk {chunk} has no device extent at {at} of device {devid}")
    }))
}

/// Why the volume must not be written, if a device is being put in the place of this one. Neither the superblock nor the
/// chunk tree names the new one, and the kernel goes on where it was: what is written here in front of that would
/// never come to the new device, which then is the volume.
pub(crate) fn replacement(store: &NodeStore, roots: &Roots) -> Result<Option<String>> {
    let Some(root) = roots.get(TreeId::DEV) else { return Ok(None) };
    let key = Key::new(0, kind::DEV_REPLACE, 0);
    let Some(item) = btrfs_tree::get(store, &root.root, &key)? else { return Ok(None) };
    // As the kernel has it.
    if item.data().len() != DevReplace::SIZE {
        return Ok(None);
    }
    let state = DevReplace::read(item.data()).map_err(|c| c.key(key))?.state;
    let unfinished = matches!(state, dev_replace::STARTED | dev_replace::SUSPENDED);
    Ok(unfinished.then(|| {
        "an unfinished replacement of the device (`mount -t btrfs` with both devices goes on with it)"
            .into()
    }))
}

/// The superblock's device item is what new chunks are allocated by, and every commit that makes
/// one writes it over the chunk tree's.
fn another_device(store: &NodeStore, roots: &Roots, volume: &Volume) -> Result<Option<String>> {
    let Some(root) = roots.get(TreeId::CHUNK) else {
        return Ok(Some("there is no chunk tree".into()));
    };
    let sb = volume.superblock();
    let own = sb.fields.dev_item;
    let mut cursor = Cursor::new(store, &root.root);
    cursor.seek(&Key::new(DEV_ITEMS_OBJECTID, kind::DEV_ITEM, 0))?;
    while let Some((key, data)) = cursor.item() {
        if (key.objectid, key.kind) != (DEV_ITEMS_OBJECTID, kind::DEV_ITEM) {
            break;
        }
        let item = DevItem::read(data).map_err(|c| c.key(key))?;
        if item.fsid != sb.header_uuid() {
            return Ok(Some(format!("device {} is said to be another volume's", item.devid)));
        }
        if item.total_bytes != own.total_bytes && !go_by(volume, item.total_bytes)? {
            return Ok(Some(format!(
                "device {} has {} bytes by its item and {} by the superblock (the kernel's \
                 `btrfs rescue fix-device-size` mends that)",
                item.devid, item.total_bytes, own.total_bytes
            )));
        }
        cursor.next()?;
    }
    Ok(None)
}

/// Old programs rounded one of both down to whole sectors. The kernel goes by the item, and so does the next commit. The
/// device must have as much, or nobody would open it behind that.
fn go_by(volume: &Volume, total_bytes: u64) -> Result<bool> {
    let mut sb = Superblock::clone(&volume.superblock());
    let sector = u64::from(sb.fields.sectorsize);
    let near = total_bytes.abs_diff(sb.fields.dev_item.total_bytes) < sector;
    if !near || total_bytes > volume.device_len() {
        return Ok(false);
    }
    match volume.resize(total_bytes) {
        Ok(()) => {}
        // A chunk lies behind that: it can be read as it is.
        Err(Error::Corrupt(_)) => return Ok(false),
        Err(error) => return Err(error),
    }
    sb.fields.dev_item.total_bytes = total_bytes;
    volume.adopt_superblock(sb);
    Ok(true)
}
