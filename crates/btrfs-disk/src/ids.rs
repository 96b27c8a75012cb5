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
    /// The address `bytes` further on.
    pub fn offset(self, bytes: u64) -> Logical {
        Logical(self.0 + bytes)
    }
}

impl TreeId {
    /// The root tree: it has the ROOT_ITEM of every other tree but the chunk tree and log trees.
    pub const ROOT: TreeId = TreeId(1);
    /// The extent tree: what is allocated, and who refers to it.
    pub const EXTENT: TreeId = TreeId(2);
    /// The chunk tree: devices, and where on them logical addresses lie.
    pub const CHUNK: TreeId = TreeId(3);
    /// The device tree: which parts of a device chunks take, and error counters.
    pub const DEV: TreeId = TreeId(4);
    /// The top level subvolume.
    pub const FS: TreeId = TreeId(5);
    /// No tree but a directory in the root tree; its entry `default` names the default subvolume.
    pub const ROOT_DIR: TreeId = TreeId(6);
    /// The checksum tree: checksums of file content by logical address.
    pub const CSUM: TreeId = TreeId(7);
    /// The quota tree: there while quotas are kept.
    pub const QUOTA: TreeId = TreeId(8);
    /// The UUID tree: subvolumes by UUID and by received UUID.
    pub const UUID: TreeId = TreeId(9);
    /// The free-space tree (FREE_SPACE_TREE).
    pub const FREE_SPACE: TreeId = TreeId(10);
    /// The block group tree: block group items, if they are not in the extent tree.
    pub const BLOCK_GROUP: TreeId = TreeId(11);
    /// The RAID stripe tree: where content really lies on devices, with RAID_STRIPE_TREE.
    pub const RAID_STRIPE: TreeId = TreeId(12);
    /// Log trees, one for each subvolume that was synced since the commit, and the tree of their
    /// roots.
    pub const LOG: TreeId = TreeId((-6i64).cast_unsigned());
    /// Inodes whose link counts a replay of logs still has to correct.
    pub const LOG_FIXUP: TreeId = TreeId((-7i64).cast_unsigned());
    /// Trees of relocation: the kernel's balance rebuilds a subvolume's nodes in one of them.
    pub const RELOC: TreeId = TreeId((-8i64).cast_unsigned());
    /// The tree that holds content while the kernel's balance moves it.
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

/// Names on a way through directories, at most: a path of `PATH_MAX` bytes has no more. What is longer
/// is a circle of a damaged volume.
pub const MAX_PATH_NAMES: usize = 4096;

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

/// The first id that a subvolume or an inode may have; also each subvolume's root directory.
pub const FIRST_FREE_OBJECTID: u64 = 256;
/// The last id that a subvolume or an inode may have.
pub const LAST_FREE_OBJECTID: u64 = (-256i64).cast_unsigned();
/// Object id of ORPHAN_ITEMs; the offset is the inode or subvolume that has to go.
pub const ORPHAN_OBJECTID: u64 = (-5i64).cast_unsigned();
/// Object id of all EXTENT_CSUM items; the offset is the logical address of the first sector.
pub const EXTENT_CSUM_OBJECTID: u64 = (-10i64).cast_unsigned();
/// Object id of the headers of the version 1 space cache; the offset is where the group begins.
pub const FREE_SPACE_OBJECTID: u64 = (-11i64).cast_unsigned();
/// Object id of the inode cache that kernels before 5.11 could keep in a subvolume.
pub const FREE_INO_OBJECTID: u64 = (-12i64).cast_unsigned();
/// Object id of the TEMPORARY_ITEM that an unfinished balance leaves in the root tree.
pub const BALANCE_OBJECTID: u64 = (-4i64).cast_unsigned();
/// Object id of all DEV_ITEMs; the offset is the device's number.
pub const DEV_ITEMS_OBJECTID: u64 = 1;
/// Object id of all CHUNK_ITEMs; the offset is the chunk's logical address.
pub const FIRST_CHUNK_TREE_OBJECTID: u64 = 256;
/// Object id of the PERSISTENT_ITEM with a device's error counters; the offset is the device's
/// number.
pub const DEV_STATS_OBJECTID: u64 = 0;

pub mod block_group {
    //! `BTRFS_BLOCK_GROUP_*` flags of chunks and block groups.
    /// File content.
    pub const DATA: u64 = 1 << 0;
    /// Nodes of the chunk tree.
    pub const SYSTEM: u64 = 1 << 1;
    /// Nodes of all other trees.
    pub const METADATA: u64 = 1 << 2;
    /// Profile: stripes in turn on several devices, one copy.
    pub const RAID0: u64 = 1 << 3;
    /// Profile: two copies on two devices.
    pub const RAID1: u64 = 1 << 4;
    /// Profile: two copies on one device.
    pub const DUP: u64 = 1 << 5;
    /// Profile: stripes in turn, two copies on two devices each.
    pub const RAID10: u64 = 1 << 6;
    /// Profile: stripes in turn, one of each row is parity.
    pub const RAID5: u64 = 1 << 7;
    /// Profile: stripes in turn, two of each row are parity.
    pub const RAID6: u64 = 1 << 8;
    /// Profile: three copies on three devices.
    pub const RAID1C3: u64 = 1 << 9;
    /// Profile: four copies on four devices.
    pub const RAID1C4: u64 = 1 << 10;
    /// What a group is for; with MIXED_GROUPS data and metadata at once.
    pub const TYPE_MASK: u64 = DATA | SYSTEM | METADATA;
    /// How a group lies on devices; no bit of these: one copy (single).
    pub const PROFILE_MASK: u64 = RAID0 | RAID1 | DUP | RAID10 | RAID5 | RAID6 | RAID1C3 | RAID1C4;
    /// What this program can read and write: one device, one or two copies.
    pub const SUPPORTED: u64 = TYPE_MASK | DUP;
}

pub mod incompat {
    //! Feature bits without which a volume must not be touched.
    /// References are as they are since Linux 2.6.31: every volume has it.
    pub const MIXED_BACKREF: u64 = 1 << 0;
    /// The default subvolume was set to another than the top level.
    pub const DEFAULT_SUBVOL: u64 = 1 << 1;
    /// Content and nodes share their block groups; a node is one sector.
    pub const MIXED_GROUPS: u64 = 1 << 2;
    /// Some content is, or was, compressed by LZO.
    pub const COMPRESS_LZO: u64 = 1 << 3;
    /// Some content is, or was, compressed by Zstd.
    pub const COMPRESS_ZSTD: u64 = 1 << 4;
    /// Nodes are larger than a page of the kernel that made the volume.
    pub const BIG_METADATA: u64 = 1 << 5;
    /// INODE_EXTREF items: more links in one directory than an INODE_REF item holds.
    pub const EXTENDED_IREF: u64 = 1 << 6;
    /// Some chunk has, or had, the profile RAID5 or RAID6.
    pub const RAID56: u64 = 1 << 7;
    /// Tree blocks have METADATA_ITEMs, which have the level in the key.
    pub const SKINNY_METADATA: u64 = 1 << 8;
    /// A hole in a file needs no EXTENT_DATA item.
    pub const NO_HOLES: u64 = 1 << 9;
    /// Node headers carry `metadata_uuid`; `fsid` alone was changed.
    pub const METADATA_UUID: u64 = 1 << 10;
    /// Some chunk has, or had, the profile RAID1C3 or RAID1C4.
    pub const RAID1C34: u64 = 1 << 11;
    /// The volume lies on zoned devices, or writes as if it did.
    pub const ZONED: u64 = 1 << 12;
    /// Several extent and checksum trees; an experiment of the kernel.
    pub const EXTENT_TREE_V2: u64 = 1 << 13;
    /// Where content lies in chunks of some profiles is in the RAID stripe tree.
    pub const RAID_STRIPE_TREE: u64 = 1 << 14;
    /// Simple quotas are kept or were: EXTENT_OWNER_REFs are in the extent tree.
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
    /// The volume has a free-space tree.
    pub const FREE_SPACE_TREE: u64 = 1 << 0;
    /// That tree is right; without this bit it has to be made anew.
    pub const FREE_SPACE_TREE_VALID: u64 = 1 << 1;
    /// Some file has, or had, fs-verity on: its flags and items have to be kept.
    pub const VERITY: u64 = 1 << 2;
    /// Block group items are in a tree of their own.
    pub const BLOCK_GROUP_TREE: u64 = 1 << 3;

    /// Every bit that has a name, as sysfs spells it.
    pub const NAMES: &[(u64, &str)] = &[
        (FREE_SPACE_TREE, "free_space_tree"),
        (FREE_SPACE_TREE_VALID, "free_space_tree_valid"),
        (VERITY, "verity"),
        (BLOCK_GROUP_TREE, "block_group_tree"),
    ];
}
