//! A memory volume for trees, with books on every address: what is not accounted for
//! exactly fails the test that did it.
#![allow(dead_code)]

use btrfs_disk::node::ITEM_SIZE;
use btrfs_disk::{
    ChecksumType, Corrupt, Error, Expect, Generation, Geometry, Key, Logical, Node, Result, TreeId,
    build, check,
};
use btrfs_tree::{
    DirtyNodes, Edit, NodePosition, NodeReader, NodeSink, Step, TreeRoot, Visitor, apply, new_tree,
    verify, walk,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn bytes(&mut self, len: usize) -> Box<[u8]> {
        let mut out = vec![0; len];
        for chunk in out.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        out.into()
    }
}

pub fn geometry(node_size: u32) -> Geometry {
    Geometry {
        sector_size: 4096,
        node_size,
        csum: ChecksumType::Crc32c,
        metadata_uuid: [7; 16],
        chunk_tree_uuid: [9; 16],
    }
}

/// Committed nodes.
pub struct Memory {
    pub geometry: Geometry,
    pub nodes: HashMap<Logical, Arc<Node>>,
}

impl NodeReader for Memory {
    fn node(&self, expect: &Expect) -> Result<Arc<Node>> {
        self.nodes
            .get(&expect.logical)
            .cloned()
            .ok_or_else(|| Error::Corrupt(Corrupt::new("no such node").at(expect.logical)))
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}

/// A sink for trees that share nothing.
pub struct Books {
    node_size: u64,
    next: u64,
    /// Addresses free for the next allocations.
    pub free: Vec<Logical>,
    /// Let go in this generation: not to be used again before the commit.
    pub pinned: Vec<Logical>,
    /// Every address in use, with its level.
    pub live: HashMap<Logical, u8>,
    /// Addresses allocated in this generation.
    young: HashSet<Logical>,
    /// Parents in the committed tree, to hold the order of detaching against.
    pub parents: HashMap<Logical, Logical>,
    pub allocs: u64,
    pub detaches: u64,
    pub frees: u64,
    /// By level.
    pub allocs_at: [u64; LEVELS],
    pub detaches_at: [u64; LEVELS],
}

const LEVELS: usize = btrfs_disk::node::MAX_LEVEL as usize;

impl Books {
    pub fn new(node_size: u32) -> Books {
        Books {
            node_size: u64::from(node_size.max(4096)),
            next: 1 << 20,
            free: Vec::new(),
            pinned: Vec::new(),
            live: HashMap::new(),
            young: HashSet::new(),
            parents: HashMap::new(),
            allocs: 0,
            detaches: 0,
            frees: 0,
            allocs_at: [0; LEVELS],
            detaches_at: [0; LEVELS],
        }
    }

    pub fn calls(&self) -> u64 {
        self.allocs + self.detaches + self.frees
    }
}

impl NodeSink for Books {
    fn detach(&mut self, _: TreeId, old: &Arc<Node>) -> Result<()> {
        self.detaches += 1;
        self.detaches_at[usize::from(old.level())] += 1;
        let logical = old.logical();
        assert!(!self.young.contains(&logical), "a node of this generation was detached");
        assert_eq!(self.live.remove(&logical), Some(old.level()), "detach of what is not live");
        if let Some(parent) = self.parents.get(&logical) {
            assert!(!self.live.contains_key(parent), "detached before its parent");
        }
        self.pinned.push(logical);
        Ok(())
    }

    fn alloc(&mut self, _: TreeId, level: u8, _: Key) -> Result<Logical> {
        self.allocs += 1;
        self.allocs_at[usize::from(level)] += 1;
        let logical = self.free.pop().unwrap_or_else(|| {
            self.next += self.node_size;
            Logical(self.next)
        });
        assert_eq!(self.live.insert(logical, level), None);
        self.young.insert(logical);
        Ok(logical)
    }

    fn free_dirty(&mut self, _: TreeId, logical: Logical, level: u8) -> Result<()> {
        self.frees += 1;
        assert!(self.young.remove(&logical), "free_dirty of an older node");
        assert_eq!(self.live.remove(&logical), Some(level));
        self.free.push(logical);
        Ok(())
    }
}

/// One tree, its model, and everything around it.
pub struct World {
    pub memory: Memory,
    pub dirty: DirtyNodes,
    pub books: Books,
    pub generation: Generation,
    pub root: TreeRoot,
    pub model: BTreeMap<Key, Box<[u8]>>,
}

pub const TREE: TreeId = TreeId(300);

impl World {
    pub fn new(node_size: u32) -> World {
        let geometry = geometry(node_size);
        let mut dirty = DirtyNodes::new();
        let mut books = Books::new(node_size);
        let generation = Generation(1);
        let root = new_tree(&geometry, &mut dirty, &mut books, generation, TREE).unwrap();
        let memory = Memory { geometry, nodes: HashMap::new() };
        World { memory, dirty, books, generation, root, model: BTreeMap::new() }
    }

