//! Damage with valid checksums: a leaf is decoded, changed, built anew and written to
//! every copy; so that only a check that understands the content can notice.

use blockdev::BlockDevice;
use blockdev::FileDevice;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::{KEY_SIZE, kind};
use btrfs_disk::node::{HEADER_SIZE, KEY_PTR_SIZE};
use btrfs_disk::{
    Expect, FixedSize, Key, LeafItem, Logical, Node, NodeIdentity, Superblock, TreeId, build,
};
use btrfs_volume::{OpenOptions, Volume, super_copies};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub struct Patch {
    path: PathBuf,
    volume: Arc<Volume>,
}

fn open(image: &Path) -> Arc<Volume> {
    let device = FileDevice::open(image, true, true).expect("image opens");
    let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    Arc::new(Volume::open(Arc::new(device), options).expect("volume opens"))
}

pub type Items = Vec<(Key, Vec<u8>)>;

impl Patch {
    pub fn new(image: &Path) -> Patch {
        Patch { path: image.to_owned(), volume: open(image) }
    }

    fn expect(logical: Logical, level: u8) -> Expect {
        Expect { logical, level, generation: None, owner: None, first_key: None }
    }

    fn root(&self, tree: TreeId) -> Node {
        let sb = self.volume.superblock().fields;
        let (logical, level) = match tree {
            TreeId::ROOT => (sb.root, sb.root_level),
            TreeId::CHUNK => (sb.chunk_root, sb.chunk_root_level),
            _ => {
                let from = Key::new(tree.0, kind::ROOT_ITEM, 0);
                let (key, data) = self.find(TreeId::ROOT, from).expect("root item");
                assert_eq!((key.objectid, key.kind), (tree.0, kind::ROOT_ITEM));
                let root = RootItem::parse(&data).expect("root item");
                (root.bytenr, root.level)
            }
        };
        self.node(logical, level)
    }

    fn node(&self, logical: Logical, level: u8) -> Node {
        self.volume.read_node(&Self::expect(logical, level)).expect("node")
    }

    /// The leaf where `key` is or would be.
    pub fn leaf(&self, tree: TreeId, key: Key) -> Node {
        let mut node = self.root(tree);
        while !node.is_leaf() {
            let child = node.child(node.child_slot(&key));
            node = self.node(child.logical, node.level() - 1);
        }
        node
    }

    /// All leaves of a tree.
    pub fn leaves(&self, tree: TreeId) -> Vec<Node> {
        let mut leaves = Vec::new();
        let mut queue = vec![self.root(tree)];
        while let Some(node) = queue.pop() {
            if node.is_leaf() {
                leaves.push(node);
                continue;
            }
            for child in node.children() {
                queue.push(self.node(child.logical, node.level() - 1));
            }
        }
        leaves.sort_by_key(|leaf| if leaf.is_empty() { Key::MIN } else { leaf.key(0) });
        leaves
    }

    pub fn items(&self, tree: TreeId) -> Items {
        let leaves = self.leaves(tree);
        leaves.iter().flat_map(|l| l.items().map(|(k, d)| (k, d.to_vec()))).collect()
    }

    /// The items of all trees of the log.
    pub fn log_items(&self) -> Items {
        let sb = self.volume.superblock().fields;
        let mut out = Items::new();
        for (_, data) in self.node(sb.log_root, sb.log_root_level).items() {
            let root = RootItem::parse(data).expect("root item");
            let leaf = self.node(root.bytenr, root.level);
            assert!(leaf.is_leaf(), "a small log");
            out.extend(leaf.items().map(|(key, data)| (key, data.to_vec())));
        }
        out
    }

    /// The first item at or behind `key`.
    pub fn find(&self, tree: TreeId, key: Key) -> Option<(Key, Vec<u8>)> {
        let leaf = self.leaf(tree, key);
        if let Some(found) = leaf.items().find(|(k, _)| *k >= key) {
            return Some((found.0, found.1.to_vec()));
        }
        self.items(tree).into_iter().find(|(k, _)| *k >= key)
    }

    /// Some item that fits, never the first of its leaf (whose key the parent knows).
    pub fn some(&self, tree: TreeId, fits: impl Fn(Key, &[u8]) -> bool) -> (Key, Vec<u8>) {
        for leaf in self.leaves(tree) {
            for (key, data) in leaf.items().skip(1) {
                if fits(key, data) {
                    return (key, data.to_vec());
                }
            }
        }
        panic!("no item of tree {tree} fits")
    }

    fn identity(node: &Node) -> NodeIdentity {
        NodeIdentity { logical: node.logical(), generation: node.generation(), owner: node.owner() }
    }

    /// Changes the items of the leaf where `key` is.
    pub fn edit_leaf(&self, tree: TreeId, key: Key, edit: impl FnOnce(&mut Items)) {
        let leaf = self.leaf(tree, key);
        let mut items: Items = leaf.items().map(|(k, d)| (k, d.to_vec())).collect();
        edit(&mut items);
        let items: Vec<_> = items.iter().map(|(key, data)| LeafItem { key: *key, data }).collect();
        let geometry = self.volume.geometry();
        let mut node = build::leaf(geometry, &Self::identity(&leaf), &items).bytes().to_vec();
        node[56..64].copy_from_slice(&leaf.bytes()[56..64]); // flags
        self.write_node(leaf.logical(), node);
    }

