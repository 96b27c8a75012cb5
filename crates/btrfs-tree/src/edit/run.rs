//! A run: the entries of neighbouring nodes, merged and not yet cut into nodes.
//!
//! Where to cut decides how full a tree is. A batch that inserts in one place goes on
//! there in the next transaction more often than not (a growing file, a directory
//! being filled), so a cut falls behind the new entries where that leaves neither side
//! nearly empty, and nodes before a growing end are left full. All else is cut evenly.
//!
//! What does not fit its node is first shared with a neighbour below the same parent, if
//! that makes one node less than cutting it by itself. So no edit takes more new nodes than
//! it would without neighbours (a neighbour written anew stands for the new half), and the
//! bounds on what a commit needs know nothing of it. Keys that come at random (hashes of
//! names) fill leaves to 85 % that way, and to 65 % without.

use btrfs_disk::node::{ChildPtr, ITEM_SIZE, KEY_PTR_SIZE};
use btrfs_disk::{Geometry, Key, LeafItem, Logical, Node, NodeIdentity, build};

/// What a node holds many of: items in a leaf, pointers above.
pub(super) trait Entry<'l>: Copy {
    fn key(&self) -> Key;
    /// Bytes of a node that the entry takes.
    fn cost(&self) -> usize;
    /// Bytes of a node for entries.
    fn room(geometry: &Geometry) -> usize;
    /// Bytes of `node` that its entries take.
    fn used(node: &Node) -> usize;
    fn collect(node: &'l Node) -> Vec<Self>;
    fn build(geometry: &Geometry, id: &NodeIdentity, level: u8, entries: &[Self]) -> Node;
}

pub(super) struct Run<E> {
    pub entries: Vec<E>,
    /// Sum of the entries' costs.
    pub cost: usize,
    /// Addresses of dirty nodes whose contents are in here, to be used again.
    pub homes: Vec<Logical>,
    /// Something went, on balance: the run may look for a neighbour to join.
    pub shrunk: bool,
    /// Index behind the new entries, if they are all in one place.
    pub grown_to: Option<usize>,
    /// How many nodes' contents are in here.
    pub nodes: usize,
    /// A neighbour without edits of its own took part of an overflow.
    pub helped: bool,
}

/// Nodes that share their contents at most, where many overflow side by side: looking whether
/// one more helps takes as long as there are entries.
/// Chosen, not measured.
const SHARERS: usize = 8;

impl<'l, E: Entry<'l>> Run<E> {
    pub(super) fn new(entries: Vec<E>, homes: Vec<Logical>) -> Run<E> {
        let cost = entries.iter().map(E::cost).sum();
        Run { entries, cost, homes, shrunk: false, grown_to: None, nodes: 1, helped: false }
    }

    /// Whether a node of this would be wastefully empty.
    pub(super) fn underfull(&self, room: usize) -> bool {
        self.shrunk && self.cost < room / 4
    }

    /// Whether this and `other` bytes make a well-filled node that still takes inserts.
    pub(super) fn fits_with(&self, other: usize, room: usize) -> bool {
        self.cost + other <= room / 8 * 7
    }

    /// Takes over what follows in key order.
    pub(super) fn append(&mut self, mut right: Run<E>) {
        let ours = self.entries.len();
        self.entries.append(&mut right.entries);
        self.homes.append(&mut right.homes);
        self.cost += right.cost;
        self.shrunk |= right.shrunk;
        self.nodes += right.nodes;
        self.helped |= right.helped;
        let grows = right.grown_to == Some(self.entries.len() - ours);
        self.grown_to = grows.then_some(self.entries.len());
    }

    /// Whether this does not fit one node.
    pub(super) fn overflows(&self, room: usize) -> bool {
        self.cost > room
    }

    /// Whether this grows at its end: what is in front is left full, without help.
    pub(super) fn appends(&self) -> bool {
        self.grown_to == Some(self.entries.len())
    }

