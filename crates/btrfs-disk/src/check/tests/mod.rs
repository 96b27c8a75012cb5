//! One defect a line, and what the gate says of it.

mod files;
mod nodes;
mod space;

use super::*;
use crate::build::{self, LeafItem, NodeIdentity};
use crate::checksum::{ChecksumType, name_hash};
use crate::items::*;
use crate::key::kind;

pub const GEOMETRY: Geometry = Geometry {
    sector_size: 4096,
    node_size: 16384,
    csum: ChecksumType::Crc32c,
    metadata_uuid: [7; 16],
    chunk_tree_uuid: [8; 16],
};
pub const AT: Logical = Logical(1 << 20);
pub const NOW: Generation = Generation(100);
pub const SUBVOL: TreeId = TreeId(257);

pub type Owned = (Key, Vec<u8>);

pub fn identity(owner: TreeId) -> NodeIdentity {
    NodeIdentity { logical: AT, generation: NOW, owner }
}

pub fn expect(owner: TreeId, level: u8) -> Expect {
    Expect { logical: AT, level, generation: Some(NOW), owner: Some(owner), first_key: None }
}

pub fn leaf(owner: TreeId, items: &[Owned]) -> Node {
    let items: Vec<_> = items.iter().map(|(key, data)| LeafItem { key: *key, data }).collect();
    build::leaf(&GEOMETRY, &identity(owner), &items)
}

pub fn limits() -> Limits {
    Limits { max_generation: Some(NOW), read_only: false }
}

/// What the gate says of a node, with the volume's generation known. Without, both ways through it say the same.
pub fn verdict(node: &Node) -> Result<(), Corrupt> {
    let bytes = build::seal(&GEOMETRY, node).into_boxed_slice();
    let expect = expect(node.owner(), node.level());
    let read = super::node(bytes.clone(), &GEOMETRY, &expect);
    let write = before_write(node, &GEOMETRY);
    assert_eq!(read.err(), write.err(), "read and write agree");
    node_within(bytes, &GEOMETRY, &expect, &limits()).map(drop)
}

/// Items without a defect pass.
pub fn passes(owner: TreeId, items: &[Owned]) {
    if let Err(corrupt) = verdict(&leaf(owner, items)) {
        panic!("a false alarm: {corrupt}");
    }
}

/// Each row: an owner, the items of a leaf, and a part of what the gate says of it.
pub fn refused(rows: Vec<(TreeId, Vec<Owned>, &str)>) {
    for (line, (owner, items, reason)) in rows.into_iter().enumerate() {
        let last = items.last().map(|(key, _)| *key);
        let Err(corrupt) = verdict(&leaf(owner, &items)) else {
            panic!("row {line} passed instead of: {reason}");
        };
        assert!(corrupt.to_string().contains(reason), "row {line}: {corrupt} is not: {reason}");
        assert_eq!((corrupt.logical, corrupt.key), (Some(AT), last), "row {line} says where");
    }
}

pub fn key(objectid: u64, kind: u8, offset: u64) -> Key {
    Key::new(objectid, kind, offset)
}

/// A struct's bytes after a change.
pub fn with<T: FixedSize>(mut value: T, change: impl FnOnce(&mut T)) -> Vec<u8> {
    change(&mut value);
    value.to_vec()
}

pub fn inode() -> InodeItem {
    InodeItem {
        generation: 90,
        transid: 100,
        size: 5,
        nlink: 1,
        mode: 0o100_644,
        ..InodeItem::default()
    }
}

pub fn inode_row(ino: u64) -> Owned {
    (key(ino, kind::INODE_ITEM, 0), inode().to_vec())
}

pub fn entry(name: &[u8]) -> DirItem<'_> {
    DirItem {
        location: key(300, kind::INODE_ITEM, 0),
        transid: 99,
        kind: dir_type::REG_FILE,
        name,
        value: b"",
    }
}

pub fn xattr<'a>(name: &'a [u8], value: &'a [u8]) -> DirItem<'a> {
    DirItem { location: Key::MIN, transid: 99, kind: dir_type::XATTR, name, value }
}

/// The item of one hashed entry under its right key.
pub fn hashed(kind: u8, item: DirItem<'_>) -> Owned {
    (key(256, kind, name_hash(item.name)), item.to_vec())
}

pub fn regular() -> FileExtentFields {
    FileExtentFields {
        generation: 100,
        ram_bytes: 65536,
        kind: FileExtentKind::Regular as u8,
        disk_bytenr: Logical(1 << 30),
        disk_num_bytes: 65536,
        num_bytes: 65536,
        ..FileExtentFields::default()
    }
}
