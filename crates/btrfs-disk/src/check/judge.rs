//! From an item to the judge of its type: the one place that lists the types.

use super::item::{Item, Rules, Verdict, sized};
use super::{chunk, csum, dir, ensure, extent, file_extent, free_space, home, inode, root, small};
use crate::key::{kind, kind_name};

pub(super) fn judge(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    ensure!(
        home::belongs(item.key.kind, rules.owner),
        "{} in tree {}",
        kind_name(item.key.kind).unwrap_or("item"),
        rules.owner
    );
    match item.key.kind {
        0 => free_space::v1_header(item),
        kind::INODE_ITEM => inode::inode(rules, item),
        kind::INODE_REF => inode::inode_ref(rules, item),
        kind::INODE_EXTREF => inode::extref(item),
        kind::ORPHAN_ITEM => inode::orphan(item),
        kind::DIR_LOG_ITEM | kind::DIR_LOG_INDEX => sized(item, 8),
        kind::VERITY_DESC_ITEM | kind::VERITY_MERKLE_ITEM => inode::verity(item),
        kind::DIR_ITEM | kind::DIR_INDEX => dir::entries(rules, item),
        kind::XATTR_ITEM => dir::xattrs(rules, item),
        kind::EXTENT_DATA => file_extent::file_extent(rules, item),
        kind::EXTENT_CSUM => csum::csum(rules, item),
        kind::ROOT_ITEM => root::root(rules, item),
        kind::ROOT_REF | kind::ROOT_BACKREF => root::root_ref(item),
        kind::UUID_KEY_SUBVOL | kind::UUID_KEY_RECEIVED_SUBVOL => root::uuid(item),
        kind::EXTENT_ITEM | kind::METADATA_ITEM => extent::extent(rules, item),
        kind::TREE_BLOCK_REF
        | kind::SHARED_BLOCK_REF
        | kind::SHARED_DATA_REF
        | kind::EXTENT_DATA_REF => extent::separate(rules, item),
        kind::BLOCK_GROUP_ITEM => chunk::block_group(rules, item),
        kind::CHUNK_ITEM => chunk::chunk_item(rules, item),
        kind::DEV_ITEM => chunk::device(item),
        kind::DEV_EXTENT => chunk::dev_extent(rules, item),
        kind::FREE_SPACE_INFO | kind::FREE_SPACE_EXTENT | kind::FREE_SPACE_BITMAP => {
            free_space::free_space(rules, item)
        }
        kind::RAID_STRIPE => rules.aligned("stripe extent at", item.key.objectid),
        kind::QGROUP_STATUS | kind::QGROUP_INFO | kind::QGROUP_LIMIT | kind::QGROUP_RELATION => {
            small::qgroup(item)
        }
        kind::TEMPORARY_ITEM => small::temporary(item),
        kind::PERSISTENT_ITEM => small::persistent(item),
        _ => Ok(()),
    }
}
