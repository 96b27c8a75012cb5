//! Which superblock a device is opened by where a spare copy is newer than a valid first one.
//!
//! Such a copy counts if what was written since the first one is there still. It need not be: the kernel writes
//! the copies of a commit all at once, so a power cut can leave a spare one of a commit that the first does not know.
//! The kernel goes on from the first, in commits of the same numbers, and what is free by that is what the other
//! commit has written. Going by the spare one then would write it over the first, which is whole.
//!
//! All new nodes are read, and where new extents of content begin, of a bounded number: who opens a volume waits for
//! this. The first copy is asked for its nodes alone, since one bad sector of a file is no reason to go by another state.
//!
//! What the device refuses to read is missing, as well: nobody was told that the newer commit is durable, since the first
//! copy had not been written yet.
//!
//! Invariants: nothing is written. Of two whose nodes are both not whole the newer one counts. No walk comes to a node
//! twice, and levels descend.
//!
//! What it does not know: what is older than the first copy, which both share; nodes of another commit of the same
//! number that have all that their parents and the extent tree say of them; content behind where extents begin.

use crate::chunk_map::{ChunkMap, DeviceId};
use crate::superblock::{self, Chosen};
use crate::{features, load};
use blockdev::BlockDevice;
use btrfs_disk::items::{ExtentItem, RootItem, extent_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{
    Corrupt, Error, Expect, Generation, Geometry, Key, Logical, Node, Result, Superblock, TreeId,
    buffers, check,
};
use std::collections::BTreeSet;
use tracing::warn;

/// Extents of content that are looked at: as many reads of one sector, which is seconds on a slow disk.
/// Chosen, not measured.
const SAMPLES: usize = 1024;

/// The copy that a device is opened by.
pub(crate) fn choose(dev: &dyn BlockDevice) -> Result<Chosen> {
    superblock::choose(dev, &|new, first| counts(dev, new, first))
}

/// Whether a newer copy counts beside a valid first one.
fn counts(dev: &dyn BlockDevice, new: &Superblock, first: &Superblock) -> bool {
    if differ_in_number_alone(new, first) {
        return true;
    }
    let Err(error) = whole(dev, new, first.generation(), SAMPLES) else { return true };
    let before = Generation(first.generation().0.saturating_sub(1));
    let first_is_whole = whole(dev, first, before, 0).is_ok();
    if first_is_whole {
        let (device, generation) = (dev.name(), new.generation().0);
        warn!(%device, generation, %error, "a newer superblock copy is passed over, since not all is there that it leads \
               to: the volume may have been gone on with from the first one");
    }
    !first_is_whole
}

fn differ_in_number_alone(new: &Superblock, first: &Superblock) -> bool {
    let mut new = new.clone();
    new.fields.generation = first.fields.generation;
    superblock::same(&new, first)
}

/// Whether all nodes can be read that `sb` leads to and that were written behind `since`, and the beginnings of so many
/// extents of content.
fn whole(dev: &dyn BlockDevice, sb: &Superblock, since: Generation, samples: usize) -> Result<()> {
    let mut look = Look { samples, ..Look::begin(dev, sb, since)? };
    look.tree(root_tree(sb))?;
    let mut roots = std::mem::take(&mut look.roots);
    // What is new has to be known before its checksums are come to.
    roots.sort_by_key(|root| root.owner == Some(TreeId::CSUM));
    roots.into_iter().try_for_each(|root| look.tree(root))?;
    match look.nodes.iter().find(|at| !look.listed.contains(at)) {
        Some(at) => Err(Corrupt::new("the extent tree has no such node").at(Logical(*at)).into()),
        None => Ok(()),
    }
}

fn root_tree(sb: &Superblock) -> Expect {
    let (logical, level) = (sb.fields.root, sb.fields.root_level);
    let (generation, owner) = (Some(sb.generation()), Some(TreeId::ROOT));
    Expect { logical, level, generation, owner, first_key: None }
}

struct Look<'a> {
    dev: &'a dyn BlockDevice,
    map: ChunkMap,
    geometry: Geometry,
    since: Generation,
    /// Of trees that have changed.
    roots: Vec<Expect>,
    nodes: BTreeSet<u64>,
    /// Nodes that the extent tree has, as far as that is new.
    listed: BTreeSet<u64>,
    /// Where new extents of content begin.
    content: BTreeSet<u64>,
    /// Of so many more the beginning is read.
    samples: usize,
}

