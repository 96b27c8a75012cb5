//! Keys, objects and flags in the words of btrfs-progs.

use btrfs_disk::TreeId;
use btrfs_disk::ids::{
    BALANCE_OBJECTID, EXTENT_CSUM_OBJECTID, FIRST_CHUNK_TREE_OBJECTID, FREE_INO_OBJECTID,
    FREE_SPACE_OBJECTID, ORPHAN_OBJECTID, block_group,
};
use btrfs_disk::items::QGROUP_LEVEL_SHIFT;
use btrfs_disk::key::{Key, kind, kind_name};

/// An extent or a tree that stands for many.
const MULTIPLE_OBJECTID: u64 = (-255i64).cast_unsigned();

const OBJECTS: &[(u64, &str)] = &[
    (1, "ROOT_TREE"),
    (2, "EXTENT_TREE"),
    (3, "CHUNK_TREE"),
    (4, "DEV_TREE"),
    (5, "FS_TREE"),
    (6, "ROOT_TREE_DIR"),
    (7, "CSUM_TREE"),
    (8, "QUOTA_TREE"),
    (9, "UUID_TREE"),
    (10, "FREE_SPACE_TREE"),
    (11, "BLOCK_GROUP_TREE"),
    (BALANCE_OBJECTID, "BALANCE"),
    (ORPHAN_OBJECTID, "ORPHAN"),
    (TreeId::LOG.0, "TREE_LOG"),
    (TreeId::LOG_FIXUP.0, "LOG_FIXUP"),
    (TreeId::RELOC.0, "TREE_RELOC"),
    (TreeId::DATA_RELOC.0, "DATA_RELOC_TREE"),
    (EXTENT_CSUM_OBJECTID, "EXTENT_CSUM"),
    (FREE_SPACE_OBJECTID, "FREE_SPACE"),
    (FREE_INO_OBJECTID, "FREE_INO"),
    (MULTIPLE_OBJECTID, "MULTIPLE"),
    (u64::MAX, "-1"),
];

/// The object of a key of `item_kind`; 0 where it is no key's.
pub fn object(id: u64, item_kind: u8) -> String {
    match (item_kind, id) {
        (kind::PERSISTENT_ITEM, 0) => return "DEV_STATS".into(),
        (kind::DEV_EXTENT, _) => return id.to_string(),
        (kind::QGROUP_RELATION, _) => return qgroup(id),
        (kind::UUID_KEY_SUBVOL | kind::UUID_KEY_RECEIVED_SUBVOL, _) => {
            return format!("0x{id:016x}");
        }
        (kind::DEV_ITEM, 1) => return "DEV_ITEMS".into(),
        (kind::CHUNK_ITEM, FIRST_CHUNK_TREE_OBJECTID) => return "FIRST_CHUNK_TREE".into(),
        _ => {}
    }
    match OBJECTS.iter().find(|(object, _)| *object == id) {
        Some((_, name)) => (*name).into(),
        None => id.to_string(),
    }
}

/// A tree.
pub fn tree(id: TreeId) -> String {
    object(id.0, 0)
}

fn qgroup(id: u64) -> String {
    format!("{}/{}", id >> QGROUP_LEVEL_SHIFT, id & ((1 << QGROUP_LEVEL_SHIFT) - 1))
}

/// Types that btrfs-progs 6.2 calls otherwise than the format does, or knows and nobody writes.
fn kind_word(key: &Key) -> String {
    match key.kind {
        0 if key.objectid == FREE_SPACE_OBJECTID => "UNTYPED".into(),
        120 => "CSUM_ITEM".into(),
        180 => "EXTENT_REF_V0".into(),
        kind::EXTENT_OWNER_REF | kind::RAID_STRIPE => format!("UNKNOWN.{}", key.kind),
        other => kind_name(other).map_or_else(|| format!("UNKNOWN.{other}"), Into::into),
    }
}

