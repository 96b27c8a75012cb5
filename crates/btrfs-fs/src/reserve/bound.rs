//! How many nodes a commit can need: an upper bound from a handful of counters.
//!
//! A commit rewrites each touched node once. The touched leaves of file trees are at most
//! the places that changed; each may be split, or merged with a neighbour. Beside them come
//! the nodes that new bytes fill. Each data extent and each node that comes or goes changes
//! the trees that keep account of space in a few places, whose nodes come and go in turn;
//! no more of them can be touched than there are.
//!
//! It knows numbers alone: neither what is free nor who asks.

/// Places in the extent, free-space and checksum trees that a data extent changes.
const PER_EXTENT: u64 = 3;
/// The same for a node that is written anew; its successors lie together.
const PER_NODE: u64 = 2;
/// The same where snapshots share nodes: children of a copied node change owners. They
/// may be more; but then they lie together more often than not.
const PER_SHARED_NODE: u64 = 64;
/// Leaves that nearly every operation changes: where new items go, and the directory's.
const ENDS: u64 = 8;
/// Bytes of an interior node for each child that it has at least, all in all: nodes are
/// merged when they are less than a quarter full.
const PER_CHILD: u64 = 4 * 33;
/// What the trees hold of a node that is new.
const NODE_RECORD: u64 = 64;

/// What the trees have now.
#[derive(Clone, Copy, Debug)]
pub struct Trees {
    pub node_size: u64,
    /// Nodes of all trees.
    pub all: u64,
    /// Nodes of the trees that keep account of space.
    pub accounts: u64,
    /// Nodes on the paths to what every commit changes.
    pub paths: u64,
    /// Snapshots share nodes.
    pub shared: bool,
}

/// What changes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Load {
    /// In file trees.
    pub places: u64,
    /// Bytes that items take anew, in all trees.
    pub bytes: u64,
    /// Data extents that come or go.
    pub extents: u64,
}

/// Bytes of new nodes that the commit of `load` needs at most.
pub fn bound(trees: &Trees, load: &Load) -> u64 {
    let leaves = 2 * load.places + ENDS;
    let inner = leaves.min(trees.all * PER_CHILD / trees.node_size + 1);
    let grown = 2 * load.bytes / trees.node_size;
    let nodes = (leaves + inner).min(2 * trees.all) + grown;
    let per_node = if trees.shared { PER_SHARED_NODE } else { PER_NODE };
    let places = load.extents * PER_EXTENT + nodes * per_node + ENDS;
    let accounts = reach(places, trees.accounts) + (load.extents * PER_EXTENT).min(trees.accounts);
    let records = 2 * nodes * NODE_RECORD / trees.node_size;
    (nodes + accounts + records + trees.paths) * trees.node_size
}

/// How many of `nodes` account nodes change in the end if `places` change at first. Each
/// that is rewritten gives up its old address, whose record lies in any of the others:
/// so it goes on until the paths from all places have run into each other. (As many as
/// `places` walks on a random mapping see; twice that is as good as never passed.)
fn reach(places: u64, nodes: u64) -> u64 {
    let walks = (2.0 * places as f64 * nodes as f64).sqrt() as u64;
    (places + 2 * walks).min(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREES: Trees =
        Trees { node_size: 4096, all: 1000, accounts: 100, paths: 16, shared: false };

    #[test]
    fn a_small_step_needs_little_of_what_a_large_volume_has() {
        let large = Trees { all: 1 << 20, accounts: 1 << 16, ..TREES };
        let step = Load { places: 16, ..Load::default() };
        assert!(bound(&large, &step) <= large.accounts / 4 * 4096);
        assert!(bound(&TREES, &step) <= 300 * 4096);
    }

    #[test]
    fn many_places_need_no_more_than_the_trees_have_twice() {
        let load = Load { places: 1 << 30, ..Load::default() };
        assert!(bound(&TREES, &load) <= (2 * 1000 + 100 + 100) * 4096);
        let shared = Trees { shared: true, ..TREES };
        assert_eq!(bound(&shared, &load), bound(&TREES, &load), "all is touched already");
    }

    #[test]
    fn more_of_anything_never_needs_less() {
        let base = Load { places: 5, bytes: 9000, extents: 3 };
        for more in [
            Load { places: 6, ..base },
            Load { bytes: 20_000, ..base },
            Load { extents: 20, ..base },
        ] {
            assert!(bound(&TREES, &more) > bound(&TREES, &base), "{more:?}");
        }
    }
}
