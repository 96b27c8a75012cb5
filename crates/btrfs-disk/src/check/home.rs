//! Which trees there are, and which item types live in which.
//!
//! Types without a name and trees without a name are let through as opaque, as the
//! kernel does; a known type in a known tree where nobody ever put it is damage.

use crate::TreeId;
use crate::key::kind;

/// As the kernel's notion of a subvolume tree: ids with a qgroup level are none.
pub(super) fn is_fs_tree(tree: TreeId) -> bool {
    tree.is_subvolume() && tree.0 >> 48 == 0
}

/// Trees that hold something from mkfs on.
pub(super) fn may_be_empty(tree: TreeId) -> bool {
    !matches!(
        tree,
        TreeId(0)
            | TreeId::ROOT
            | TreeId::EXTENT
            | TreeId::CHUNK
            | TreeId::DEV
            | TreeId::FS
            | TreeId::DATA_RELOC
    )
}

fn is_known(tree: TreeId) -> bool {
    (1..=12).contains(&tree.0)
        || is_fs_tree(tree)
        || [TreeId::LOG, TreeId::RELOC, TreeId::DATA_RELOC].contains(&tree)
}

/// Trees with inodes: files, and the root tree for its directory and the v1 space cache.
fn holds_inodes(tree: TreeId) -> bool {
    is_fs_tree(tree)
        || [TreeId::DATA_RELOC, TreeId::RELOC, TreeId::LOG, TreeId::ROOT].contains(&tree)
}

/// Whether an item of type `kind` may lie in `tree`.
pub(super) fn belongs(kind: u8, tree: TreeId) -> bool {
    if !is_known(tree) {
        return true;
    }
    match kind {
        // Old mkfs put the inode of a directory into the UUID tree, and its name.
        kind::INODE_ITEM | kind::INODE_REF if tree == TreeId::UUID => true,
        kind::INODE_ITEM
        | kind::INODE_REF
        | kind::INODE_EXTREF
        | kind::XATTR_ITEM
        | kind::VERITY_DESC_ITEM
        | kind::VERITY_MERKLE_ITEM
        | kind::ORPHAN_ITEM
        | kind::DIR_ITEM
        | kind::DIR_INDEX
        | kind::EXTENT_DATA => holds_inodes(tree),
        kind::DIR_LOG_ITEM | kind::DIR_LOG_INDEX => tree == TreeId::LOG,
        kind::EXTENT_CSUM => tree == TreeId::CSUM || tree == TreeId::LOG,
        kind::ROOT_ITEM => tree == TreeId::ROOT || tree == TreeId::LOG,
        kind::ROOT_REF | kind::ROOT_BACKREF | kind::TEMPORARY_ITEM => tree == TreeId::ROOT,
        kind::EXTENT_ITEM
        | kind::METADATA_ITEM
        | kind::TREE_BLOCK_REF
        | kind::EXTENT_DATA_REF
        | kind::SHARED_BLOCK_REF
        | kind::SHARED_DATA_REF => tree == TreeId::EXTENT,
        kind::BLOCK_GROUP_ITEM => tree == TreeId::EXTENT || tree == TreeId::BLOCK_GROUP,
        kind::FREE_SPACE_INFO | kind::FREE_SPACE_EXTENT | kind::FREE_SPACE_BITMAP => {
            tree == TreeId::FREE_SPACE
        }
        kind::DEV_EXTENT | kind::PERSISTENT_ITEM | kind::DEV_REPLACE => tree == TreeId::DEV,
        kind::DEV_ITEM | kind::CHUNK_ITEM => tree == TreeId::CHUNK,
        kind::RAID_STRIPE => tree == TreeId::RAID_STRIPE,
        kind::QGROUP_STATUS | kind::QGROUP_INFO | kind::QGROUP_LIMIT | kind::QGROUP_RELATION => {
            tree == TreeId::QUOTA
        }
        kind::UUID_KEY_SUBVOL | kind::UUID_KEY_RECEIVED_SUBVOL => tree == TreeId::UUID,
        _ => true,
    }
}
