//! Which nodes of a system chunk an older chunk tree may begin at, and in what order they are tried.

use crate::common;
use btrfs_disk::build::{self, NodeIdentity};
use btrfs_disk::ids::DEV_ITEMS_OBJECTID;
use btrfs_disk::{ChildPtr, Expect, Generation, LeafItem, Logical, Node, TreeId};
use btrfs_volume::{Volume, chunk_trees};
use common::*;
use std::path::Path;

const NODE: u64 = 16384;

struct World {
    path: std::path::PathBuf,
    volume: Volume,
    root: Node,
    _scratch: Scratch,
}

impl World {
    /// Made by mkfs.btrfs; nodes are written by hand.
    fn new() -> World {
        let scratch = Scratch::new();
        let path = scratch.mkfs("image", 256 * MIB, &["-m", "single"]);
        let volume = open_read_only(&path).expect("opens");
        let sb = volume.superblock();
        let root = Expect {
            logical: sb.fields.chunk_root,
            level: sb.fields.chunk_root_level,
            generation: None,
            owner: Some(TreeId::CHUNK),
            first_key: None,
        };
        let root = volume.read_node(&root).expect("the chunk tree");
        World { path, volume, root, _scratch: scratch }
    }

    /// The place of a node behind all that mkfs.btrfs has written.
    fn at(&self, number: u64) -> Logical {
        let chunk = self.volume.chunk(self.root.logical()).expect("it is in one");
        chunk.logical.offset(chunk.len - number * NODE)
    }

    fn identity(&self, number: u64, generation: u64) -> NodeIdentity {
        let generation = Generation(generation);
        NodeIdentity { logical: self.at(number), generation, owner: TreeId::CHUNK }
    }

    fn put(&self, node: &Node) {
        let chunk = self.volume.chunk(node.logical()).expect("it is in one");
        let at = chunk.stripes[0].1.0 + node.logical().0 - chunk.logical.0;
        write_bytes(&self.path, at, &build::seal(self.volume.geometry(), node));
    }

    fn leaf(&self, number: u64, generation: u64, with_device: bool) {
        let has = |item: &LeafItem<'_>| with_device || item.key.objectid != DEV_ITEMS_OBJECTID;
        let items = self.root.items().map(|(key, data)| LeafItem { key, data }).filter(has);
        let items: Vec<_> = items.collect();
        let id = self.identity(number, generation);
        self.put(&build::leaf(self.volume.geometry(), &id, &items));
    }

    /// One that leads to a leaf.
    fn interior(&self, number: u64, generation: u64, leaf: u64) {
        let (key, logical) = (self.root.key(0), self.at(leaf));
        let child = ChildPtr { key, logical, generation: Generation(generation) };
        let id = self.identity(number, generation);
        self.put(&build::interior(self.volume.geometry(), &id, 1, &[child]));
    }
}

fn tried(path: &Path) -> Vec<Logical> {
    chunk_trees(&*device(path)).expect("the superblock is there")
}

/// They were tried by their levels, so that one of long ago that was larger went before the last one.
#[test]
fn the_newest_is_tried_first() {
    if !have_mkfs() {
        return;
    }
    let world = World::new();
    let last = world.volume.superblock().generation().0;
    assert!(last > 4, "commits of mkfs.btrfs: {last}");
    world.leaf(1, 1, true);
    world.interior(2, 1, 1);
    world.leaf(3, 2, true);
    world.leaf(4, 3, false);
    world.leaf(5, last + 1, true);
    let own: Vec<_> = (1..=5).map(|number| world.at(number)).collect();
    let tried: Vec<_> = tried(&world.path).into_iter().filter(|at| own.contains(at)).collect();
    assert_eq!(
        tried,
        [world.at(3), world.at(2), world.at(1)],
        "a second part is no tree, nor is what no commit has"
    );
}
