//! What bulk edits and cached lookups cost here: `cargo run --release -p spinney-btrfs-tree
//! --example speed`. Makes an image of its own with mkfs.btrfs.

use blockdev::MemDevice;
use btrfs_disk::ids::block_group;
use btrfs_disk::items::Chunk;
use btrfs_disk::{Generation, Key, Logical, Node, Result, TreeId};
use btrfs_tree::{
    Cursor, DirtyNodes, Edit, NodeSink, NodeStore, TreeRoot, apply, get, new_tree, verify,
};
use btrfs_volume::{OpenOptions, Volume};
use std::sync::Arc;
use std::time::Duration;
use testkit::oracle::{TempDir, mkfs_btrfs};

struct Upwards {
    next: u64,
    step: u64,
    taken: Vec<(Logical, u64)>,
    allocs: u64,
}

impl NodeSink for Upwards {
    fn detach(&mut self, _: TreeId, _: &Arc<Node>) -> Result<()> {
        Ok(())
    }
    fn alloc(&mut self, _: TreeId, _: u8, _: Key) -> Result<Logical> {
        self.allocs += 1;
        let clash = |at: u64| self.taken.iter().any(|(s, l)| at < s.0 + l && s.0 < at + self.step);
        self.next += self.step;
        while clash(self.next) {
            self.next += self.step;
        }
        Ok(Logical(self.next))
    }
    fn free_dirty(&mut self, _: TreeId, _: Logical, _: u8) -> Result<()> {
        Ok(())
    }
}

struct Bench {
    store: NodeStore,
    dirty: DirtyNodes,
    sink: Upwards,
    generation: Generation,
}

impl Bench {
    fn apply(&mut self, root: &TreeRoot, edits: Vec<(Key, Edit)>) -> (TreeRoot, Duration) {
        let start = cpu_time();
        let (dirty, sink) = (&mut self.dirty, &mut self.sink);
        let root = apply(&self.store, dirty, sink, self.generation, root, edits).unwrap();
        (root, (cpu_time() - start))
    }

    fn write(&mut self, what: &str) {
        let start = cpu_time();
        let count = self.dirty.write_all(&self.store).unwrap();
        self.generation.0 += 1;
        println!("{what}: {count} nodes written in {:?}", (cpu_time() - start));
    }
}

/// What this thread has used so far.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanos.expect("the kernel keeps schedstat"))
}

const ITEMS: u64 = 1_000_000;

fn key(n: u64) -> Key {
    Key::new(n, 3, n & 7)
}

fn put(n: u64, len: usize) -> (Key, Edit) {
    (key(n), Edit::Put(vec![n as u8; len].into()))
}

fn open() -> Bench {
    let dir = TempDir::new("tree-speed").unwrap();
    let image = dir.join("image");
    mkfs_btrfs(&image, 8 << 30, &["-m", "single"]).unwrap();
    let dev = Arc::new(MemDevice::new(8 << 30));
    copy_sparse(&image, &dev);
    let volume = Arc::new(Volume::open(dev, OpenOptions::default()).unwrap());
    let store = NodeStore::new(Arc::clone(&volume), 2 << 30);
    let base = Logical(1 << 40);
    volume.add_chunk(base, &large_chunk(&store)).unwrap();
    let taken = volume.chunk(base).unwrap().super_ranges();
    let step = u64::from(volume.geometry().node_size);
    let sink = Upwards { next: base.0, step, taken, allocs: 0 };
    let generation = Generation(volume.superblock().generation().0 + 1);
    Bench { store, dirty: DirtyNodes::new(), sink, generation }
}

/// The volume's last chunk, made large and moved to where the device is empty.
fn large_chunk(store: &NodeStore) -> Chunk {
    let sb = store.volume().superblock();
    let root = TreeRoot {
        id: TreeId::CHUNK,
        logical: sb.fields.chunk_root,
        generation: sb.fields.chunk_root_generation,
        level: sb.fields.chunk_root_level,
    };
    let mut cursor = Cursor::new(store, &root);
    cursor.last().unwrap();
    let mut chunk = Chunk::parse(cursor.item().unwrap().1).unwrap();
    chunk.fields.length = 5 << 30;
    chunk.fields.kind = block_group::METADATA;
    chunk.stripes[0].offset = 2 << 30;
    chunk
}

