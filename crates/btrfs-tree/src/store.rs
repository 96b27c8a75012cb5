//! Nodes of a volume, cached; and the writing of new ones.
//!
//! Invariants: what is handed out has passed the gate and keeps the promises asked
//! about; a node enters the cache only when it stands on the medium.

use crate::cache::{Cache, CacheCounters};
use crate::dirty::DirtyNodes;
use crate::reader::{NodeReader, keeps};
use btrfs_disk::{Expect, Geometry, Logical, Node, Result, build, check};
use btrfs_volume::Volume;
use std::sync::Arc;

/// The nodes of a volume, through a cache.
pub struct NodeStore {
    volume: Arc<Volume>,
    cache: Cache,
}

impl NodeStore {
    /// Keeps at most `budget_bytes` of nodes beside those in use.
    pub fn new(volume: Arc<Volume>, budget_bytes: usize) -> NodeStore {
        let cache = Cache::new(budget_bytes, volume.geometry().node_size as usize);
        NodeStore { volume, cache }
    }

    /// Where they come from.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Keeps at most so many from now on; what is too much goes.
    pub fn set_budget(&self, bytes: usize) {
        self.cache.set_budget(bytes);
    }

    /// The node that `expect` promises, from the cache or the medium.
    pub fn get(&self, expect: &Expect) -> Result<Arc<Node>> {
        // Who does not know the generation wants what stands on the medium.
        if expect.generation.is_none() {
            return self.read(expect);
        }
        match self.cache.get(expect.logical, |node| keeps(node, expect).is_ok()) {
            Some(node) => Ok(node),
            None => Ok(self.cache.offer(self.read(expect)?)),
        }
    }

    fn read(&self, expect: &Expect) -> Result<Arc<Node>> {
        let node = self.volume.read_node(expect)?;
        keeps(&node, expect)?;
        Ok(Arc::new(node))
    }

    /// A node that now stands on the medium.
    pub fn insert(&self, node: Arc<Node>) {
        self.cache.insert(node);
    }

    /// The address is free again: its node is of no more use.
    pub fn forget(&self, logical: Logical) {
        self.cache.forget(logical);
    }

    /// Of the cache, as of now.
    pub fn counters(&self) -> CacheCounters {
        self.cache.counters()
    }
}

impl NodeReader for NodeStore {
    fn node(&self, expect: &Expect) -> Result<Arc<Node>> {
        self.get(expect)
    }

    fn nodes_once(&self, expects: &[Expect]) -> Result<Vec<Arc<Node>>> {
        let here = |e: &Expect| self.cache.get(e.logical, |node| keeps(node, e).is_ok()).is_some();
        let unread: Vec<Expect> = expects.iter().filter(|e| !here(e)).copied().collect();
        let nodes = self.volume.read_nodes(&unread)?;
        for (node, expect) in nodes.iter().zip(&unread) {
            keeps(node, expect)?;
        }
        Ok(nodes.into_iter().map(Arc::new).collect())
    }

    fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }
}

/// Bytes of one vectored write: enough that more would not help, few enough to hold.
/// Chosen, not measured.
const BATCH: usize = 2 << 20;

impl DirtyNodes {
    /// Judges and seals all nodes, writes them in address order, adjacent ones
    /// together, and hands those that do not pass to the cache. Durable after the volume's next flush.
    ///
    /// Returns how many nodes were written. On an error all nodes are still here.
    pub fn write_all(&mut self, store: &NodeStore) -> Result<usize> {
        let nodes: Vec<&Arc<Node>> = self.iter().collect();
        for node in &nodes {
            check::before_write(node, store.geometry())?;
        }
        let mut rest = &nodes[..];
        let mut unwritten = 0;
        while !rest.is_empty() {
            let (batch, others) = rest.split_at(adjacent(&store.volume, rest));
            write_batch(&store.volume, batch)?;
            rest = others;
            unwritten += batch.len() as u64 * u64::from(store.geometry().node_size);
            if unwritten >= btrfs_volume::WRITE_WINDOW {
                unwritten = 0;
                store.volume.start_writing()?;
            }
        }
        let count = nodes.len();
        let (kept, _passing) = self.take_apart();
        kept.into_iter().for_each(|node| store.insert(node));
        Ok(count)
    }
}

/// How many of the first nodes lie one behind the other in one chunk.
fn adjacent(volume: &Volume, nodes: &[&Arc<Node>]) -> usize {
    let first = nodes[0].logical();
    let size = u64::from(volume.geometry().node_size);
    let chunk_end = volume.chunk(first).map_or(0, |chunk| chunk.end());
    let most = BATCH / size as usize;
    (1..nodes.len().min(most))
        .find(|n| {
            let here = first.0 + *n as u64 * size;
            nodes[*n].logical().0 != here || here + size > chunk_end
        })
        .unwrap_or(nodes.len().min(most))
}

/// From where they are: a buffer for all of them would be memory that each thread of a mount has for
/// itself.
fn write_batch(volume: &Volume, nodes: &[&Arc<Node>]) -> Result<()> {
    let sums: Vec<_> = nodes.iter().map(|node| build::checksum(volume.geometry(), node)).collect();
    let mut bufs: Vec<&[u8]> = Vec::with_capacity(2 * nodes.len());
    for (sum, node) in sums.iter().zip(nodes) {
        bufs.extend([sum, build::behind_checksum(node)]);
    }
    volume.write_node_bytes(nodes[0].logical(), &bufs)
}