    /// The nodes above `leaf` know the key that it begins with.
    fn tell_parents(&self, tree: TreeId, leaf: &Node, first: Key) {
        let mut node = self.root(tree);
        while !node.is_leaf() {
            let slot = node.child_slot(&leaf.key(0));
            if node.key(slot) == leaf.key(0) {
                let (mut bytes, at) = (node.bytes().to_vec(), HEADER_SIZE + slot * KEY_PTR_SIZE);
                bytes[at..at + KEY_SIZE].copy_from_slice(&first.to_bytes());
                self.write_node(node.logical(), bytes);
            }
            node = self.node(node.child(slot).logical, node.level() - 1);
        }
    }

    /// Writes all copies of a node, with its checksum.
    fn write_node(&self, logical: Logical, mut bytes: Vec<u8>) {
        self.volume.geometry().csum.seal(&mut bytes);
        self.write(logical, &bytes, None);
    }

    /// Changes the bytes of a tree's root node.
    pub fn edit_root(&self, tree: TreeId, edit: impl FnOnce(&mut [u8])) {
        let root = self.root(tree);
        let mut bytes = root.bytes().to_vec();
        edit(&mut bytes);
        self.write_node(root.logical(), bytes);
    }

    /// A tree's root node.
    pub fn root_bytes(&self, tree: TreeId) -> Vec<u8> {
        self.root(tree).bytes().to_vec()
    }

    /// Changes the data of one item.
    pub fn edit(&self, tree: TreeId, key: Key, edit: impl FnOnce(&mut Vec<u8>)) {
        self.edit_leaf(tree, key, |items| {
            let item = items.iter_mut().find(|(k, _)| *k == key).expect("the item is there");
            edit(&mut item.1);
        });
    }

    /// Changes one item as a struct.
    pub fn edit_as<T: FixedSize>(&self, tree: TreeId, key: Key, edit: impl FnOnce(&mut T)) {
        self.edit(tree, key, |data| {
            let mut value = T::read(data).expect("the item parses");
            edit(&mut value);
            value.write(data);
        });
    }

    /// Takes an item out; if its leaf began with it, with another from now on.
    pub fn remove(&self, tree: TreeId, key: Key) {
        let leaf = self.leaf(tree, key);
        self.edit_leaf(tree, key, |items| {
            let at = items.iter().position(|(k, _)| *k == key).expect("the item is there");
            items.remove(at);
        });
        if leaf.key(0) == key && leaf.len() > 1 {
            self.tell_parents(tree, &leaf, leaf.key(1));
        }
    }

    pub fn insert(&self, tree: TreeId, key: Key, data: &[u8]) {
        self.edit_leaf(tree, key, |items| {
            let at = items.partition_point(|(k, _)| *k < key);
            items.insert(at, (key, data.to_vec()));
        });
    }

    /// Overwrites bytes on one copy (from 0) or all.
    pub fn write(&self, logical: Logical, bytes: &[u8], copy: Option<usize>) {
        let chunk = self.volume.chunk(logical).expect("mapped");
        let device = FileDevice::open(&self.path, false, true).expect("image opens");
        for (index, (_, start)) in chunk.stripes.iter().enumerate() {
            if copy.is_none_or(|copy| copy == index) {
                let at = start.0 + (logical.0 - chunk.logical.0);
                device.write_at(at, bytes).expect("image is written");
            }
        }
    }

    pub fn edit_super(&self, edit: impl FnOnce(&mut Superblock)) {
        let mut sb = (*self.volume.superblock()).clone();
        let total = sb.fields.total_bytes;
        edit(&mut sb);
        let device = FileDevice::open(&self.path, false, true).expect("image opens");
        for at in super_copies(total) {
            device.write_at(at, &sb.to_bytes(at).expect("superblock")).expect("image is written");
        }
    }

    /// Overwrites bytes of the device itself.
    pub fn write_raw(&self, at: u64, bytes: &[u8]) {
        let device = FileDevice::open(&self.path, false, true).expect("image opens");
        device.write_at(at, bytes).expect("image is written");
    }

    /// The inode that a path names, in a subvolume.
    pub fn ino(&self, tree: TreeId, path: &str) -> u64 {
        let mut ino = 256;
        for name in path.split('/') {
            let key =
                Key::new(ino, kind::DIR_ITEM, btrfs_disk::checksum::name_hash(name.as_bytes()));
            let (found, data) = self.find(tree, key).expect("directory entry");
            assert_eq!(found, key, "{path}: no {name}");
            let entry = btrfs_disk::items::DirItem::iter(&data)
                .flatten()
                .find(|entry| entry.name == name.as_bytes())
                .expect("directory entry");
            ino = entry.location.objectid;
        }
        ino
    }
}