impl Look<'_> {
    fn begin<'a>(dev: &'a dyn BlockDevice, sb: &Superblock, since: Generation) -> Result<Look<'a>> {
        features::refuse(sb, true)?;
        let mut device = DeviceId::of(sb);
        device.total_bytes = device.total_bytes.max(dev.len());
        let mut map = ChunkMap::new(device);
        load::system_chunks(sb, &mut map)?;
        let geometry = sb.geometry()?;
        let (roots, nodes, listed, content) = Default::default();
        let mut look =
            Look { dev, map, geometry, since, roots, nodes, listed, content, samples: 0 };
        let root = look.node(&load::chunk_root(sb))?;
        look.geometry.chunk_tree_uuid = root.header().chunk_tree_uuid;
        // The chunk tree lies in the chunks that are known by now.
        let mut map = look.map.clone();
        let mut visit = |key: Key, data: &[u8]| load::item(&mut map, sb, key, data).map(drop);
        load::Walk { read: &|expect| look.node(expect), visit: &mut visit, last: None }
            .node(&root)?;
        look.map = map;
        Ok(look)
    }

    /// What is new of a tree.
    fn tree(&mut self, root: Expect) -> Result<()> {
        let tree = root.owner;
        let mut left = vec![root];
        while let Some(expect) = left.pop() {
            let is_new = expect.generation.is_some_and(|generation| generation > self.since);
            if !is_new || !self.nodes.insert(expect.logical.0) {
                continue;
            }
            let node = self.node(&expect)?;
            if node.is_leaf() {
                node.items().try_for_each(|(key, data)| self.item(tree, key, data))?;
                continue;
            }
            left.extend(node.children().map(|child| Expect {
                logical: child.logical,
                level: node.level() - 1,
                generation: Some(child.generation),
                owner: tree,
                first_key: Some(child.key),
            }));
        }
        Ok(())
    }

    fn node(&self, expect: &Expect) -> Result<Node> {
        let size = self.geometry.node_size as usize;
        let mut failure = None;
        for at in self.map.map(expect.logical, size as u64)?.copies() {
            let mut bytes = buffers::zeroed(size);
            let read = self
                .dev
                .read_at(at.0, &mut bytes)
                .map_err(|source| Error::io(format!("{}: {at}", self.dev.name()), source));
            match read.and_then(|()| Ok(check::node(bytes, &self.geometry, expect)?)) {
                Ok(node) => return Ok(node),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| Error::corrupt("chunk without copies")))
    }

    fn item(&mut self, tree: Option<TreeId>, key: Key, data: &[u8]) -> Result<()> {
        match (tree, key.kind) {
            (Some(TreeId::ROOT), kind::ROOT_ITEM) => self.root(key, data),
            (Some(TreeId::EXTENT), kind::EXTENT_ITEM | kind::METADATA_ITEM) => {
                self.extent(key, data)
            }
            (Some(TreeId::CSUM), kind::EXTENT_CSUM) => self.sums(key, data),
            _ => Ok(()),
        }
    }

    fn root(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let item = RootItem::parse(data).map_err(|c| c.key(key))?;
        // Of one that is being dropped nodes are gone that others lead to still.
        if item.refs != 0 {
            // What moves a subvolume's nodes has them under the subvolume's name.
            let owner = (key.objectid < TreeId::RELOC.0).then_some(TreeId(key.objectid));
            let (logical, level, generation) = (item.bytenr, item.level, Some(item.generation));
            self.roots.push(Expect { logical, level, generation, owner, first_key: None });
        }
        Ok(())
    }

    fn extent(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let item = ExtentItem::parse(key.kind, data).map_err(|c| c.key(key))?;
        if item.fields.flags & extent_flags::DATA == 0 {
            self.listed.insert(key.objectid);
        } else if item.fields.generation > self.since.0 {
            self.content.insert(key.objectid);
        }
        Ok(())
    }

    fn sums(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let sector = u64::from(self.geometry.sector_size);
        let sums = data.chunks_exact(self.geometry.csum.size());
        let end = key.offset.saturating_add(sums.len() as u64 * sector);
        let begin_here = self.content.range(key.offset..end).take(self.samples);
        let mut looked_at = 0;
        for at in begin_here {
            let sum = sums.clone().nth(((at - key.offset) / sector) as usize).unwrap_or_default();
            if !self.has(Logical(*at), sum)? {
                return Err(Corrupt::new("content fails its checksum").at(Logical(*at)).into());
            }
            looked_at += 1;
        }
        self.samples -= looked_at;
        Ok(())
    }

    /// Whether a copy of the sector has this checksum.
    fn has(&self, at: Logical, sum: &[u8]) -> Result<bool> {
        let mut bytes = vec![0; self.geometry.sector_size as usize];
        let mapping = self.map.map(at, bytes.len() as u64)?;
        Ok(mapping.copies().iter().any(|at| {
            let read = self.dev.read_at(at.0, &mut bytes).is_ok();
            read && self.geometry.csum.digest(&bytes)[..sum.len()] == *sum
        }))
    }
}
