//! The node cache: addresses to nodes, within a budget of bytes.
//!
//! Sharded by address. A hit takes its shard's lock for reading and writes nothing but
//! a mark that is mostly set already; only misses and inserts exclude others. Eviction
//! is SIEVE: a queue by age, through which a hand wanders from the oldest to the
//! youngest and drops what nobody asked for since it last came by. So one long scan
//! passes through without driving out what is used again and again.
//!
//! Invariants: at most `capacity` nodes in a shard, but for the moment after it shrank; `map` and the queue hold the same
//! addresses; `hand` is `NONE` or in the queue.
//!
//! What it does not know: whether a node is the one that somebody expects.

use btrfs_disk::{Logical, Node};
use locks::{Rank, RwLock};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a node costs beside its bytes: its header, the slot, the map's entry.
/// Estimated.
const OVERHEAD: usize = 256;
/// Twice the transport's most threads: they seldom meet.
const MAX_SHARDS: usize = 64;
/// Fewer nodes a shard, and eviction knows too little to choose well.
/// Chosen, not measured.
const MIN_SHARD_NODES: usize = 32;

/// Nodes that go under one hold when the budget shrinks.
/// Chosen, not measured.
const AT_ONCE: usize = 16;

/// What the cache did so far and holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounters {
    /// Nodes that were here.
    pub hits: u64,
    /// Nodes that had to be read.
    pub misses: u64,
    /// Nodes that made room for others.
    pub evictions: u64,
    /// Nodes that are here now.
    pub nodes: u64,
    /// What they take of memory.
    pub bytes: u64,
}

pub(crate) struct Cache {
    shards: Box<[Shard]>,
    node_size: usize,
}

/// Alone on its cache lines, so that shards do not slow each other down.
#[repr(align(128))]
struct Shard {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    queue: RwLock<Queue>,
}

impl Cache {
    pub(crate) fn new(budget: usize, node_size: usize) -> Cache {
        let nodes = budget / (node_size + OVERHEAD);
        let wanted = (nodes / MIN_SHARD_NODES).clamp(1, MAX_SHARDS);
        let count = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        let shard = || Shard {
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            queue: RwLock::new(Rank::Leaf, Queue::new(nodes / count)),
        };
        Cache { shards: (0..count).map(|_| shard()).collect(), node_size }
    }

    /// At most so many bytes from now on; what is too much goes, a few nodes under one hold.
    pub(crate) fn set_budget(&self, budget: usize) {
        let capacity = budget / (self.node_size + OVERHEAD) / self.shards.len();
        for shard in &self.shards {
            shard.queue.write().capacity = capacity;
            loop {
                let gone = shard.queue.write().evict_beyond();
                shard.evictions.fetch_add(gone.len() as u64, Ordering::Relaxed);
                if gone.is_empty() {
                    break;
                }
            }
        }
    }

    fn shard(&self, logical: Logical) -> &Shard {
        // The map below uses the hash's low and top bits; these lie between.
        &self.shards[(mix(logical.0) >> 32) as usize & (self.shards.len() - 1)]
    }

