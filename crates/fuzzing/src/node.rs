//! Whole nodes: bytes made just good enough to get past checksum and header, and everything
//! that may be done behind the gate.

use btrfs_disk::check::{self, Limits};
use btrfs_disk::items::*;
use btrfs_disk::key::kind;
use btrfs_disk::node::FLAG_WRITTEN;
use btrfs_disk::{
    ChecksumType, Expect, FixedSize, Generation, Geometry, Header, Key, Logical, Node,
};

pub const GEOMETRY: Geometry = Geometry {
    sector_size: 4096,
    node_size: 4096,
    csum: ChecksumType::Crc32c,
    metadata_uuid: [7; 16],
    chunk_tree_uuid: [8; 16],
};
const AT: Logical = Logical(1 << 20);

pub fn node(data: &[u8]) -> bool {
    gate(repaired(data))
}

/// A node's bytes with the header's members right that a fuzzer would not guess.
pub fn repaired(data: &[u8]) -> Box<[u8]> {
    let mut bytes = vec![0; 4096];
    let len = data.len().min(4096);
    bytes[..len].copy_from_slice(&data[..len]);
    let mut header = Header::read(&bytes).expect("long enough");
    header.fsid = GEOMETRY.metadata_uuid;
    header.bytenr = AT;
    header.flags |= FLAG_WRITTEN;
    header.write(&mut bytes);
    GEOMETRY.csum.seal(&mut bytes);
    bytes.into_boxed_slice()
}

/// Through the gate; what passes must bear every use.
pub fn gate(bytes: Box<[u8]>) -> bool {
    let header = Header::read(&bytes).expect("long enough");
    let expect = Expect {
        logical: AT,
        level: header.level,
        generation: Some(header.generation),
        owner: Some(header.owner),
        first_key: None,
    };
    let limits = Limits { max_generation: Some(Generation(1 << 40)), read_only: false };
    let Ok(node) = check::node_within(bytes, &GEOMETRY, &expect, &limits) else { return false };
    let _ = check::before_write(&node, &GEOMETRY);
    use_up(&node);
    true
}

fn use_up(node: &Node) {
    if !node.is_leaf() {
        for (slot, child) in node.children().enumerate() {
            assert_eq!(node.child_slot(&child.key), slot);
        }
        return;
    }
    assert!(node.free_space() <= GEOMETRY.leaf_space());
    for (slot, (key, data)) in node.items().enumerate() {
        assert_eq!(node.search(&key), Ok(slot));
        parse(&key, data);
    }
}

/// Behind the gate every parser succeeds.
fn parse(key: &Key, data: &[u8]) {
    match key.kind {
        kind::INODE_ITEM => assert!(InodeItem::read(data).is_ok()),
        kind::INODE_REF => assert!(InodeRef::iter(data).all(|r| r.is_ok())),
        kind::INODE_EXTREF => assert!(InodeExtRef::iter(data).all(|r| r.is_ok())),
        kind::DIR_ITEM | kind::DIR_INDEX | kind::XATTR_ITEM => {
            assert!(DirItem::iter(data).all(|r| r.is_ok()));
        }
        kind::EXTENT_DATA => {
            let extent = FileExtent::parse(data).expect("checked");
            if let FileExtent::Extent { fields, .. } = extent {
                assert!(key.offset.checked_add(fields.num_bytes).is_some());
            }
            assert_eq!(FileExtent::parse(&extent.to_vec()), Ok(extent));
        }
        kind::ROOT_ITEM => assert!(RootItem::parse(data).is_ok()),
        kind::ROOT_REF | kind::ROOT_BACKREF => assert!(RootRef::parse(data).is_ok()),
        kind::EXTENT_ITEM | kind::METADATA_ITEM => {
            let item = ExtentItem::parse(key.kind, data).expect("checked");
            assert_eq!(item.to_vec(), data);
        }
        kind::EXTENT_DATA_REF => assert!(ExtentDataRef::read(data).is_ok()),
        kind::SHARED_DATA_REF => assert!(SharedDataRef::read(data).is_ok()),
        kind::BLOCK_GROUP_ITEM => assert!(BlockGroupItem::read(data).is_ok()),
        kind::CHUNK_ITEM => assert_eq!(Chunk::parse(data).expect("checked").to_vec(), data),
        kind::DEV_ITEM => assert!(DevItem::read(data).is_ok()),
        kind::DEV_EXTENT => assert!(DevExtent::read(data).is_ok()),
        kind::FREE_SPACE_INFO => assert!(FreeSpaceInfo::read(data).is_ok()),
        _ => {}
    }
}
