//! Learning the chunk map: the superblock's system chunk array, then the chunk tree.
//!
//! The walk is bounded on hostile trees: levels strictly descend, every child's first
//! key must be the one that its pointer names, and item keys ascend over the whole
//! walk, so no node is worth visiting twice; the map bounds the chunks.

use crate::chunk_map::ChunkMap;
use btrfs_disk::ids::{DEV_ITEMS_OBJECTID, FIRST_CHUNK_TREE_OBJECTID};
use btrfs_disk::items::{Chunk, DevItem};
use btrfs_disk::key::{KEY_SIZE, kind};
use btrfs_disk::{
    Corrupt, Error, Expect, FixedSize, Generation, Key, Logical, Node, Result, Superblock, TreeId,
};

/// Puts the chunks of the superblock's array into `map`.
pub(crate) fn system_chunks(sb: &Superblock, map: &mut ChunkMap) -> Result<()> {
    let mut rest = &sb.sys_chunks[..];
    while !rest.is_empty() {
        let Some((key, data)) = rest.split_first_chunk::<KEY_SIZE>() else {
            return Err(Error::corrupt("system chunk array is cut short"));
        };
        let key = Key::read(key);
        if key.kind != kind::CHUNK_ITEM || key.objectid != FIRST_CHUNK_TREE_OBJECTID {
            return Err(Corrupt::new("no chunk item in the system chunk array").key(key).into());
        }
        let chunk = Chunk::parse(data).map_err(|c| c.key(key))?;
        if chunk.fields.kind & btrfs_disk::ids::block_group::SYSTEM == 0 {
            return Err(Corrupt::new("array holds a chunk of another type").key(key).into());
        }
        rest = &data[chunk.size()..];
        map.insert(Logical(key.offset), &chunk)?;
    }
    Ok(())
}

/// Where the chunk tree starts.
pub(crate) fn chunk_root(sb: &Superblock) -> Expect {
    Expect {
        logical: sb.fields.chunk_root,
        level: sb.fields.chunk_root_level,
        generation: Some(sb.fields.chunk_root_generation),
        owner: Some(TreeId::CHUNK),
        first_key: None,
    }
}

/// Walks the chunk tree; `read` verifies nodes, `visit` takes each item.
pub(crate) struct Walk<'a> {
    pub read: &'a dyn Fn(&Expect) -> Result<Node>,
    pub visit: &'a mut dyn FnMut(Key, &[u8]) -> Result<()>,
    pub last: Option<Key>,
}

impl Walk<'_> {
    pub(crate) fn node(&mut self, node: &Node) -> Result<()> {
        if node.is_leaf() {
            for (key, data) in node.items() {
                self.ascend(node.logical(), key)?;
                (self.visit)(key, data)?;
            }
            return Ok(());
        }
        for child in node.children() {
            self.child(node.level(), child.logical, child.generation, child.key)?;
        }
        Ok(())
    }

    fn child(&mut self, level: u8, at: Logical, generation: Generation, key: Key) -> Result<()> {
        let expect = Expect {
            logical: at,
            level: level - 1,
            generation: Some(generation),
            owner: Some(TreeId::CHUNK),
            first_key: Some(key),
        };
        if self.last.is_some_and(|last| key <= last) {
            return Err(Corrupt::new("chunk tree is out of order").at(at).key(key).into());
        }
        let node = (self.read)(&expect)?;
        if node.is_empty() || node.key(0) != key {
            return Err(Corrupt::new("node starts with another key than its pointer")
                .at(at)
                .into());
        }
        self.node(&node)
    }

    fn ascend(&mut self, at: Logical, key: Key) -> Result<()> {
        if self.last.is_some_and(|last| key <= last) {
            return Err(Corrupt::new("chunk tree is out of order").at(at).key(key).into());
        }
        self.last = Some(key);
        Ok(())
    }
}

/// Takes one item of the chunk tree; answers how long the device is, if that says so.
pub(crate) fn item(
    map: &mut ChunkMap,
    sb: &Superblock,
    key: Key,
    data: &[u8],
) -> Result<Option<u64>> {
    match (key.objectid, key.kind) {
        (FIRST_CHUNK_TREE_OBJECTID, kind::CHUNK_ITEM) => {
            let chunk = Chunk::parse(data).map_err(|c| c.key(key))?;
            if chunk.size() != data.len() {
                return Err(Corrupt::new("chunk item of a wrong size").key(key).into());
            }
            map.insert(Logical(key.offset), &chunk)?;
            Ok(None)
        }
        (DEV_ITEMS_OBJECTID, kind::DEV_ITEM) => device(sb, key, data).map(Some),
        _ => Ok(None),
    }
}

fn device(sb: &Superblock, key: Key, data: &[u8]) -> Result<u64> {
    let item = DevItem::read(data).map_err(|c| c.key(key))?;
    let own = &sb.fields.dev_item;
    if key.offset != own.devid {
        return Err(Error::Unsupported(format!(
            "volume of multiple devices (device {} beside {})",
            key.offset, own.devid
        )));
    }
    if item.uuid != own.uuid || item.devid != own.devid {
        return Err(Corrupt::new("device item of another device").key(key).into());
    }
    Ok(item.total_bytes)
}
