//! Reading the log that a crash left: the tree of log roots, and the log tree of each
//! subvolume behind it.
//!
//! Invariants of a `Forest`: all of its nodes were read and passed the gate, they do not
//! overlap, and what needs two leaves to judge (file extents that follow one another,
//! checksums, ranges of directories) has been judged. So who reads it later meets I/O
//! errors, and items that contradict the subvolume, but no malformed log. Reading ends at
//! the first node that is met twice: it takes no longer than the log is large.
//!
//! It does not know what the items mean for the subvolume; that is `replay`.

use btrfs_disk::items::{FileExtent, InodeItem, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::{
    Corrupt, Error, FixedSize, Generation, Key, Logical, Node, Result, Superblock, TreeId,
};
use btrfs_tree::{NodePosition, NodeReader, NodeStore, Step, TreeRoot, Visitor, walk};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The log of one subvolume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTree {
    pub subvol: TreeId,
    pub root: TreeRoot,
}

/// All that a superblock's `log_root` leads to.
#[derive(Debug)]
pub(crate) struct Forest {
    /// By subvolume.
    pub trees: Vec<LogTree>,
    /// Every node, ascending.
    pub nodes: Vec<Logical>,
    pub node_size: u64,
}

impl Forest {
    /// Reads and judges the whole log; `None` if there is none.
    pub(crate) fn load(store: &NodeStore, sb: &Superblock) -> Result<Option<Forest>> {
        let fields = &sb.fields;
        if fields.log_root.0 == 0 {
            return Ok(None);
        }
        let generation = Generation(fields.generation.0 + 1);
        let top = TreeRoot {
            id: TreeId::LOG,
            logical: fields.log_root,
            generation,
            level: fields.log_root_level,
        };
        let mut nodes = Apart::new(store);
        let mut roots = Roots { generation, trees: Vec::new() };
        visit(store, &top, &mut nodes, &mut |node| roots.leaf(node))?;
        for tree in &roots.trees {
            let mut judge = Judge::new(store, generation);
            visit(store, &tree.root, &mut nodes, &mut |node| judge.leaf(node))?;
        }
        let Apart { nodes, node_size } = nodes;
        Ok(Some(Forest { trees: roots.trees, nodes: nodes.into_iter().collect(), node_size }))
    }
}

/// Nodes of all trees, of which none stands in two places. In one tree no walk meets a node
/// twice; but the tree of log roots may name a tree as many times as it holds items.
struct Apart {
    nodes: BTreeSet<Logical>,
    node_size: u64,
}

impl Apart {
    fn new(store: &NodeStore) -> Apart {
        Apart { nodes: BTreeSet::new(), node_size: u64::from(store.geometry().node_size) }
    }

    fn meet(&mut self, node: Logical) -> Result<(), Corrupt> {
        let reach = self.node_size - 1;
        let near = Logical(node.0.saturating_sub(reach))..=Logical(node.0.saturating_add(reach));
        if self.nodes.range(near).next().is_some() {
            return Err(Corrupt::new("two nodes of the log overlap"));
        }
        self.nodes.insert(node);
        Ok(())
    }
}

type OnLeaf<'a> = dyn FnMut(&Node) -> Result<(), Corrupt> + 'a;

struct Nodes<'a, 'b> {
    found: &'a mut Apart,
    leaf: &'a mut OnLeaf<'b>,
    error: Option<Error>,
}

impl Nodes<'_, '_> {
    fn judge(&mut self, place: &NodePosition<'_>, node: &Node) -> Result<(), Corrupt> {
        self.found.meet(node.logical())?;
        if node.generation() != place.root.generation {
            return Err(Corrupt::new("node of the log from another transaction"));
        }
        match node.is_leaf() {
            true => (self.leaf)(node),
            false => Ok(()),
        }
    }
}

impl Visitor for Nodes<'_, '_> {
    fn node(&mut self, place: &NodePosition<'_>, node: &Arc<Node>) -> Step {
        match self.judge(place, node) {
            Ok(()) => Step::Into,
            Err(corrupt) => self.broken(place, corrupt.at(node.logical()).into()),
        }
    }

    fn broken(&mut self, _: &NodePosition<'_>, error: Error) -> Step {
        self.error = Some(error);
        Step::Stop
    }
}

fn visit(
    store: &NodeStore,
    root: &TreeRoot,
    found: &mut Apart,
    leaf: &mut OnLeaf<'_>,
) -> Result<()> {
    let mut nodes = Nodes { found, leaf, error: None };
    walk(store, root, &mut nodes);
    nodes.error.map_or(Ok(()), Err)
}

/// The leaves of the tree of log roots.
struct Roots {
    generation: Generation,
    trees: Vec<LogTree>,
}

impl Roots {
    fn leaf(&mut self, node: &Node) -> Result<(), Corrupt> {
        for (key, data) in node.items() {
            self.item(&key, data).map_err(|c| c.key(key))?;
        }
        Ok(())
    }

    fn item(&mut self, key: &Key, data: &[u8]) -> Result<(), Corrupt> {
        let subvol = TreeId(key.offset);
        if key.objectid != TreeId::LOG.0 || key.kind != kind::ROOT_ITEM || !subvol.is_subvolume() {
            return Err(Corrupt::new("the tree of log roots has a strange item"));
        }
        let item = RootItem::parse(data)?;
        if item.generation != self.generation {
            return Err(Corrupt::new(format!("log tree of generation {}", item.generation)));
        }
        let (logical, generation, level) = (item.bytenr, item.generation, item.level);
        let root = TreeRoot { id: TreeId::LOG, logical, generation, level };
        self.trees.push(LogTree { subvol, root });
        Ok(())
    }
}

/// The leaves of one log tree, in order.
struct Judge {
    /// Of the commit that a replay makes.
    generation: Generation,
    sector: u64,
    sum_size: usize,
    /// Inode and end of the last file extent.
    extent: Option<(u64, u64)>,
    sums_end: u64,
}

impl Judge {
    fn new(store: &NodeStore, generation: Generation) -> Judge {
        let geometry = store.geometry();
        let (sector, sum_size) = (u64::from(geometry.sector_size), geometry.csum.size());
        Judge { generation, sector, sum_size, extent: None, sums_end: 0 }
    }

    fn leaf(&mut self, node: &Node) -> Result<(), Corrupt> {
        for (key, data) in node.items() {
            match key.kind {
                kind::INODE_ITEM => self.inode(data),
                kind::EXTENT_DATA => self.extent(&key, data),
                kind::EXTENT_CSUM => self.sums(&key, data),
                kind::DIR_LOG_INDEX => range(&key, data).map(drop),
                _ => Ok(()),
            }
            .map_err(|c| c.key(key))?;
        }
        Ok(())
    }

    /// What comes into the trees by a replay is of its commit at most: anything later `btrfs check` and the kernel refuse.
    fn inode(&self, data: &[u8]) -> Result<(), Corrupt> {
        let inode = InodeItem::read(data)?;
        let newest = inode.generation.max(inode.transid);
        if newest > self.generation.0 {
            let of = self.generation;
            return Err(Corrupt::new(format!("inode of generation {newest} in a log of {of}")));
        }
        Ok(())
    }

    fn extent(&mut self, key: &Key, data: &[u8]) -> Result<(), Corrupt> {
        // What a log has inline takes the first sector's place, be it empty.
        let len = FileExtent::parse(data)?.file_len(self.sector).max(self.sector);
        if self.extent.is_some_and(|(inode, end)| inode == key.objectid && end > key.offset) {
            return Err(Corrupt::new("file extent overlaps the one in front"));
        }
        self.extent = Some((key.objectid, key.offset.saturating_add(len)));
        Ok(())
    }

    fn sums(&mut self, key: &Key, data: &[u8]) -> Result<(), Corrupt> {
        if key.offset < self.sums_end {
            return Err(Corrupt::new("checksums overlap those in front"));
        }
        let sectors = (data.len() / self.sum_size) as u64;
        self.sums_end = key.offset.saturating_add(sectors.saturating_mul(self.sector));
        Ok(())
    }
}

/// First and last index of a DIR_LOG_INDEX item: a range of a directory's indexes that the
/// log knows wholly.
pub(crate) fn range(key: &Key, data: &[u8]) -> Result<(u64, u64), Corrupt> {
    let Some(end) = data.get(..8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes")))
    else {
        return Err(Corrupt::new("range of a directory is cut short").key(*key));
    };
    match end >= key.offset {
        true => Ok((key.offset, end)),
        false => Err(Corrupt::new("range of a directory ends before it begins").key(*key)),
    }
}
