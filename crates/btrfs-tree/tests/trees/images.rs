//! Volumes made by the kernel, read through the cache; dirty nodes written to one.

use crate::common;
use blockdev::FileDevice;
use btrfs_disk::ids::block_group;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Generation, Key, Logical, Node, Result, Superblock, TreeId};
use btrfs_tree::{
    DirtyNodes, Edit, NodeReader, NodeSink, NodeStore, TreeRoot, apply, get, new_tree, scan, verify,
};
use btrfs_volume::{ChunkInfo, OpenOptions, Volume};
use common::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use testkit::oracle::{KernelMount, TempDir, mkfs_btrfs, sh};

fn open(image: &Path, read_only: bool) -> Arc<Volume> {
    let device = FileDevice::open(image, read_only, false).unwrap();
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    Arc::new(Volume::open(Arc::new(device), options).unwrap())
}

/// The roots that the superblock and the root tree name.
fn roots(store: &NodeStore, sb: &Superblock) -> Vec<TreeRoot> {
    let top = TreeRoot {
        id: TreeId::ROOT,
        logical: sb.fields.root,
        generation: sb.fields.generation,
        level: sb.fields.root_level,
    };
    let chunk = TreeRoot {
        id: TreeId::CHUNK,
        logical: sb.fields.chunk_root,
        generation: sb.fields.chunk_root_generation,
        level: sb.fields.chunk_root_level,
    };
    let mut out = vec![top, chunk];
    for item in scan(store, &top, Key::MIN..=Key::MAX) {
        let item = item.unwrap();
        if item.key().kind == kind::ROOT_ITEM {
            let root = RootItem::parse(item.data()).unwrap();
            out.push(TreeRoot {
                id: TreeId(item.key().objectid),
                logical: root.bytenr,
                generation: root.generation,
                level: root.level,
            });
        }
    }
    out
}

/// Items and nodes of each tree as `btrfs inspect-internal dump-tree` prints them.
fn dumped(image: &Path, tree: TreeId) -> (u64, u64) {
    let id = tree.0.to_string();
    let text = sh("btrfs", &["inspect-internal", "dump-tree", "-t", &id, &image.to_string_lossy()])
        .unwrap();
    let items = text.lines().filter(|line| line.starts_with("\titem ")).count() as u64;
    let node = |line: &&str| {
        (line.starts_with("leaf ") || line.starts_with("node ")) && line.contains(" free space ")
    };
    (items, text.lines().filter(node).count() as u64)
}

fn populate(mount: &KernelMount) {
    let write = |name: String, bytes: &[u8]| std::fs::write(mount.join(&name), bytes).unwrap();
    std::fs::create_dir(mount.join("many")).unwrap();
    for n in 0..6000 {
        write(format!("many/a file with a rather long name {n}"), &[n as u8; 40]);
    }
    write("large".into(), &vec![7; 3 << 20]);
    let path = |name: &str| mount.join(name).to_string_lossy().into_owned();
    sh("btrfs", &["subvolume", "snapshot", &path(""), &path("snapshot")]).unwrap();
    sh("btrfs", &["filesystem", "sync", &path("")]).unwrap();
    for n in (0..6000).step_by(7) {
        std::fs::remove_file(mount.join(&format!("many/a file with a rather long name {n}")))
            .unwrap();
    }
    sh("btrfs", &["subvolume", "create", &path("other")]).unwrap();
    write("other/one".into(), b"1");
}

fn kernel_image(dir: &TempDir, options: &[&str]) -> std::path::PathBuf {
    let image = dir.join("image");
    mkfs_btrfs(&image, 512 << 20, options).unwrap();
    let mount = KernelMount::new(&image, "max_inline=2048").unwrap();
    populate(&mount);
    mount.unmount().unwrap();
    image
}

fn every_tree_agrees(options: &[&str]) {
    let dir = TempDir::new("btrfs-tree").unwrap();
    let image = kernel_image(&dir, options);
    let volume = open(&image, true);
    let store = NodeStore::new(Arc::clone(&volume), 64 << 20);
    let roots = roots(&store, &volume.superblock());
    assert!(roots.len() >= 11, "{roots:?}");
    let mut deepest = 0;
    for root in &roots {
        let shape = verify(&store, root).unwrap();
        let nodes: u64 = shape.nodes.iter().sum();
        assert_eq!((shape.items, nodes), dumped(&image, root.id), "tree {}", root.id);
        assert_eq!(scan(&store, root, Key::MIN..=Key::MAX).count() as u64, shape.items);
        for item in scan(&store, root, Key::MIN..=Key::MAX).step_by(101) {
            let item = item.unwrap();
            let again = get(&store, root, &item.key()).unwrap().expect("the item is there");
            assert_eq!(again.data(), item.data());
        }
        deepest = deepest.max(root.level);
    }
    assert!(deepest >= 1);
    let counters = store.counters();
    assert!(counters.hits > counters.misses && counters.evictions == 0, "{counters:?}");
}

#[test]
fn every_tree_of_a_kernel_image_has_the_items_that_btrfs_progs_count() {
    testkit::require!(kernel_btrfs);
    every_tree_agrees(&[]);
}

#[test]
fn the_same_with_small_nodes_and_sha256() {
    testkit::require!(kernel_btrfs);
    every_tree_agrees(&["-n", "4096", "--csum", "sha256", "-m", "single"]);
}

/// Addresses from the end of the largest metadata chunk, which a new volume leaves free.
struct FromTheEnd {
    next: u64,
    step: u64,
    chunk: ChunkInfo,
}

impl FromTheEnd {
    fn usable(&self) -> bool {
        let taken = |(start, len): &(Logical, u64)| {
            self.next < start.0 + len && start.0 < self.next + self.step
        };
        !self.chunk.super_ranges().iter().any(taken)
    }
}

