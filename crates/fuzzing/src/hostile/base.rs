//! A sound image of which every node is known.

use super::disk::Layered;
use blockdev::{BlockDevice, MemDevice};
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Geometry, Logical, Node, Superblock, TreeId};
use btrfs_fs::{BtrfsFs, Options};
use btrfs_image::mkfs::{MkfsOptions, make};
use btrfs_tree::{NodePosition, NodeStore, Step, TreeRoot, Visitor, walk};
use btrfs_volume::{ChunkInfo, OpenOptions, Volume};
use std::sync::Arc;
use testkit::ops::{Config, Session, generate};
use vfs::{FallocateMode, FileKind, FileSystem, WriteFlags, XattrMode};

const CX: vfs::Context = vfs::Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };

/// One node of a base image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeAt {
    pub tree: TreeId,
    pub logical: Logical,
    pub level: u8,
}

pub struct Base {
    pub device: Arc<MemDevice>,
    pub geometry: Geometry,
    pub superblock: Arc<Superblock>,
    pub chunks: Vec<ChunkInfo>,
    /// Every node of every tree, each once.
    pub nodes: Vec<NodeAt>,
}

pub fn options() -> Options {
    Options { background: false, cache_bytes: 4 << 20, ..Options::default() }
}

impl Base {
    /// Our own mkfs and our own writes: needs nothing of the machine.
    pub fn ours(seed: u64, node_size: u32, steps: usize) -> Base {
        let device = Arc::new(MemDevice::new(128 << 20));
        let time = btrfs_disk::items::Timespec { sec: 1_700_000_000, nsec: 0 };
        let mkfs = MkfsOptions {
            node_size: Some(node_size),
            seed: Some(seed),
            time: Some(time),
            ..MkfsOptions::default()
        };
        make(&*device, &mkfs).expect("mkfs");
        let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
        let config = Config { freeze: false, ..Config::all() };
        let mut session = Session::new(&fs);
        for op in generate(seed, steps, &config) {
            session.apply(&op);
        }
        drop(session);
        fill(&fs).expect("fill");
        fs.destroy().expect("close");
        drop(fs);
        Base::of(device)
    }

    pub fn of(device: Arc<MemDevice>) -> Base {
        let open = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
        let volume = Arc::new(Volume::open(device.clone(), open).expect("a sound image"));
        let store = NodeStore::new(volume.clone(), 8 << 20);
        let superblock = volume.superblock();
        let mut nodes = Nodes { tree: TreeId::ROOT, found: Vec::new() };
        for root in roots(&store, &superblock) {
            nodes.tree = root.id;
            assert!(walk(&store, &root, &mut nodes), "a sound image");
        }
        let mut nodes = nodes.found;
        nodes.sort_by_key(|node| (node.logical, node.tree));
        nodes.dedup_by_key(|node| node.logical);
        let geometry = *volume.geometry();
        Base { device, geometry, superblock, chunks: volume.chunks(), nodes }
    }

    /// Device offsets of the copies of what is at `logical`.
    pub fn copies(&self, logical: Logical) -> Vec<u64> {
        let chunk = self.chunks.iter().find(|c| c.logical <= logical && logical.0 < c.end());
        let chunk = chunk.expect("nodes lie in chunks");
        let within = logical.0 - chunk.logical.0;
        chunk.stripes.iter().map(|(_, start)| start.0 + within).collect()
    }

    pub fn node_bytes(&self, device: &dyn BlockDevice, logical: Logical) -> Vec<u8> {
        let mut bytes = vec![0; self.geometry.node_size as usize];
        device.read_at(self.copies(logical)[0], &mut bytes).expect("in range");
        bytes
    }

    /// Writes a node to all its copies, with the right checksum.
    pub fn put_node(&self, device: &Layered, logical: Logical, mut bytes: Vec<u8>) {
        self.geometry.csum.seal(&mut bytes);
        for at in self.copies(logical) {
            device.write_at(at, &bytes).expect("in range");
        }
    }

