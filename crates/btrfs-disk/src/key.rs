//! Keys: (object id, item type, offset), ordered as every tree is.

use std::fmt;

pub const KEY_SIZE: usize = 17;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub objectid: u64,
    pub kind: u8,
    pub offset: u64,
}

impl Key {
    pub const MIN: Key = Key { objectid: 0, kind: 0, offset: 0 };
    pub const MAX: Key = Key { objectid: u64::MAX, kind: u8::MAX, offset: u64::MAX };

    pub const fn new(objectid: u64, kind: u8, offset: u64) -> Key {
        Key { objectid, kind, offset }
    }

    /// Where the UUID tree has a UUID.
    pub fn of_uuid(uuid: &[u8; 16], kind: u8) -> Key {
        let half = |at: usize| u64::from_le_bytes(uuid[at..at + 8].try_into().expect("8 bytes"));
        Key::new(half(0), kind, half(8))
    }

    pub fn read(bytes: &[u8; KEY_SIZE]) -> Key {
        Key {
            objectid: u64::from_le_bytes(bytes[0..8].try_into().expect("8 bytes")),
            kind: bytes[8],
            offset: u64::from_le_bytes(bytes[9..17].try_into().expect("8 bytes")),
        }
    }

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
    ($($name:ident = $value:literal),* $(,)?) => {
        pub mod kind {
            //! Item types (`BTRFS_*_KEY`).
            $(pub const $name: u8 = $value;)*
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
    INODE_ITEM = 1,
    INODE_REF = 12,
    INODE_EXTREF = 13,
    XATTR_ITEM = 24,
    VERITY_DESC_ITEM = 36,
    VERITY_MERKLE_ITEM = 37,
    ORPHAN_ITEM = 48,
    DIR_LOG_ITEM = 60,
    DIR_LOG_INDEX = 72,
    DIR_ITEM = 84,
    DIR_INDEX = 96,
    EXTENT_DATA = 108,
    EXTENT_CSUM = 128,
    ROOT_ITEM = 132,
    ROOT_BACKREF = 144,
    ROOT_REF = 156,
    EXTENT_ITEM = 168,
    METADATA_ITEM = 169,
    EXTENT_OWNER_REF = 172,
    TREE_BLOCK_REF = 176,
    EXTENT_DATA_REF = 178,
    SHARED_BLOCK_REF = 182,
    SHARED_DATA_REF = 184,
    BLOCK_GROUP_ITEM = 192,
    FREE_SPACE_INFO = 198,
    FREE_SPACE_EXTENT = 199,
    FREE_SPACE_BITMAP = 200,
    DEV_EXTENT = 204,
    DEV_ITEM = 216,
    CHUNK_ITEM = 228,
    RAID_STRIPE = 230,
    QGROUP_STATUS = 240,
    QGROUP_INFO = 242,
    QGROUP_LIMIT = 244,
    QGROUP_RELATION = 246,
    TEMPORARY_ITEM = 248,
    PERSISTENT_ITEM = 249,
    DEV_REPLACE = 250,
    UUID_KEY_SUBVOL = 251,
    UUID_KEY_RECEIVED_SUBVOL = 252,
    STRING_ITEM = 253,
}