    pub fn apply(&mut self, edits: Vec<(Key, Edit)>) {
        let most = self.most(&edits);
        let before = self.books.allocs_at;
        for (key, edit) in &edits {
            match edit {
                Edit::Put(data) => drop(self.model.insert(*key, data.clone())),
                Edit::Delete => drop(self.model.remove(key)),
            }
        }
        self.root = apply(
            &self.memory,
            &mut self.dirty,
            &mut self.books,
            self.generation,
            &self.root,
            edits,
        )
        .unwrap();
        for (level, most) in most.into_iter().enumerate() {
            let new = self.books.allocs_at[level] - before[level];
            assert!(new <= most, "{new} new nodes of level {level}, {most} at most");
        }
    }

    /// New nodes of each level that edits may take: what `reserve/bound.rs` of `btrfs-fs` counts
    /// on, from its reasons.
    fn most(&self, edits: &[(Key, Edit)]) -> [u64; LEVELS] {
        let geometry = &self.memory.geometry;
        let places = edits.len() as u64;
        let cost = |edit: &Edit| match edit {
            Edit::Put(data) => (data.len() + ITEM_SIZE) as u64,
            Edit::Delete => 0,
        };
        let bytes: u64 = edits.iter().map(|(_, edit)| cost(edit)).sum();
        let mut most = [0; LEVELS];
        most[0] = 3 * places + 2 * bytes.div_ceil(geometry.leaf_space() as u64);
        for level in 1..LEVELS {
            let grown = most[level - 1].div_ceil(geometry.max_pointers() as u64);
            most[level] = 2 * places.min(most[level - 1]) + grown;
        }
        most
    }

    /// Every dirty node through the gate and onto the medium; the next generation begins.
    pub fn commit(&mut self) {
        for logical in std::mem::take(&mut self.books.pinned) {
            self.memory.nodes.remove(&logical).expect("a pinned node was committed");
            self.books.free.push(logical);
        }
        self.books.young.clear();
        for node in self.dirty.take() {
            let expect = Expect {
                logical: node.logical(),
                level: node.level(),
                generation: Some(self.generation),
                owner: Some(TREE),
                first_key: (!node.is_empty()).then(|| node.key(0)),
            };
            let bytes = build::seal(&self.memory.geometry, &node).into_boxed_slice();
            let node = check::node(bytes, &self.memory.geometry, &expect).expect("the gate");
            self.memory.nodes.insert(node.logical(), Arc::new(node));
        }
        self.generation.0 += 1;
        self.learn_parents();
    }

    fn learn_parents(&mut self) {
        let mut parents = Parents(HashMap::new());
        walk(&self.memory, &self.root, &mut parents);
        self.books.parents = parents.0;
    }

    /// The whole tree against the model, and the books against the tree.
    pub fn check(&self) {
        let reader = self.dirty.over(&self.memory);
        let shape = verify(&reader, &self.root).unwrap();
        assert_eq!(shape.items, self.model.len() as u64);
        let mut seen = Seen { live: HashMap::new(), items: self.model.iter() };
        assert!(walk(&reader, &self.root, &mut seen));
        assert!(seen.items.next().is_none());
        assert_eq!(seen.live, self.books.live, "live addresses and reachable ones differ");
        let young = self.dirty.iter().map(|node| node.logical()).collect();
        assert_eq!(self.books.young, young, "dirty nodes and allocations differ");
    }
}

struct Parents(HashMap<Logical, Logical>);

impl Visitor for Parents {
    fn node(&mut self, place: &NodePosition<'_>, node: &Arc<Node>) -> Step {
        if let Some(parent) = place.parent {
            self.0.insert(node.logical(), parent.logical());
        }
        Step::Into
    }

    fn broken(&mut self, _: &NodePosition<'_>, error: Error) -> Step {
        panic!("{error}")
    }
}

struct Seen<I> {
    live: HashMap<Logical, u8>,
    items: I,
}

impl<'a, I: Iterator<Item = (&'a Key, &'a Box<[u8]>)>> Visitor for Seen<I> {
    fn node(&mut self, place: &NodePosition<'_>, node: &Arc<Node>) -> Step {
        assert_eq!(self.live.insert(node.logical(), node.level()), None);
        assert!(place.parent.is_none() || !node.is_empty(), "an empty node below the root");
        if node.is_leaf() {
            for (key, data) in node.items() {
                let (model_key, model_data) = self.items.next().expect("more items than model");
                assert_eq!(key, *model_key);
                assert!(data == &model_data[..], "data of {key} differs");
            }
        }
        Step::Into
    }

    fn broken(&mut self, _: &NodePosition<'_>, error: Error) -> Step {
        panic!("{error}")
    }
}