    /// Spoils the content of one copy of a node.
    pub fn spoil(&self, device: &Layered, logical: Logical, copy: usize) {
        let at = self.copies(logical)[copy] + 200;
        let mut byte = [0];
        device.read_at(at, &mut byte).expect("in range");
        device.write_at(at, &[byte[0] ^ 0x40]).expect("in range");
    }
}

/// Content that random operations seldom make: fragments, preallocation, hash collisions,
/// attributes, and a directory of many names.
fn fill(fs: &BtrfsFs) -> vfs::Result<()> {
    let dir = fs.mkdir(&CX, fs.root(), b"filled", 0o755)?.attr.ino;
    let file = |name: &[u8]| fs.mknod(&CX, dir, name, FileKind::File, 0o644, 0).map(|e| e.attr.ino);
    let fragmented = file(b"fragmented")?;
    for i in 0..40u64 {
        let at = i * 37 % 40 * 8192;
        fs.write(&CX, fragmented, at, &[i as u8 + 1; 4096], WriteFlags::default())?;
        fs.fsync(fragmented, false)?;
    }
    let prealloc = file(b"prealloc")?;
    fs.fallocate(&CX, prealloc, FallocateMode::Allocate, 0, 256 << 10)?;
    fs.write(&CX, prealloc, 64 << 10, &[7; 20000], WriteFlags::default())?;
    fs.sync()?;
    let clone = file(b"clone")?;
    fs.clone_range(&CX, fragmented, 0, clone, 0, 0)?;
    fs.symlink(&CX, dir, b"symlink", b"fragmented")?;
    for (one, two) in testkit::oracle::colliding_names(5, 3) {
        file(one.as_bytes())?;
        file(two.as_bytes())?;
    }
    for i in 0..150 {
        let ino = file(format!("file with a rather long name, number {i:04}").as_bytes())?;
        if i % 5 == 0 {
            fs.write(&CX, ino, 0, &[i as u8; 300], WriteFlags::default())?;
            fs.setxattr(&CX, ino, b"user.attribute", &[1; 60], XattrMode::Set)?;
        }
        if i % 10 == 0 {
            fs.link(&CX, ino, dir, format!("link {i}").as_bytes())?;
        }
    }
    Ok(())
}

fn roots(store: &NodeStore, sb: &Superblock) -> Vec<TreeRoot> {
    let fields = &sb.fields;
    let root = TreeRoot {
        id: TreeId::ROOT,
        logical: fields.root,
        generation: fields.generation,
        level: fields.root_level,
    };
    let chunk = TreeRoot {
        id: TreeId::CHUNK,
        logical: fields.chunk_root,
        generation: fields.chunk_root_generation,
        level: fields.chunk_root_level,
    };
    let mut found = vec![root, chunk];
    let mut each = |key: btrfs_disk::Key, data: &[u8]| {
        if key.kind == kind::ROOT_ITEM {
            let item = RootItem::parse(data).expect("a sound image");
            let (logical, generation, level) = (item.bytenr, item.generation, item.level);
            found.push(TreeRoot { id: TreeId(key.objectid), logical, generation, level });
        }
    };
    let mut all = |root: &TreeRoot| {
        let mut cursor = btrfs_tree::Cursor::new(store, root);
        cursor.first().expect("a sound image");
        while let Some((key, data)) = cursor.item() {
            each(key, data);
            cursor.next().expect("a sound image");
        }
    };
    all(&root);
    if fields.log_root.0 != 0 {
        let log = TreeRoot {
            id: TreeId::LOG,
            logical: fields.log_root,
            generation: btrfs_disk::Generation(fields.generation.0 + 1),
            level: fields.log_root_level,
        };
        all(&log);
        found.push(log);
    }
    found
}

struct Nodes {
    tree: TreeId,
    found: Vec<NodeAt>,
}

impl Visitor for Nodes {
    fn node(&mut self, _: &NodePosition<'_>, node: &Arc<Node>) -> Step {
        self.found.push(NodeAt { tree: self.tree, logical: node.logical(), level: node.level() });
        Step::Into
    }

    fn broken(&mut self, _: &NodePosition<'_>, error: btrfs_disk::Error) -> Step {
        panic!("the base image is damaged: {error}");
    }
}