    /// Whether this and `other` bytes in `nodes` nodes beside it may be one node less together:
    /// by their bytes, see [`Run::saves_with`].
    pub(super) fn may_save(&self, other: usize, nodes: usize, room: usize) -> bool {
        let alone = self.cost.div_ceil(room) + nodes;
        alone <= SHARERS && self.cost + other <= (alone - 1) * room
    }

    /// Whether one node less is made of this with `right` than of each alone.
    pub(super) fn saves_with(&self, right: &Run<E>, room: usize) -> bool {
        let alone = self.cut(room).len() + right.cut(room).len();
        let entries = self.entries.iter().chain(&right.entries).copied().collect();
        Run::new(entries, Vec::new()).cut(room).len() < alone
    }

    /// Where nodes end, as ascending indices; the last is the number of entries.
    pub(super) fn cut(&self, room: usize) -> Vec<usize> {
        let count = self.entries.len();
        if self.cost <= room {
            return if count == 0 { Vec::new() } else { vec![count] };
        }
        match self.grown_to {
            Some(grown_to) if grown_to == count => self.cut_full(room),
            Some(grown_to) if self.parts_well(grown_to, room) => vec![grown_to, count],
            _ => self.cut_evenly(room),
        }
    }

    fn parts_well(&self, grown_to: usize, room: usize) -> bool {
        let left: usize = self.entries[..grown_to].iter().map(E::cost).sum();
        let right = self.cost - left;
        left.max(right) <= room && left.min(right) >= room / 4
    }

    fn cut_full(&self, room: usize) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut used = 0;
        for (at, entry) in self.entries.iter().enumerate() {
            if used + entry.cost() > room {
                ends.push(at);
                used = 0;
            }
            used += entry.cost();
        }
        ends.push(self.entries.len());
        ends
    }

    /// As few nodes as possible (large items may need more), equally full.
    fn cut_evenly(&self, room: usize) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut rest = self.cost;
        let (mut used, mut target) = (0, rest.div_ceil(rest.div_ceil(room)));
        for (at, entry) in self.entries.iter().enumerate() {
            let cost = entry.cost();
            if used > 0 && (used + cost > room || used + cost / 2 > target) {
                ends.push(at);
                rest -= used;
                (used, target) = (0, rest.div_ceil(rest.div_ceil(room)));
            }
            used += cost;
        }
        ends.push(self.entries.len());
        ends
    }
}

impl<'l> Entry<'l> for LeafItem<'l> {
    fn key(&self) -> Key {
        self.key
    }

    fn cost(&self) -> usize {
        LeafItem::cost(self)
    }

    fn room(geometry: &Geometry) -> usize {
        geometry.leaf_space()
    }

    fn used(node: &Node) -> usize {
        // Data is packed from the node's end down to the last item's.
        match node.len() {
            0 => 0,
            len => len * ITEM_SIZE + node.bytes().len() - node.data_range(len - 1).start,
        }
    }

    fn collect(node: &'l Node) -> Vec<Self> {
        node.items().map(|(key, data)| LeafItem { key, data }).collect()
    }

    fn build(geometry: &Geometry, id: &NodeIdentity, _: u8, entries: &[Self]) -> Node {
        build::leaf(geometry, id, entries)
    }
}

impl<'l> Entry<'l> for ChildPtr {
    fn key(&self) -> Key {
        self.key
    }

    fn cost(&self) -> usize {
        KEY_PTR_SIZE
    }

    fn room(geometry: &Geometry) -> usize {
        geometry.max_pointers() * KEY_PTR_SIZE
    }

    fn used(node: &Node) -> usize {
        node.len() * KEY_PTR_SIZE
    }

    fn collect(node: &'l Node) -> Vec<Self> {
        node.children().collect()
    }

    fn build(geometry: &Geometry, id: &NodeIdentity, level: u8, entries: &[Self]) -> Node {
        build::interior(geometry, id, level, entries)
    }
}
