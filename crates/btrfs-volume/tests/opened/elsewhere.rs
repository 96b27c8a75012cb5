//! A volume that is looked at by a root node whose first copy says nothing, or something else.

use crate::common;
use blocksim::Hooked;
use btrfs_disk::build::{self, NodeIdentity};
use btrfs_disk::{Expect, Generation, LeafItem, Node, TreeId};
use btrfs_volume::{Start, Volume};
use common::*;
use std::path::PathBuf;
use std::sync::Arc;

struct World {
    path: PathBuf,
    root: Node,
    generation: Generation,
    /// Where its copies lie.
    copies: Vec<u64>,
    volume: Volume,
    _scratch: Scratch,
}

impl World {
    /// Looked at by the root of one of the two trees that the superblock names.
    fn new(tree: TreeId) -> World {
        let scratch = Scratch::new();
        let path = scratch.mkfs("image", 256 * MIB, &["-m", "dup"]);
        let volume = open_read_only(&path).expect("opens");
        let sb = volume.superblock();
        let (logical, level) = match tree {
            TreeId::CHUNK => (sb.fields.chunk_root, sb.fields.chunk_root_level),
            _ => (sb.fields.root, sb.fields.root_level),
        };
        let expect =
            Expect { logical, level, generation: None, owner: Some(tree), first_key: None };
        let root = volume.read_node(&expect).expect("a root");
        let generation = root.header().generation;
        let chunk = volume.chunk(logical).expect("it is in one");
        let place = |(_, start): &(_, btrfs_disk::Physical)| start.0 + logical.0 - chunk.logical.0;
        let copies = chunk.stripes.iter().map(place).collect();
        World { path, root, generation, copies, volume, _scratch: scratch }
    }

    fn start(&self, known: bool) -> Start {
        let at = Some(self.root.logical());
        match self.root.header().owner {
            TreeId::CHUNK => Start { chunk_root: at, ..Start::default() },
            _ => {
                let root_generation = known.then_some(self.generation);
                Start { root: at, root_generation, ..Start::default() }
            }
        }
    }

    /// Of what generation the root is that can be read there.
    fn look(&self, refused: std::ops::Range<u64>, known: bool) -> btrfs_disk::Result<Generation> {
        let device = Arc::new(Hooked { below: device(&self.path), hook: Faulty(refused) });
        let volume = Volume::look(device, &self.start(known))?;
        let sb = volume.superblock();
        if self.root.header().owner == TreeId::CHUNK {
            return Ok(sb.fields.chunk_root_generation);
        }
        let (logical, level) = (sb.fields.root, sb.fields.root_level);
        let generation = Some(volume.root_generation());
        let expect =
            Expect { logical, level, generation, owner: Some(TreeId::ROOT), first_key: None };
        volume.read_node(&expect).map(|root| root.header().generation)
    }
}

#[test]
fn where_one_copy_of_a_root_cannot_be_read_the_other_one_is() {
    if !have_mkfs() {
        return;
    }
    for tree in [TreeId::ROOT, TreeId::CHUNK] {
        let world = World::new(tree);
        let (generation, end) = (world.generation, |at: u64| at + 16384);
        for copy in world.copies.iter().copied() {
            assert_eq!(world.look(copy..end(copy), true).expect("the other one"), generation);
        }
        let (first, last) = (world.copies[0], world.copies[1]);
        assert!(first < last);
        world.look(first..end(last), true).expect_err("nothing can be read");
    }
}

/// A write that was lost left an older node of the same address, or a bit has flipped.
#[test]
fn a_copy_that_is_of_another_commit_is_not_the_root_that_is_meant() {
    if !have_mkfs() {
        return;
    }
    let world = World::new(TreeId::ROOT);
    let earlier = Generation(world.generation.0 - 1);
    let first = world.copies[0];
    let bytes = read_bytes(&world.path, first, 16384);
    // The first byte of the header's generation, its level, and an item's key.
    for bit in [80, 100, 101] {
        write_bytes(&world.path, first + bit, &[bytes[bit as usize] ^ 1]);
        for known in [true, false] {
            let found = world.look(0..0, known).expect("opens");
            assert_eq!(found, world.generation, "a flipped bit of byte {bit}");
        }
        write_bytes(&world.path, first, &bytes);
    }
    let items: Vec<_> = world.root.items().map(|(key, data)| LeafItem { key, data }).collect();
    let logical = world.root.logical();
    let id = NodeIdentity { logical, generation: earlier, owner: TreeId::ROOT };
    let geometry = world.volume.geometry();
    let node = build::leaf(geometry, &id, &items);
    write_bytes(&world.path, first, &build::seal(geometry, &node));
    assert_eq!(world.look(0..0, true).expect("opens"), world.generation);
    assert_eq!(world.look(0..0, false).expect("opens"), earlier, "nothing tells which is meant");
}
