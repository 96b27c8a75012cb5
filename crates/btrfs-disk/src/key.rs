//! Keys: (object id, item type, offset), ordered as every tree is.

use std::fmt;

/// Bytes of a key: object id, type and offset, without gaps.
pub const KEY_SIZE: usize = 17;

/// Where an item stands in its tree. Keys ascend by object id, then type, then offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// What the item is of: an inode, a subvolume, an address, or a fixed number.
    pub objectid: u64,
    /// The item's type, one of [`kind`].
    pub kind: u8,
    /// What the type says: a file offset, a hash, a length, another object.
    pub offset: u64,
}

impl Key {
    /// No key is smaller.
    pub const MIN: Key = Key { objectid: 0, kind: 0, offset: 0 };
    /// No key is larger.
    pub const MAX: Key = Key { objectid: u64::MAX, kind: u8::MAX, offset: u64::MAX };

    /// The key of these three members.
    pub const fn new(objectid: u64, kind: u8, offset: u64) -> Key {
        Key { objectid, kind, offset }
    }

    /// Where the UUID tree has a UUID.
    pub fn of_uuid(uuid: &[u8; 16], kind: u8) -> Key {
        let half = |at: usize| u64::from_le_bytes(uuid[at..at + 8].try_into().expect("8 bytes"));
        Key::new(half(0), kind, half(8))
    }

    /// Reads little-endian bytes; all of them are some key.
    pub fn read(bytes: &[u8; KEY_SIZE]) -> Key {
        Key {
            objectid: u64::from_le_bytes(bytes[0..8].try_into().expect("8 bytes")),
            kind: bytes[8],
            offset: u64::from_le_bytes(bytes[9..17].try_into().expect("8 bytes")),
        }
    }

    /// As nodes have it, little-endian.
    pub fn to_bytes(self) -> [u8; KEY_SIZE] {
        let mut out = [0; KEY_SIZE];
        out[0..8].copy_from_slice(&self.objectid.to_le_bytes());
        out[8] = self.kind;
        out[9..17].copy_from_slice(&self.offset.to_le_bytes());
        out
    }

    /// The next larger key, if there is one.
    pub fn successor(self) -> Option<Key> {
        if self.offset < u64::MAX {
            return Some(Key { offset: self.offset + 1, ..self });
        }
        if self.kind < u8::MAX {
            return Some(Key { objectid: self.objectid, kind: self.kind + 1, offset: 0 });
        }
        self.objectid.checked_add(1).map(|objectid| Key { objectid, kind: 0, offset: 0 })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signed = self.objectid.cast_signed();
        match kind_name(self.kind) {
            Some(name) if (-32..0).contains(&signed) => {
                write!(f, "({signed} {name} {})", self.offset)
            }
            Some(name) => write!(f, "({} {name} {})", self.objectid, self.offset),
            None => write!(f, "({} {} {})", self.objectid, self.kind, self.offset),
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        pub mod kind {
            //! Item types (`BTRFS_*_KEY`), each with the object id and the offset of its keys.
            $($(#[$doc])* pub const $name: u8 = $value;)*
        }

        /// The field's own name of an item type.
        pub fn kind_name(kind: u8) -> Option<&'static str> {
            Some(match kind {
                $($value => stringify!($name),)*
                _ => return None,
            })
        }
    };
}

kinds! {
    /// (inode, 0): size, owner, mode, times and flags.
    INODE_ITEM = 1,
    /// (inode, directory): the inode's names in that directory.
    INODE_REF = 12,
    /// (inode, hash of directory and name): names that its INODE_REF has no room for.
    INODE_EXTREF = 13,
    /// (inode, hash of the name): extended attributes, as a directory's entries.
    XATTR_ITEM = 24,
    /// (inode, offset): the size of the fs-verity descriptor at 0, its bytes from 1 on.
    VERITY_DESC_ITEM = 36,
    /// (inode, offset): bytes of the file's Merkle tree from that offset on.
    VERITY_MERKLE_ITEM = 37,
    /// (-5, inode or subvolume): it has no name left and still has to go.
    ORPHAN_ITEM = 48,
    /// (directory, hash): in older log trees: up to which hash all its entries are there.
    DIR_LOG_ITEM = 60,
    /// (directory, index): in a log tree: up to which index all its entries are there.
    DIR_LOG_INDEX = 72,
    /// (directory, hash of the name): entries by name; several, where hashes are the same.
    DIR_ITEM = 84,
    /// (directory, index): one entry, in the order that they were made in.
    DIR_INDEX = 96,
    /// (inode, file offset): what a file is made of from that offset on.
    EXTENT_DATA = 108,
    /// (-10, logical address): checksums of the sectors from that address on.
    EXTENT_CSUM = 128,
    /// (tree, 0; of a snapshot the commit that made it): where a tree's root is, and whose it is.
    ROOT_ITEM = 132,
    /// (subvolume, its parent): the name of a subvolume, and the directory that has it.
    ROOT_BACKREF = 144,
    /// (parent, subvolume in it): the same, the other way round.
    ROOT_REF = 156,
    /// (logical address, bytes): an extent, and who refers to it.
    EXTENT_ITEM = 168,
    /// (logical address, level): a tree block, and who refers to it.
    METADATA_ITEM = 169,
    /// Inline only: the subvolume that simple quotas count an extent for.
    EXTENT_OWNER_REF = 172,
    /// (logical address, tree): a tree holds this tree block.
    TREE_BLOCK_REF = 176,
    /// (logical address, hash): a file of a tree holds this content.
    EXTENT_DATA_REF = 178,
    /// (logical address, node's address): a node holds this tree block.
    SHARED_BLOCK_REF = 182,
    /// (logical address, leaf's address): a leaf holds this content.
    SHARED_DATA_REF = 184,
    /// (logical start, length): what a block group is for, and how much of it is used.
    BLOCK_GROUP_ITEM = 192,
    /// (logical start, length): how a block group's free space is written down.
    FREE_SPACE_INFO = 198,
    /// (logical start, length): free space; without data.
    FREE_SPACE_EXTENT = 199,
    /// (logical start, length): one bit for each sector, set where it is free.
    FREE_SPACE_BITMAP = 200,
    /// (device, offset on it): the part of a device that a chunk takes there.
    DEV_EXTENT = 204,
    /// (1, device): a device of the volume.
    DEV_ITEM = 216,
    /// (256, logical start): where on devices a chunk lies.
    CHUNK_ITEM = 228,
    /// (logical address, length): where on devices content lies, with RAID_STRIPE_TREE.
    RAID_STRIPE = 230,
    /// (0, 0): whether quotas are kept, and how far they are right.
    QGROUP_STATUS = 240,
    /// (0, group): bytes that a quota group has.
    QGROUP_INFO = 242,
    /// (0, group): bytes that it may have.
    QGROUP_LIMIT = 244,
    /// (group, group): one is a member of the other; there both ways round, without data.
    QGROUP_RELATION = 246,
    /// (what of, ..): state that ends with its work: a balance is at (-4, 0).
    TEMPORARY_ITEM = 248,
    /// (what of, ..): state that stays: error counters are at (0, device).
    PERSISTENT_ITEM = 249,
    /// (0, 0): state of the replacement of a device.
    DEV_REPLACE = 250,
    /// (half of a UUID, other half): the subvolumes that have this UUID.
    UUID_KEY_SUBVOL = 251,
    /// (half of a UUID, other half): the subvolumes that were received with this UUID.
    UUID_KEY_RECEIVED_SUBVOL = 252,
    /// Any bytes, for debugging.
    STRING_ITEM = 253,
}
