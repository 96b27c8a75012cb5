//! Where things stand in an image that is to be damaged: keys of items, and how an item is
//! edited. It does not know what the check says of them.

use btrfs_disk::checksum::name_hash;
use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::items::{DirItem, ExtentItem, InlineRef, InodeItem, extent_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, Logical, Node, TreeId};
use fuzzing::patch::Patch;

pub const FS: TreeId = TreeId::FS;

pub fn inode_key(ino: u64) -> Key {
    Key::new(ino, kind::INODE_ITEM, 0)
}

pub fn dir_item_key(dir: u64, name: &str) -> Key {
    Key::new(dir, kind::DIR_ITEM, name_hash(name.as_bytes()))
}

pub fn edit_inode(patch: &Patch, path: &str, edit: fn(&mut InodeItem)) {
    patch.edit_as(FS, inode_key(patch.ino(FS, path)), edit);
}

/// Key of the DIR_INDEX of a name.
pub fn index_key(patch: &Patch, dir: u64, name: &str) -> Key {
    let items = patch.items(FS);
    let found = items.iter().find(|(key, data)| {
        (key.objectid, key.kind) == (dir, kind::DIR_INDEX)
            && DirItem::iter(data).flatten().any(|entry| entry.name == name.as_bytes())
    });
    found.expect("index").0
}

/// A data extent with inline references only.
pub fn data_extent(patch: &Patch) -> Key {
    let fits = |key: Key, data: &[u8]| {
        key.kind == kind::EXTENT_ITEM
            && ExtentItem::parse(key.kind, data).is_ok_and(|item| {
                item.fields.flags & extent_flags::DATA != 0
                    && matches!(item.inline[..], [InlineRef::Data(_)])
            })
    };
    patch.some(TreeId::EXTENT, fits).0
}

pub fn edit_extent(patch: &Patch, key: Key, edit: impl FnOnce(&mut ExtentItem)) {
    patch.edit(TreeId::EXTENT, key, |data| {
        let mut item = ExtentItem::parse(key.kind, data).expect("extent");
        edit(&mut item);
        *data = item.to_vec();
    });
}

/// A large free extent that is not the first item of its leaf, in a block group of data
/// (mkfs leaves entries of groups behind that are gone).
pub fn free_extent(patch: &Patch) -> Key {
    let first_data = first_csum(patch).offset;
    let fits = |key: Key, _: &[u8]| {
        key.kind == kind::FREE_SPACE_EXTENT && key.offset > 1 << 17 && key.objectid > first_data
    };
    patch.some(TreeId::FREE_SPACE, fits).0
}

/// The block of a leaf of files, and its metadata item: not the first of its node, whose key
/// stands in the node above, too. Where the kernel puts what differs from run to run.
pub fn file_leaf(patch: &Patch) -> (Logical, Key) {
    let wanted = patch.leaf(FS, inode_key(patch.ino(FS, "a/b/big22")));
    // With content: names alone have no references.
    let content = |leaf: &Node| {
        leaf.items().any(|(key, data)| {
            key.kind == kind::EXTENT_DATA
                && data.len() > 29
                && data[20] == 1
                && data[21..29] != [0; 8]
        })
    };
    let leaves = std::iter::once(wanted).chain(patch.leaves(FS)).filter(content);
    let item = |leaf: Node| Key::new(leaf.logical().0, kind::METADATA_ITEM, 0);
    let first =
        |key: &Key| patch.leaf(TreeId::EXTENT, *key).items().next().is_some_and(|i| i.0 == *key);
    let key = leaves.map(item).find(|key| !first(key)).expect("one is not the first");
    (Logical(key.objectid), key)
}

pub fn first_csum(patch: &Patch) -> Key {
    patch.find(TreeId::CSUM, Key::new(EXTENT_CSUM_OBJECTID, kind::EXTENT_CSUM, 0)).expect("sums").0
}

pub fn root_ref(patch: &Patch, wanted: u8) -> Key {
    patch.some(TreeId::ROOT, |key, _| key.kind == wanted).0
}
