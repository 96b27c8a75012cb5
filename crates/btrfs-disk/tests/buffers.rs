//! In a program of its own: what is said of buffers holds for all of it.

use btrfs_disk::{
    ChecksumType, Generation, Geometry, Logical, Node, NodeIdentity, TreeId, buffers, build,
};

const NODE: usize = 16384;
const GEOMETRY: Geometry = Geometry {
    sector_size: 4096,
    node_size: NODE as u32,
    csum: ChecksumType::Crc32c,
    metadata_uuid: [0; 16],
    chunk_tree_uuid: [0; 16],
};

fn at(number: u64) -> NodeIdentity {
    let (generation, owner) = (Generation(1), TreeId::FS);
    NodeIdentity { logical: Logical(number << 14), generation, owner }
}

fn leaf(number: u64) -> Node {
    build::leaf(&GEOMETRY, &at(number), &[])
}

#[test]
fn a_nodes_memory_is_the_next_ones_or_goes_back() {
    buffers::keep(|bytes| {
        bytes.fill(0);
        true
    });
    let nodes: Vec<_> = (1..=1000).map(leaf).collect();
    let first = nodes[0].bytes().as_ptr();
    drop(nodes);
    assert_eq!(buffers::waiting(), 1000 * NODE as u64);
    buffers::give_back();
    assert!(buffers::waiting() <= 4 << 20, "{}", buffers::waiting());
    // All of them are to be had still, and are nobody's twice.
    let again: Vec<_> = (1..=1000).map(leaf).collect();
    assert_eq!(buffers::waiting(), 0);
    assert_eq!(again.iter().filter(|node| node.bytes().as_ptr() == first).count(), 1);
    let moved = build::moved(&again[0], &at(2000), 0, None);
    drop(again);
    assert_eq!(moved.logical(), at(2000).logical);
    assert_eq!(buffers::waiting(), 1000 * NODE as u64, "a copy of one has its own");
}