fn offset(key: &Key) -> String {
    match key.kind {
        kind::QGROUP_RELATION | kind::QGROUP_INFO | kind::QGROUP_LIMIT => qgroup(key.offset),
        kind::UUID_KEY_SUBVOL | kind::UUID_KEY_RECEIVED_SUBVOL => format!("0x{:016x}", key.offset),
        kind::ROOT_ITEM if key.objectid == TreeId::RELOC.0 => object(key.offset, key.kind),
        kind::ROOT_ITEM => key.offset.to_string(),
        _ if key.offset == u64::MAX => "-1".into(),
        _ => key.offset.to_string(),
    }
}

/// `(OBJECT TYPE OFFSET)`.
pub fn key(key: &Key) -> String {
    format!("({} {} {})", object(key.objectid, key.kind), kind_word(key), offset(key))
}

/// The names of set bits, with `|` between them.
pub fn names(flags: u64, table: &[(u64, &str)]) -> String {
    let set = table.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name);
    set.collect::<Vec<_>>().join("|")
}

/// The same; `none` where no bit has a name.
pub fn names_or_none(flags: u64, table: &[(u64, &str)]) -> String {
    let names = names(flags, table);
    if names.is_empty() { "none".into() } else { names }
}

const GROUP_TYPES: &[(u64, &str)] = &[
    (block_group::DATA, "DATA"),
    (block_group::METADATA, "METADATA"),
    (block_group::SYSTEM, "SYSTEM"),
];

const PROFILES: &[(u64, &str)] = &[
    (block_group::RAID0, "RAID0"),
    (block_group::RAID1, "RAID1"),
    (block_group::DUP, "DUP"),
    (block_group::RAID10, "RAID10"),
    (block_group::RAID5, "RAID5"),
    (block_group::RAID6, "RAID6"),
    (block_group::RAID1C3, "RAID1C3"),
    (block_group::RAID1C4, "RAID1C4"),
];

/// What a block group or a chunk is for, and how it is stored. Of two profiles, which no volume
/// has, there is none.
pub fn group(flags: u64) -> String {
    let profile = flags & block_group::PROFILE_MASK;
    let stored = PROFILES.iter().find(|(flag, _)| *flag == profile).map_or("single", |p| p.1);
    format!("{}|{stored}", names(flags, GROUP_TYPES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_as_btrfs_progs_tells_them() {
        for (made, told) in [
            (Key::new(5, kind::ROOT_ITEM, u64::MAX), "(FS_TREE ROOT_ITEM 18446744073709551615)"),
            (Key::new(5, 0, u64::MAX), "(FS_TREE UNKNOWN.0 -1)"),
            (Key::new(TreeId::RELOC.0, kind::ROOT_ITEM, 5), "(TREE_RELOC ROOT_ITEM FS_TREE)"),
            (Key::new(FREE_SPACE_OBJECTID, 0, 9), "(FREE_SPACE UNTYPED 9)"),
            (Key::new(1, kind::DEV_ITEM, 1), "(DEV_ITEMS DEV_ITEM 1)"),
            (Key::new(1, kind::DEV_EXTENT, 1), "(1 DEV_EXTENT 1)"),
            (Key::new(256, kind::CHUNK_ITEM, 7), "(FIRST_CHUNK_TREE CHUNK_ITEM 7)"),
            (Key::new(0, kind::PERSISTENT_ITEM, 1), "(DEV_STATS PERSISTENT_ITEM 1)"),
            (Key::new(4, kind::QGROUP_RELATION, 1 << 48 | 300), "(0/4 QGROUP_RELATION 1/300)"),
            (Key::new(0, kind::QGROUP_INFO, 1 << 48), "(0 QGROUP_INFO 1/0)"),
            (
                Key::new(256, kind::UUID_KEY_SUBVOL, 1),
                "(0x0000000000000100 UUID_KEY_SUBVOL 0x0000000000000001)",
            ),
            (Key::new(53, 172, 5), "(53 UNKNOWN.172 5)"),
        ] {
            assert_eq!(key(&made), told);
        }
    }

    #[test]
    fn groups_have_a_type_and_a_profile() {
        assert_eq!(group(block_group::METADATA | block_group::DATA), "DATA|METADATA|single");
        assert_eq!(group(block_group::SYSTEM | block_group::DUP), "SYSTEM|DUP");
        assert_eq!(group(1 << 62), "|single");
        assert_eq!(group(block_group::DATA | 3 << 4), "DATA|single");
    }
}
