//! Items into nodes: leaves filled from the left, interior nodes over them.

use btrfs_disk::build::{self, NodeIdentity};
use btrfs_disk::{ChildPtr, Generation, Geometry, Key, LeafItem, Logical, Node, TreeId};

/// A tree's items in key order.
pub(super) type Items = Vec<(Key, Vec<u8>)>;

/// How many nodes a tree has on each level, leaves first; the last number is 1.
pub(super) type Shape = Vec<usize>;

/// Splits items into leaves.
fn leaves<'a>(geometry: &Geometry, items: &'a Items) -> Vec<&'a [(Key, Vec<u8>)]> {
    let mut out = Vec::new();
    let (mut start, mut used) = (0, 0);
    for (i, (key, data)) in items.iter().enumerate() {
        let cost = LeafItem { key: *key, data }.cost();
        if used + cost > geometry.leaf_space() {
            out.push(&items[start..i]);
            (start, used) = (i, 0);
        }
        used += cost;
    }
    out.push(&items[start..]);
    out
}

pub(super) fn shape(geometry: &Geometry, items: &Items) -> Shape {
    let mut shape = vec![leaves(geometry, items).len()];
    while shape[shape.len() - 1] > 1 {
        shape.push(shape[shape.len() - 1].div_ceil(geometry.max_pointers()));
    }
    shape
}

/// The nodes of a tree; `places` has an address for each, leaves first.
pub(super) fn nodes(
    geometry: &Geometry,
    owner: TreeId,
    generation: Generation,
    items: &Items,
    places: &[u64],
) -> Vec<Node> {
    let mut places = places.iter().map(|at| Logical(*at));
    let mut identity = || {
        let logical = places.next().expect("the shape counted the nodes");
        NodeIdentity { logical, generation, owner }
    };
    let mut out = Vec::new();
    for part in leaves(geometry, items) {
        let items: Vec<LeafItem<'_>> =
            part.iter().map(|(key, data)| LeafItem { key: *key, data }).collect();
        out.push(build::leaf(geometry, &identity(), &items));
    }
    let (mut level, mut below) = (0, 0..out.len());
    while below.len() > 1 {
        level += 1;
        let children: Vec<ChildPtr> = out[below.clone()]
            .iter()
            .map(|node| ChildPtr { key: node.key(0), logical: node.logical(), generation })
            .collect();
        let start = out.len();
        for part in children.chunks(geometry.max_pointers()) {
            out.push(build::interior(geometry, &identity(), level, part));
        }
        below = start..out.len();
    }
    out
}
