//! Reads raw images of one device: chunk map, tree walks, and a scan for all nodes that
//! lie around, the freed ones included.

use btrfs_disk::items::{Chunk, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::node::{FLAG_WRITTEN, MAX_LEVEL};
use btrfs_disk::superblock::COPIES;
use btrfs_disk::{
    Corrupt, Expect, FixedSize, Generation, Geometry, Header, Key, Logical, Node, Superblock,
    TreeId, check,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The first trees that mkfs.btrfs makes by hand and then replaces before it is done:
/// never marked as written, and the kernel would refuse them too.
fn is_mkfs_scaffold(header: &Header) -> bool {
    header.flags & FLAG_WRITTEN == 0 && header.generation == Generation(1) && header.level == 0
}

/// A tree's id and all its items.
pub type Tree = (TreeId, Vec<(Key, Vec<u8>)>);

pub struct Raw {
    file: File,
    pub superblock: Superblock,
    pub geometry: Geometry,
    chunks: BTreeMap<u64, Chunk>,
}

impl Raw {
    pub fn open(path: &Path) -> Raw {
        let file = File::options().read(true).write(true).open(path).expect("image");
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, 64 << 10).expect("superblock");
        let superblock = Superblock::parse(&bytes, 64 << 10).expect("superblock");
        let geometry = superblock.geometry().expect("geometry");
        let mut raw = Raw { file, superblock, geometry, chunks: BTreeMap::new() };
        raw.take_system_chunks();
        let fields = raw.superblock.fields;
        let root = (fields.chunk_root, fields.chunk_root_level, fields.chunk_root_generation);
        for (key, data) in raw.walk(TreeId::CHUNK, root).expect("chunk tree") {
            if key.kind == kind::CHUNK_ITEM {
                raw.chunks.insert(key.offset, Chunk::parse(&data).expect("checked"));
            }
        }
        raw
    }

    fn take_system_chunks(&mut self) {
        let mut rest = &self.superblock.sys_chunks[..];
        while !rest.is_empty() {
            let key = Key::read(rest[..17].try_into().expect("a key"));
            let chunk = Chunk::parse(&rest[17..]).expect("a chunk");
            check::chunk(Logical(key.offset), &chunk, &self.geometry).expect("a good chunk");
            rest = &rest[17 + chunk.size()..];
            self.chunks.insert(key.offset, chunk);
        }
    }

    /// The first copy's place on the device.
    pub fn physical(&self, logical: Logical) -> Option<u64> {
        let (start, chunk) = self.chunks.range(..=logical.0).next_back()?;
        let inside = logical.0 - start;
        (inside < chunk.fields.length).then(|| chunk.stripes[0].offset + inside)
    }

    pub fn read(&self, logical: Logical, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let at = self.physical(logical).expect("mapped");
        self.file.read_exact_at(&mut bytes, at).expect("read");
        bytes
    }

    /// Overwrites every copy.
    pub fn write(&self, logical: Logical, bytes: &[u8]) {
        let (start, chunk) = self.chunks.range(..=logical.0).next_back().expect("mapped");
        for stripe in &chunk.stripes {
            self.file.write_all_at(bytes, stripe.offset + logical.0 - start).expect("write");
        }
    }

    fn limits(&self) -> check::Limits {
        let newest = Generation(self.superblock.generation().0 + 1);
        check::Limits { max_generation: Some(newest), read_only: false }
    }

    pub fn node(&self, expect: &Expect) -> Result<Node, Corrupt> {
        let bytes = self.read(expect.logical, self.geometry.node_size as usize);
        let node =
            check::node_within(bytes.into_boxed_slice(), &self.geometry, expect, &self.limits())?;
        check::before_write(&node, &self.geometry)?;
        Ok(node)
    }

    /// All items of a tree, every node held against what its parent promised.
    pub fn walk(
        &self,
        owner: TreeId,
        (logical, level, generation): (Logical, u8, Generation),
    ) -> Result<Vec<(Key, Vec<u8>)>, Corrupt> {
        let top = Expect {
            logical,
            level,
            generation: Some(generation),
            owner: Some(owner),
            first_key: None,
        };
        let mut items = Vec::new();
        let mut pending = vec![top];
        while let Some(expect) = pending.pop() {
            let node = self.node(&expect)?;
            if node.is_leaf() {
                items.extend(node.items().map(|(key, data)| (key, data.to_vec())));
                continue;
            }
            let children: Vec<_> = node.children().collect();
            pending.extend(children.iter().rev().map(|child| Expect {
                logical: child.logical,
                level: expect.level - 1,
                generation: Some(child.generation),
                owner: Some(owner),
                first_key: Some(child.key),
            }));
        }
        Ok(items)
    }

    pub fn root_tree(&self) -> Vec<(Key, Vec<u8>)> {
        let fields = &self.superblock.fields;
        let root = (fields.root, fields.root_level, fields.generation);
        self.walk(TreeId::ROOT, root).expect("root tree")
    }

    /// Every tree that the superblock and the root tree know, with its items.
    pub fn all_trees(&self) -> Result<Vec<Tree>, Corrupt> {
        let fields = &self.superblock.fields;
        let chunk_root = (fields.chunk_root, fields.chunk_root_level, fields.chunk_root_generation);
        let mut trees = vec![(TreeId::CHUNK, self.walk(TreeId::CHUNK, chunk_root)?)];
        let roots = self.root_tree();
        trees.extend(self.trees_of(&roots)?);
        trees.push((TreeId::ROOT, roots));
        if fields.log_root.0 != 0 {
            // The log is of the transaction behind the committed one.
            let generation = Generation(fields.generation.0 + 1);
            let root = (fields.log_root, fields.log_root_level, generation);
            let logs = self.walk(TreeId::LOG, root)?;
            trees.extend(self.trees_of(&logs)?);
            trees.push((TreeId::LOG, logs));
        }
        Ok(trees)
    }

    fn trees_of(&self, roots: &[(Key, Vec<u8>)]) -> Result<Vec<Tree>, Corrupt> {
        let mut trees = Vec::new();
        for (key, data) in roots.iter().filter(|(key, _)| key.kind == kind::ROOT_ITEM) {
            let root = RootItem::parse(data)?;
            if root.refs == 0 && root.drop_progress != Key::MIN {
                continue; // Half dropped: some of its nodes are gone.
            }
            let id = TreeId(key.objectid);
            let items = self.walk(id, (root.bytenr, root.level, root.generation))?;
            trees.push((id, items));
        }
        Ok(trees)
    }

    /// All nodes with a good checksum, wherever they lie; what the gate says of each.
    pub fn scan(&self, mut visit: impl FnMut(u64, Result<Node, Corrupt>)) -> usize {
        let size = self.geometry.node_size as usize;
        let len = self.file.metadata().expect("metadata").len();
        let mut window = vec![0; 1 << 20];
        let mut found = 0;
        for at in (0..len.saturating_sub(size as u64)).step_by(4096) {
            let inside = (at % (1 << 20)) as usize;
            if inside == 0 {
                window.fill(0);
                self.file.read_at(&mut window, at).expect("read");
            }
            let Ok(header) = Header::read(&window[inside..]) else { continue };
            if header.fsid != self.geometry.metadata_uuid || header.level >= MAX_LEVEL {
                continue;
            }
            if COPIES.contains(&at) || is_mkfs_scaffold(&header) {
                continue;
            }
            let mut bytes = vec![0; size];
            self.file.read_exact_at(&mut bytes, at).expect("read");
            let sum = self.geometry.csum.size();
            if self.geometry.csum.digest(&bytes[32..])[..sum] != bytes[..sum] {
                continue;
            }
            found += 1;
            visit(at, self.judge(bytes, &header));
        }
        found
    }

    /// With what the node's own header says as the promise.
    fn judge(&self, bytes: Vec<u8>, header: &Header) -> Result<Node, Corrupt> {
        let expect = Expect {
            logical: header.bytenr,
            level: header.level,
            generation: Some(header.generation),
            owner: Some(header.owner),
            first_key: None,
        };
        let node =
            check::node_within(bytes.into_boxed_slice(), &self.geometry, &expect, &self.limits())?;
        check::before_write(&node, &self.geometry)?;
        Ok(node)
    }
}