fn copy_sparse(image: &std::path::Path, dev: &MemDevice) {
    use blockdev::BlockDevice;
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(image).unwrap();
    let mut buf = vec![0; 1 << 20];
    for mib in 0..512 {
        file.read_exact_at(&mut buf, mib << 20).unwrap();
        if buf.iter().any(|b| *b != 0) {
            dev.write_at(mib << 20, &buf).unwrap();
        }
    }
}

fn per(time: Duration, count: u64) -> String {
    format!("{:.0} ns each ({time:?})", time.as_nanos() as f64 / count as f64)
}

fn shuffled(n: u64) -> u64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % ITEMS
}

fn edits(bench: &mut Bench) -> TreeRoot {
    let geometry = *bench.store.volume().geometry();
    let (dirty, sink) = (&mut bench.dirty, &mut bench.sink);
    let root = new_tree(&geometry, dirty, sink, bench.generation, TreeId(300)).unwrap();
    let batch: Vec<_> = (0..ITEMS).map(|n| put(n * 2 % (2 * ITEMS), 60)).collect();
    let (root, time) = bench.apply(&root, batch);
    println!("1,000,000 sorted inserts into an empty tree: {}", per(time, ITEMS));
    bench.write("  then");
    let batch: Vec<_> = (0..ITEMS / 10).map(|n| put(n * 20 + 1, 60)).collect();
    let (root, time) = bench.apply(&root, batch);
    println!("100,000 inserts, ten items apart: {}", per(time, ITEMS / 10));
    let batch: Vec<_> = (0..ITEMS / 10).map(|n| put(n * 20 + 1, 61)).collect();
    let (root, time) = bench.apply(&root, batch.clone());
    println!("100,000 replacements in dirty nodes: {}", per(time, ITEMS / 10));
    let (root, time) = bench.apply(&root, batch);
    println!("the same again, without effect: {}", per(time, ITEMS / 10));
    bench.write("  then");
    let batch: Vec<_> = (0..1000).map(|n| put(n * 2000 + 1, 60)).collect();
    let (root, time) = bench.apply(&root, batch);
    println!("1,000 inserts, one to a leaf: {}", per(time, 1000));
    bench.write("  then");
    root
}

fn lookups(store: &NodeStore, root: &TreeRoot) {
    println!("shape: {:?}", verify(store, root).unwrap());
    for round in 0..2 {
        let start = cpu_time();
        for n in 0..ITEMS {
            let found = get(store, root, &key(shuffled(n) & !1)).unwrap();
            assert!(found.is_some());
        }
        println!("random cached lookups, round {round}: {}", per(cpu_time() - start, ITEMS));
    }
    let start = cpu_time();
    for n in 0..ITEMS {
        assert!(get(store, root, &key(1000 + (n & 62))).unwrap().is_some());
    }
    println!("cached lookups in one leaf: {}", per(cpu_time() - start, ITEMS));
    let start = cpu_time();
    let (mut cursor, mut count) = (Cursor::new(store, root), 0);
    cursor.first().unwrap();
    while let Some((_, data)) = cursor.item() {
        count += u64::from(!data.is_empty());
        cursor.next().unwrap();
    }
    println!("cursor over {count} items: {}", per(cpu_time() - start, count));
    println!("cache: {:?}", store.counters());
}

fn threads(store: &NodeStore, root: &TreeRoot, count: u64) {
    let worker = |t: u64| {
        let start = cpu_time();
        for n in 0..ITEMS / 2 {
            assert!(get(store, root, &key(shuffled(n + t) & !1)).unwrap().is_some());
        }
        cpu_time() - start
    };
    let time: Duration = std::thread::scope(|scope| {
        let all: Vec<_> = (0..count).map(|t| scope.spawn(move || worker(t))).collect();
        all.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    println!("{count} threads: {}", per(time, count * ITEMS / 2));
}

fn main() {
    let mut bench = open();
    let root = edits(&mut bench);
    lookups(&bench.store, &root);
    [1, 2, 8].iter().for_each(|count| threads(&bench.store, &root, *count));
}