impl NodeSink for FromTheEnd {
    fn detach(&mut self, _: TreeId, _: &Arc<Node>) -> Result<()> {
        Ok(())
    }
    fn alloc(&mut self, _: TreeId, _: u8, _: Key) -> Result<Logical> {
        self.next -= self.step;
        while !self.usable() {
            self.next -= self.step;
        }
        Ok(Logical(self.next))
    }
    fn free_dirty(&mut self, _: TreeId, _: Logical, _: u8) -> Result<()> {
        Ok(())
    }
}

fn sink(volume: &Volume) -> FromTheEnd {
    let chunks = volume.chunks().into_iter();
    let largest = chunks
        .filter(|chunk| chunk.flags & block_group::METADATA != 0)
        .max_by_key(|chunk| chunk.len)
        .expect("a metadata chunk");
    let step = u64::from(volume.geometry().node_size);
    let next = largest.end();
    FromTheEnd { next, step, chunk: largest }
}

#[test]
fn written_nodes_are_read_back_from_every_copy() {
    testkit::require!(kernel_btrfs);
    let dir = TempDir::new("btrfs-tree").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 512 << 20, &["-m", "dup"]).unwrap();
    let volume = open(&image, false);
    let store = NodeStore::new(Arc::clone(&volume), 1 << 20);
    let (mut dirty, mut rng) = (DirtyNodes::new(), Rng(1));
    let mut sink = sink(&volume);
    let mut generation = Generation(volume.superblock().generation().0 + 1);
    let id = TreeId(300);
    let geometry = *volume.geometry();
    let mut root = new_tree(&geometry, &mut dirty, &mut sink, generation, id).unwrap();
    let mut model = BTreeMap::new();
    for _ in 0..5 {
        let batch: BTreeMap<Key, Box<[u8]>> =
            (0..3000).map(|_| (Key::new(rng.below(20_000), 3, 0), rng.bytes(200))).collect();
        model.extend(batch.clone());
        let edits = batch.into_iter().map(|(key, data)| (key, Edit::Put(data)));
        root = apply(&store, &mut dirty, &mut sink, generation, &root, edits).unwrap();
        let before = volume.counters().writes;
        let count = dirty.write_all(&store).unwrap();
        assert!(dirty.is_empty() && count > 20);
        let writes = volume.counters().writes - before;
        assert!(writes < count as u64, "{writes} writes for {count} nodes in two copies");
        generation.0 += 1;
    }
    volume.flush().unwrap();
    drop((store, volume));
    reads_back(&image, &root, &model);
}

fn reads_back(image: &Path, root: &TreeRoot, model: &BTreeMap<Key, Box<[u8]>>) {
    let volume = open(image, true);
    let store = NodeStore::new(Arc::clone(&volume), 1 << 20);
    assert_eq!(verify(&store, root).unwrap().items, model.len() as u64);
    for (item, (key, data)) in scan(&store, root, Key::MIN..=Key::MAX).zip(model) {
        let item = item.unwrap();
        assert_eq!((item.key(), item.data()), (*key, &data[..]));
    }
    let mut first = vec![0; volume.geometry().node_size as usize];
    let mut second = first.clone();
    volume.read_mirror(root.logical, 0, &mut first).unwrap();
    volume.read_mirror(root.logical, 1, &mut second).unwrap();
    assert_eq!(first, second);
    let counters = store.counters();
    assert!(counters.bytes <= 1 << 20 && counters.evictions > 0, "{counters:?}");
    assert_eq!(volume.counters().checksum_errors, 0);
}

/// Many threads, a cache that is too small, and a writer that renews nodes below them.
#[test]
fn readers_and_a_writer_share_the_store() {
    testkit::require!(kernel_btrfs);
    let dir = TempDir::new("btrfs-tree").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 512 << 20, &["-n", "4096"]).unwrap();
    let volume = open(&image, false);
    let store = NodeStore::new(Arc::clone(&volume), 400 << 10);
    let (mut dirty, mut sink) = (DirtyNodes::new(), sink(&volume));
    let mut generation = Generation(volume.superblock().generation().0 + 1);
    let edit =
        |n: u64, round: u64| (Key::new(n, 3, 0), Edit::Put(round.to_le_bytes().to_vec().into()));
    let mut root =
        new_tree(store.geometry(), &mut dirty, &mut sink, generation, TreeId(300)).unwrap();
    let published = std::sync::RwLock::new((root, 0));
    let mut commit = |round: u64| {
        let edits = (0..20_000).filter(|n| round == 0 || n % 50 == round % 50);
        let edits = edits.map(|n| edit(n, round));
        root = apply(&store, &mut dirty, &mut sink, generation, &root, edits).unwrap();
        dirty.write_all(&store).unwrap();
        generation.0 += 1;
        *published.write().unwrap() = (root, round);
    };
    commit(0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8)
            .map(|seed| {
                scope.spawn({
                    let (store, published) = (&store, &published);
                    move || read_for_a_while(store, published, seed)
                })
            })
            .collect();
        (1..30).for_each(&mut commit);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

fn read_for_a_while(store: &NodeStore, published: &std::sync::RwLock<(TreeRoot, u64)>, seed: u64) {
    let mut rng = Rng(seed);
    for _ in 0..300 {
        let (root, round) = *published.read().unwrap();
        for _ in 0..20 {
            let n = rng.below(20_000);
            let item = get(store, &root, &Key::new(n, 3, 0)).unwrap().expect("always there");
            let value = u64::from_le_bytes(item.data().try_into().unwrap());
            // The last round, up to the root's, that wrote this key.
            let last = (0..=round).rev().find(|r| *r == 0 || n % 50 == r % 50);
            assert_eq!(Some(value), last);
        }
    }
}
