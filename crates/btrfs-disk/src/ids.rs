//! The newtypes and the well-known numbers of the format.

use std::fmt;

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

newtype!(
    /// An address in the volume's logical space, in bytes.
    Logical
);
newtype!(
    /// An offset on one device, in bytes.
    Physical
);
newtype!(
    /// A transaction number.
    Generation
);
newtype!(
    /// The object id of a tree in the root tree (`owner` of its nodes).
    TreeId
);

impl Logical {
    pub fn offset(self, bytes: u64) -> Logical {
        Logical(self.0 + bytes)
    }
}

impl TreeId {
    pub const ROOT: TreeId = TreeId(1);
    pub const EXTENT: TreeId = TreeId(2);
    pub const CHUNK: TreeId = TreeId(3);
    pub const DEV: TreeId = TreeId(4);
    pub const FS: TreeId = TreeId(5);
    pub const ROOT_DIR: TreeId = TreeId(6);
    pub const CSUM: TreeId = TreeId(7);
    pub const QUOTA: TreeId = TreeId(8);
    pub const UUID: TreeId = TreeId(9);
    pub const FREE_SPACE: TreeId = TreeId(10);
    pub const BLOCK_GROUP: TreeId = TreeId(11);
    pub const RAID_STRIPE: TreeId = TreeId(12);
    pub const LOG: TreeId = TreeId((-6i64).cast_unsigned());
    pub const LOG_FIXUP: TreeId = TreeId((-7i64).cast_unsigned());
    pub const RELOC: TreeId = TreeId((-8i64).cast_unsigned());
    pub const DATA_RELOC: TreeId = TreeId((-9i64).cast_unsigned());

    /// True for trees whose leaves hold inodes: the top level, subvolumes, snapshots.
    pub fn is_subvolume(self) -> bool {
        self == TreeId::FS || (self.0 >= FIRST_FREE_OBJECTID && self.0 <= LAST_FREE_OBJECTID)
    }

    /// True for trees that hold file items (subvolumes and the data relocation tree).
    pub fn holds_files(self) -> bool {
        self.is_subvolume() || self == TreeId::DATA_RELOC
    }
}

/// The one sector size that this implementation has: the format's least, and the default of
/// kernels since 6.7 whatever their pages are. The feature gate lets no other through.
pub const SECTOR_SIZE: u32 = 4096;
/// What a node may be long: powers of two of the format.
pub const NODE_SIZES: std::ops::RangeInclusive<u32> = 4096..=65536;
/// Length of a stripe, which the format fixed: chunks are multiples of it, and each copy of the
/// superblock keeps one of them free.
pub const STRIPE_LEN: u64 = 64 << 10;
/// No chunk lies in front of this on a device: room for boot loaders and the first superblock.
pub const DEVICE_RESERVED: u64 = 1 << 20;

pub const FIRST_FREE_OBJECTID: u64 = 256;
pub const LAST_FREE_OBJECTID: u64 = (-256i64).cast_unsigned();
pub const ORPHAN_OBJECTID: u64 = (-5i64).cast_unsigned();
pub const EXTENT_CSUM_OBJECTID: u64 = (-10i64).cast_unsigned();
pub const FREE_SPACE_OBJECTID: u64 = (-11i64).cast_unsigned();
pub const FREE_INO_OBJECTID: u64 = (-12i64).cast_unsigned();
pub const BALANCE_OBJECTID: u64 = (-4i64).cast_unsigned();
pub const DEV_ITEMS_OBJECTID: u64 = 1;
pub const FIRST_CHUNK_TREE_OBJECTID: u64 = 256;
pub const DEV_STATS_OBJECTID: u64 = 0;

pub mod block_group {
    //! `BTRFS_BLOCK_GROUP_*` flags of chunks and block groups.
    pub const DATA: u64 = 1 << 0;
    pub const SYSTEM: u64 = 1 << 1;
    pub const METADATA: u64 = 1 << 2;
    pub const RAID0: u64 = 1 << 3;
    pub const RAID1: u64 = 1 << 4;
    pub const DUP: u64 = 1 << 5;
    pub const RAID10: u64 = 1 << 6;
    pub const RAID5: u64 = 1 << 7;
    pub const RAID6: u64 = 1 << 8;
    pub const RAID1C3: u64 = 1 << 9;
    pub const RAID1C4: u64 = 1 << 10;
    pub const TYPE_MASK: u64 = DATA | SYSTEM | METADATA;
    pub const PROFILE_MASK: u64 = RAID0 | RAID1 | DUP | RAID10 | RAID5 | RAID6 | RAID1C3 | RAID1C4;
    /// What this program can read and write: one device, one or two copies.
    pub const SUPPORTED: u64 = TYPE_MASK | DUP;
}

pub mod incompat {
    //! Feature bits without which a volume must not be touched.
    pub const MIXED_BACKREF: u64 = 1 << 0;
    pub const DEFAULT_SUBVOL: u64 = 1 << 1;
    pub const MIXED_GROUPS: u64 = 1 << 2;
    pub const COMPRESS_LZO: u64 = 1 << 3;
    pub const COMPRESS_ZSTD: u64 = 1 << 4;
    pub const BIG_METADATA: u64 = 1 << 5;
    pub const EXTENDED_IREF: u64 = 1 << 6;
    pub const RAID56: u64 = 1 << 7;
    pub const SKINNY_METADATA: u64 = 1 << 8;
    pub const NO_HOLES: u64 = 1 << 9;
    pub const METADATA_UUID: u64 = 1 << 10;
    pub const RAID1C34: u64 = 1 << 11;
    pub const ZONED: u64 = 1 << 12;
    pub const EXTENT_TREE_V2: u64 = 1 << 13;
    pub const RAID_STRIPE_TREE: u64 = 1 << 14;
    pub const SIMPLE_QUOTA: u64 = 1 << 16;

    /// Every bit that has a name.
    pub const NAMES: &[(u64, &str)] = &[
        (MIXED_BACKREF, "mixed_backref"),
        (DEFAULT_SUBVOL, "default_subvol"),
        (MIXED_GROUPS, "mixed_groups"),
        (COMPRESS_LZO, "compress_lzo"),
        (COMPRESS_ZSTD, "compress_zstd"),
        (BIG_METADATA, "big_metadata"),
        (EXTENDED_IREF, "extended_iref"),
        (RAID56, "raid56"),
        (SKINNY_METADATA, "skinny_metadata"),
        (NO_HOLES, "no_holes"),
        (METADATA_UUID, "metadata_uuid"),
        (RAID1C34, "raid1c34"),
        (ZONED, "zoned"),
        (EXTENT_TREE_V2, "extent_tree_v2"),
        (RAID_STRIPE_TREE, "raid_stripe_tree"),
        (SIMPLE_QUOTA, "simple_quota"),
    ];
}

pub mod compat_ro {
    //! Feature bits without which a volume must not be written.
    pub const FREE_SPACE_TREE: u64 = 1 << 0;
    pub const FREE_SPACE_TREE_VALID: u64 = 1 << 1;
    pub const VERITY: u64 = 1 << 2;
    pub const BLOCK_GROUP_TREE: u64 = 1 << 3;

    pub const NAMES: &[(u64, &str)] = &[
        (FREE_SPACE_TREE, "free_space_tree"),
        (FREE_SPACE_TREE_VALID, "free_space_tree_valid"),
        (VERITY, "verity"),
        (BLOCK_GROUP_TREE, "block_group_tree"),
    ];
}