    /// The node at `logical` if it is here and `fits`; counted as a hit or a miss.
    pub(crate) fn get(&self, logical: Logical, fits: impl Fn(&Node) -> bool) -> Option<Arc<Node>> {
        let shard = self.shard(logical);
        let found = shard.queue.read().get(logical).filter(|node| fits(node)).cloned();
        let counter = if found.is_some() { &shard.hits } else { &shard.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Puts in what a reader read. The answer is the node to use: another reader may
    /// have been first.
    pub(crate) fn offer(&self, node: Arc<Node>) -> Arc<Node> {
        let shard = self.shard(node.logical());
        let mut queue = shard.queue.write();
        if let Some(present) = queue.get(node.logical())
            && present.generation() >= node.generation()
        {
            let newer = present.generation() > node.generation();
            return if newer { node } else { Arc::clone(present) };
        }
        let out = queue.put(Arc::clone(&node));
        drop(queue);
        shard.count(&out);
        node
    }

    /// Puts in what now stands at the node's address.
    pub(crate) fn insert(&self, node: Arc<Node>) {
        let shard = self.shard(node.logical());
        let out = shard.queue.write().put(node);
        shard.count(&out);
    }

    pub(crate) fn forget(&self, logical: Logical) {
        let gone = self.shard(logical).queue.write().remove(logical);
        drop(gone);
    }

    pub(crate) fn counters(&self) -> CacheCounters {
        let mut sum = CacheCounters::default();
        for shard in &self.shards {
            sum.hits += shard.hits.load(Ordering::Relaxed);
            sum.misses += shard.misses.load(Ordering::Relaxed);
            sum.evictions += shard.evictions.load(Ordering::Relaxed);
            sum.nodes += shard.queue.read().map.len() as u64;
        }
        sum.bytes = sum.nodes * (self.node_size + OVERHEAD) as u64;
        sum
    }
}

impl Shard {
    /// `evicted` is dropped by the caller, after the lock.
    fn count(&self, evicted: &Displaced) {
        if evicted.by_age {
            self.evictions.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What had to go for a new node.
struct Displaced {
    by_age: bool,
    _node: Option<Arc<Node>>,
}

const NONE: u32 = u32::MAX;

struct Queue {
    map: HashMap<u64, Entry, BuildHasherDefault<MixHasher>>,
    links: Vec<Link>,
    free: Vec<u32>,
    youngest: u32,
    oldest: u32,
    hand: u32,
    capacity: usize,
}

/// All that a hit needs, in the map itself: each step aside is a wait for memory.
struct Entry {
    node: Arc<Node>,
    wanted: AtomicBool,
    link: u32,
}

/// A place in the queue.
struct Link {
    logical: u64,
    younger: u32,
    older: u32,
}

impl Queue {
    fn new(capacity: usize) -> Queue {
        Queue {
            map: HashMap::default(),
            links: Vec::new(),
            free: Vec::new(),
            youngest: NONE,
            oldest: NONE,
            hand: NONE,
            capacity,
        }
    }

    fn get(&self, logical: Logical) -> Option<&Arc<Node>> {
        let entry = self.map.get(&logical.0)?;
        // Writing only what changes keeps the line shared between readers.
        if !entry.wanted.load(Ordering::Relaxed) {
            entry.wanted.store(true, Ordering::Relaxed);
        }
        Some(&entry.node)
    }

    fn put(&mut self, node: Arc<Node>) -> Displaced {
        let logical = node.logical().0;
        if let Some(entry) = self.map.get_mut(&logical) {
            let old = std::mem::replace(&mut entry.node, node);
            return Displaced { by_age: false, _node: Some(old) };
        }
        if self.capacity == 0 {
            return Displaced { by_age: false, _node: Some(node) };
        }
        let full = self.map.len() >= self.capacity;
        let old = if full { self.evict() } else { None };
        let link = self.link(logical);
        self.map.insert(logical, Entry { node, wanted: AtomicBool::new(false), link });
        Displaced { by_age: full, _node: old }
    }

    fn remove(&mut self, logical: Logical) -> Option<Arc<Node>> {
        let entry = self.map.remove(&logical.0)?;
        self.unlink(entry.link);
        Some(entry.node)
    }

    /// Some of those that are too many, to be dropped after the lock.
    fn evict_beyond(&mut self) -> Vec<Arc<Node>> {
        let much = self.map.len().saturating_sub(self.capacity).min(AT_ONCE);
        (0..much).map_while(|_| self.evict()).collect()
    }

    fn evict(&mut self) -> Option<Arc<Node>> {
        let mut at = if self.hand == NONE { self.oldest } else { self.hand };
        while let Some(link) = self.links.get(at as usize) {
            let entry = self.map.get(&link.logical)?;
            if !entry.wanted.swap(false, Ordering::Relaxed) {
                self.hand = at;
                return self.remove(Logical(link.logical));
            }
            at = if link.younger == NONE { self.oldest } else { link.younger };
        }
        None
    }

    /// Enters the queue at its young end.
    fn link(&mut self, logical: u64) -> u32 {
        let link = Link { logical, younger: NONE, older: self.youngest };
        let at = match self.free.pop() {
            Some(at) => {
                self.links[at as usize] = link;
                at
            }
            None => {
                self.links.push(link);
                self.links.len() as u32 - 1
            }
        };
        match self.youngest {
            NONE => self.oldest = at,
            youngest => self.links[youngest as usize].younger = at,
        }
        self.youngest = at;
        at
    }

    fn unlink(&mut self, at: u32) {
        let Link { younger, older, .. } = self.links[at as usize];
        match older {
            NONE => self.oldest = younger,
            older => self.links[older as usize].younger = younger,
        }
        match younger {
            NONE => self.youngest = older,
            younger => self.links[younger as usize].older = older,
        }
        if self.hand == at {
            self.hand = younger;
        }
        self.free.push(at);
    }
}

/// Addresses are multiples of the node size: every bit must reach the low ones.
fn mix(address: u64) -> u64 {
    let product = u128::from(address ^ 0x2545_F491_4F6C_DD1D) * 0x9E37_79B9_7F4A_7C15;
    (product >> 64) as u64 ^ product as u64
}

#[derive(Default)]
struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use btrfs_disk::{ChecksumType, Generation, Geometry, NodeIdentity, TreeId, build};

    fn node(address: u64, generation: u64) -> Arc<Node> {
        let geometry = Geometry {
            sector_size: 4096,
            node_size: 4096,
            csum: ChecksumType::Crc32c,
            metadata_uuid: [0; 16],
            chunk_tree_uuid: [0; 16],
        };
        let id = NodeIdentity {
            logical: Logical(address << 12),
            generation: Generation(generation),
            owner: TreeId::FS,
        };
        Arc::new(build::leaf(&geometry, &id, &[]))
    }

    fn at(address: u64) -> Logical {
        Logical(address << 12)
    }

    fn holds(cache: &Cache, address: u64) -> bool {
        cache.get(at(address), |_| true).is_some()
    }

    #[test]
    fn the_budget_holds_and_a_scan_leaves_what_is_used() {
        let cache = Cache::new(100 * (4096 + OVERHEAD), 4096);
        for n in 0..20 {
            cache.insert(node(n, 1));
        }
        for n in 20..5000 {
            cache.offer(node(n, 1));
            if n % 10 == 0 {
                (0..20).for_each(|hot| assert!(holds(&cache, hot), "{hot} went at {n}"));
            }
        }
        let counters = cache.counters();
        assert!(counters.nodes <= 100 && counters.nodes > 60, "{counters:?}");
        assert_eq!(counters.evictions, 5000 - counters.nodes);
    }

    #[test]
    fn an_older_node_does_not_replace_a_newer_one() {
        let cache = Cache::new(1 << 20, 4096);
        cache.insert(node(1, 5));
        assert_eq!(cache.offer(node(1, 4)).generation(), Generation(4));
        assert_eq!(cache.get(at(1), |_| true).unwrap().generation(), Generation(5));
        cache.offer(node(1, 6));
        assert_eq!(cache.get(at(1), |_| true).unwrap().generation(), Generation(6));
        cache.insert(node(1, 2));
        assert_eq!(cache.get(at(1), |_| true).unwrap().generation(), Generation(2));
        cache.forget(at(1));
        assert!(!holds(&cache, 1));
    }

    #[test]
    fn a_budget_shrinks_and_grows() {
        let cache = Cache::new(100 * (4096 + OVERHEAD), 4096);
        (0..100).for_each(|n| cache.insert(node(n, 1)));
        assert!(cache.counters().nodes > 60);
        cache.set_budget(20 * (4096 + OVERHEAD));
        assert!((1..=20).contains(&cache.counters().nodes), "{:?}", cache.counters());
        (0..100).for_each(|n| cache.insert(node(n, 2)));
        assert!((1..=20).contains(&cache.counters().nodes), "{:?}", cache.counters());
        cache.set_budget(100 * (4096 + OVERHEAD));
        (0..100).for_each(|n| cache.insert(node(n, 3)));
        assert!(cache.counters().nodes > 60, "{:?}", cache.counters());
    }

    #[test]
    fn without_a_budget_nothing_stays() {
        let cache = Cache::new(0, 4096);
        cache.insert(node(1, 1));
        assert!(!holds(&cache, 1));
        assert_eq!(cache.counters().misses, 1);
    }

    /// Queue and map agree through any order of calls.
    #[test]
    fn the_queue_stays_whole() {
        let mut queue = Queue::new(7);
        let mut seed = 1u64;
        for _ in 0..20_000 {
            seed = mix(seed);
            let address = seed % 20;
            match seed >> 60 {
                0..6 => drop(queue.put(node(address, 1))),
                6..12 => drop(queue.get(at(address)).cloned()),
                _ => drop(queue.remove(at(address))),
            }
            let mut seen = 0;
            let (mut here, mut before) = (queue.oldest, NONE);
            while here != NONE {
                let link = &queue.links[here as usize];
                assert_eq!(link.older, before);
                assert_eq!(queue.map.get(&link.logical).map(|entry| entry.link), Some(here));
                (seen, before, here) = (seen + 1, here, link.younger);
            }
            assert_eq!((seen, before), (queue.map.len(), queue.youngest));
            assert!(seen <= 7);
            assert!(queue.hand == NONE || !queue.free.contains(&queue.hand));
        }
    }
}
