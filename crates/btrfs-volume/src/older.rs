//! Chunk trees of earlier commits: a commit that changes that tree writes its nodes anew, and what was before stays on
//! the device until another one needs the place.
//!
//! For volumes whose chunk tree is lost: system chunks, which the superblock knows by itself, have nothing but its
//! nodes. An older tree lacks chunks and tells of gone ones. The address of the highest one, if that is gone, may be
//! another's by now: what has checksums is found wrong by them then, and content without is not, unless whoever looks
//! by it holds its chunks against something else (`Volume::doubt`).
//!
//! What it does not know: which of them are whole, and which are parts of one that is lost. Who looks by one finds out.

use crate::chunk_map::{ChunkMap, DeviceId};
use crate::{load, rival};
use blockdev::BlockDevice;
use btrfs_disk::ids::DEV_ITEMS_OBJECTID;
use btrfs_disk::key::{KEY_SIZE, kind};
use btrfs_disk::node::{HEADER_SIZE, Header, MAX_LEVEL};
use btrfs_disk::{FixedSize, Key, Logical, Physical, Result, TreeId};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// So many nodes of a chunk are looked at: 1 GiB of 16 KiB each, where no system chunk is larger than 32 MiB.
const NODES: u64 = 1 << 16;

/// So many places are tried, by whoever looks.
/// Chosen, not measured.
const MOST: usize = 64;

/// Where trees of commits may begin, the newest first; of one commit's nodes those of more levels, since what is below
/// one is a part of a tree.
pub fn chunk_trees(dev: &dyn BlockDevice) -> Result<Vec<Logical>> {
    let sb = rival::choose(dev)?.superblock;
    let mut map = ChunkMap::new(DeviceId::of(&sb));
    load::system_chunks(&sb, &mut map)?;
    let node = u64::from(sb.geometry()?.node_size);
    let mut found = BTreeSet::new();
    for chunk in map.snapshot() {
        for at in (0..(chunk.len / node).min(NODES)).map(|number| number * node) {
            let logical = chunk.logical.offset(at);
            let copies = chunk.stripes.iter().map(|(_, start)| Physical(start.0 + at));
            let headers = copies.filter_map(|copy| header(dev, copy, logical));
            let is_own = |h: &Header| h.fsid == sb.header_uuid() && h.generation <= sb.generation();
            let own = headers.filter(is_own);
            found.extend(own.map(|h| Reverse((h.generation.0, h.level, logical))));
        }
    }
    let lost = sb.fields.chunk_root;
    let others = found.into_iter().map(|Reverse((_, _, at))| at).filter(|at| *at != lost);
    Ok(others.take(MOST).collect())
}

/// What a node of the chunk tree there says of itself, which may be anything. Every such tree begins with the device,
/// and of the parts of one the first ones alone.
fn header(dev: &dyn BlockDevice, at: Physical, logical: Logical) -> Option<Header> {
    let mut bytes = [0; HEADER_SIZE + KEY_SIZE];
    dev.read_at(at.0, &mut bytes).ok()?;
    let (header, first) = bytes.split_at(HEADER_SIZE);
    let (header, first) = (Header::read(header).ok()?, Key::read(first.first_chunk()?));
    let fits = header.bytenr == logical && header.owner == TreeId::CHUNK;
    let begins = (first.objectid, first.kind) == (DEV_ITEMS_OBJECTID, kind::DEV_ITEM);
    (fits && begins && header.level < MAX_LEVEL).then_some(header)
}
