//! Every kind of finding: its data, how bad it is, its words, and what to do about it.
//!
//! `code()` is the stable name for scripts; the words may change.

use btrfs_disk::items::QGROUP_LEVEL_SHIFT;
use btrfs_disk::{Key, TreeId};
use std::fmt;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Odd, and harmless to every reader and writer.
    Note,
    /// A spare copy or a hint is damaged; no content and no structure is lost.
    Warning,
    /// The volume contradicts itself or lost something.
    Error,
}

impl Severity {
    /// In lower case, as scripts read it.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// Who holds a reference on an extent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Owner {
    /// A tree, for a tree block.
    Tree {
        /// Its number.
        root: TreeId,
    },
    /// A parent block, for a tree block.
    SharedTree {
        /// The block's logical address.
        parent: u64,
    },
    /// A file of a tree, for data.
    Data {
        /// The tree's number.
        root: TreeId,
        /// The file's number in it.
        ino: u64,
        /// Where in the file the extent's first byte would be, in bytes.
        offset: u64,
    },
    /// A leaf, for data.
    SharedData {
        /// The leaf's logical address.
        parent: u64,
    },
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Tree { root } => write!(f, "tree {}", root.0 as i64),
            Owner::SharedTree { parent } => write!(f, "parent block {parent}"),
            Owner::Data { root, ino, offset } => {
                write!(f, "tree {} inode {ino} offset {}", root.0 as i64, *offset as i64)
            }
            Owner::SharedData { parent } => write!(f, "leaf {parent}"),
        }
    }
}

/// A quota group, told as `1/100`: its level and its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Group(pub u64);

impl Group {
    pub(crate) fn level(self) -> u64 {
        self.0 >> QGROUP_LEVEL_SHIFT
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level(), self.0 & ((1 << QGROUP_LEVEL_SHIFT) - 1))
    }
}

/// A file's name as text: bytes that are no UTF-8 are shown escaped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name(pub Vec<u8>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

pub(crate) mod remedy {
    pub(super) const MOUNT: &str = "mounting the volume read-write rewrites it";
    pub(super) const SCRUB: &str =
        "the good copy serves reads; a read-write scrub rewrites the bad one";
    pub(super) const RESTORE: &str =
        "save what can be read, then restore the rest from a backup; do not mount it read-write";
    pub(super) const REPAIR: &str =
        "do not mount it read-write; save its content, then `btrfs check --repair` on a copy";
    pub(crate) const REBUILD_FREE_SPACE: &str =
        "make the free-space tree anew: `spinney rescue clear-space-cache IMAGE`";
    pub(crate) const FORGET_UUIDS: &str =
        "let the next mount make the UUID tree anew: `spinney rescue clear-uuid-tree IMAGE`";
    pub(crate) const END_QUOTAS: &str =
        "end quotas, and begin them anew: `spinney rescue clear-quotas IMAGE`";
    pub(crate) const RECOVER_SUPER: &str = "write it anew before anything else, since the kernel mounts by it alone: \
         `spinney btrfs rescue super-recover -y IMAGE`";
    pub(crate) const FORGET_LOG: &str = "give the log up, and with it what was fsynced after the last commit: `spinney rescue zero-log IMAGE`; \
         before that `mount -o ro,nologreplay` shows the same";
    pub(super) const COPY_FILE: &str =
        "copy the file aside; if that tells of no error, delete it and put the copy in its place";
    pub(super) const COPY_UNVERIFIED: &str = "without a checksum it reads as damaged: copy the file aside by `spinney cp --rescue ignoredatacsums \
         IMAGE:/PATH FILE`, see that the copy is right, and only then put it in the file's place";
    pub(super) const RESTORE_FILE: &str = "restore the file from a backup or another snapshot";
    pub(super) const LINK_ANEW: &str = "delete it; where it led a crash took";
    pub(super) const RESCAN_QUOTA: &str = "mount it and count anew: `btrfs quota rescan -w`";
    pub(super) const UNCOUNTED: &str =
        "this is no damage; `btrfs qgroup show` on a mount tells what the kernel counts";
    pub(super) const BEGIN_QUOTA_ANEW: &str =
        "mount it, disable quotas and enable them anew: they count what is written from then on";
    pub(super) const COUNT_ANEW: &str =
        "mount it, disable quotas and enable them anew, and set groups and limits again";
    pub(super) const REMOVE_RELATION: &str =
        "take the relation away: `spinney qgroup remove CHILD PARENT PATH`, then count anew";
    pub(super) const LIMIT_ANEW: &str =
        "nothing limits it; setting a limit makes the item: `spinney qgroup limit`";
    pub(super) const DROP_REST: &str =
        "do not mount it with the kernel; Spinney deletes the rest by what the extents say of it";
    pub(super) const RECEIVED: &str = "do not base an incremental send or receive on it";
    pub(super) const HARMLESS: &str = "nothing needs to be done";
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $code:literal $severity:ident $remedy:ident
        $name:ident $({ $($field:ident: $ty:ty),* $(,)? })? => $text:literal;)*) => {
        #[derive(Clone, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        /// What can be wrong. Each kind's words are its documentation, and its data is what stands
        /// in them; addresses and lengths are bytes.
        pub enum FindingKind {
            $(
                $(#[$doc])*
                #[doc = $text]
                $name $({ $(
                    #[doc = concat!("What the words above have as `{", stringify!($field), "}`.")]
                    $field: $ty,
                )* })?,
            )*
        }

        impl FindingKind {
            /// The stable name for scripts.
            pub fn code(&self) -> &'static str {
                match self { $(FindingKind::$name { .. } => $code,)* }
            }

            /// How bad it is.
            pub fn severity(&self) -> Severity {
                match self { $(FindingKind::$name { .. } => Severity::$severity,)* }
            }

            /// What the operator can do about it.
            pub fn remedy(&self) -> &'static str {
                match self { $(FindingKind::$name { .. } => remedy::$remedy,)* }
            }
        }

        impl fmt::Display for FindingKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(FindingKind::$name $({ $($field),* })? => write!(f, $text),)*
                }
            }
        }
    };
}

kinds! {
    // Superblocks.
    "super-copy-bad" Warning MOUNT SuperCopyBad { offset: u64, why: String }
        => "superblock copy at offset {offset}: {why}";
    "super-copy-stale" Warning MOUNT SuperCopyStale { offset: u64, generation: u64, newest: u64 }
        => "superblock copy at offset {offset} is of generation {generation}, not {newest}";
    "super-bytes-used" Error REPAIR SuperBytesUsed { stored: u64, counted: u64 }
        => "superblock says {stored} bytes used, extents sum to {counted}";
    "super-total-bytes" Error REPAIR SuperTotalBytes { stored: u64, devices: u64 }
        => "superblock says {stored} bytes in total, its device item says {devices}";
    "super-stripe-size" Error REPAIR SuperStripeSize { stored: u32, sector: u32 }
        => "superblock says stripes of {stored} bytes, not of its sectors' {sector}";
    "truncated" Error RESTORE Truncated { missing: u64 }
        => "the device ends {missing} bytes before the volume does";
    "super-num-devices" Warning MOUNT SuperNumDevices { stored: u64, counted: u64 }
        => "superblock counts {stored} devices, the chunk tree has {counted}";
    "system-chunk-not-in-super" Error REPAIR SystemChunkNotInSuper { chunk: u64 }
        => "system chunk {chunk} is not in the superblock, or is another one there";
    "super-chunk-stray" Error REPAIR SuperChunkStray { chunk: u64 }
        => "the superblock has a system chunk {chunk} that the chunk tree does not have";

    // Nodes and items.
    "node-copy-bad" Warning SCRUB NodeCopyBad { copy: usize, why: String }
        => "copy {copy} of a tree block is damaged: {why}";
    "node-unreadable" Error RESTORE NodeUnreadable { level: u8, why: String }
        => "no good copy of a tree block of level {level}: {why}";
    "node-placement" Error REPAIR NodePlacement { why: String }
        => "tree block does not fit its place: {why}";
    "node-flags" Warning HARMLESS NodeFlags { flags: u64 }
        => "tree block has flags {flags:#x} that mean nothing";
    "item-malformed" Error REPAIR ItemMalformed { why: String } => "{why}";
    "item-unknown" Warning HARMLESS ItemUnknown => "an item that has no meaning in this tree";

    // Chunks, devices, block groups.
    "chunk-without-block-group" Error REPAIR ChunkWithoutBlockGroup => "chunk without a block group";
    "block-group-without-chunk" Error REPAIR BlockGroupWithoutChunk => "block group without a chunk";
    "block-group-differs" Error REPAIR BlockGroupDiffers { why: String }
        => "block group differs from its chunk: {why}";
    "block-group-used" Error REPAIR BlockGroupUsed { stored: u64, counted: u64 }
        => "block group says {stored} bytes used, its extents sum to {counted}";
    "dev-extent-missing" Error REPAIR DevExtentMissing { devid: u64, physical: u64 }
        => "chunk's stripe at {physical} of device {devid} has no device extent";
    "dev-extent-stray" Error REPAIR DevExtentStray { devid: u64, physical: u64, chunk: u64 }
        => "device extent at {physical} of device {devid} belongs to no stripe of chunk {chunk}";
    "dev-extents-overlap" Error REPAIR DevExtentsOverlap { devid: u64, physical: u64 }
        => "device extent at {physical} of device {devid} overlaps the one in front of it";
    "dev-extent-beyond-device" Error REPAIR DevExtentBeyondDevice { devid: u64, physical: u64 }
        => "device extent at {physical} reaches beyond the end of device {devid}";
    "device-item-missing" Error REPAIR DeviceItemMissing { devid: u64 }
        => "device {devid} has no device item";
    "device-item-bad" Error REPAIR DeviceItemBad { devid: u64, why: String }
        => "device {devid}: {why}";
    "device-bytes-used" Error REPAIR DeviceBytesUsed { devid: u64, stored: u64, counted: u64 }
        => "device {devid} says {stored} bytes used, its device extents sum to {counted}";

    // Extents and references.
    "extent-missing" Error REPAIR ExtentMissing { len: u64, references: u64 }
        => "extent of {len} bytes is in use by {references} references and not in the extent tree";
    "extent-unreferenced" Error REPAIR ExtentUnreferenced { len: u64, stored: u64 }
        => "extent of {len} bytes has {stored} references in the extent tree, and nobody uses it";
    "reference-missing" Error REPAIR ReferenceMissing { owner: Owner, counted: u64 }
        => "extent lacks a back-reference to {owner} (which uses it {counted} times)";
    "reference-stray" Error REPAIR ReferenceStray { owner: Owner, stored: u64 }
        => "extent has a back-reference of count {stored} to {owner}, which does not use it";
    "reference-count" Error REPAIR ReferenceCount { owner: Owner, stored: u64, counted: u64 }
        => "extent's back-reference to {owner} has count {stored}, it is used {counted} times";
    "extent-ref-total" Error REPAIR ExtentRefTotal { stored: u64, sum: u64 }
        => "extent item says {stored} references, its back-references sum to {sum}";
    "extent-flags" Error REPAIR ExtentFlags { flags: u64, why: String }
        => "extent item has flags {flags:#x}: {why}";
    "extent-length" Error REPAIR ExtentLength { stored: u64, used: u64 }
        => "extent is {stored} bytes long in the extent tree, a reference says {used}";
    "extent-level" Error REPAIR ExtentLevel { stored: u8, used: u8 }
        => "tree block is of level {stored} in the extent tree, of level {used} in its tree";
    "extents-overlap" Error REPAIR ExtentsOverlap { other: u64 }
        => "extent overlaps the one at {other}";
    "extent-placement" Error REPAIR ExtentPlacement { why: String } => "extent {why}";
    "reference-without-extent" Error REPAIR ReferenceWithoutExtent
        => "back-reference to an extent that is not in the extent tree";

    // Free space.
    "free-space-info-missing" Error REBUILD_FREE_SPACE FreeSpaceInfoMissing
        => "block group has no entry in the free-space tree";
    "free-space-stray" Error REBUILD_FREE_SPACE FreeSpaceStray
        => "free-space entry that lies outside of its block group or has other bounds";
    "free-space-left" Note HARMLESS FreeSpaceLeft
        => "free-space entry of a block group that is gone";
    "free-space-count" Error REBUILD_FREE_SPACE FreeSpaceCount { stored: u64, counted: u64 }
        => "free-space entry says {stored} extents, there are {counted}";
    "free-space-in-use" Error REBUILD_FREE_SPACE FreeSpaceInUse { len: u64 }
        => "{len} bytes are listed as free and are in use: writing would destroy data";
    "free-space-not-listed" Error REBUILD_FREE_SPACE FreeSpaceNotListed { len: u64 }
        => "{len} free bytes are not in the free-space tree";
    "free-space-overlap" Error REBUILD_FREE_SPACE FreeSpaceOverlap
        => "free extent overlaps the one in front of it";

    // Checksums.
    "csum-missing" Error COPY_UNVERIFIED CsumMissing { ino: u64, len: u64 }
        => "{len} bytes of inode {ino} have no checksum";
    "csum-stray" Error REPAIR CsumStray { len: u64 }
        => "checksums of {len} bytes that belong to no extent";
    "csum-overlap" Error REPAIR CsumOverlap
        => "checksum item overlaps the one in front of it";
    "csum-odd" Error COPY_FILE CsumOdd { ino: u64 }
        => "inode {ino} is marked to have no checksums, and has some";
    "csum-unwritten" Error REPAIR CsumUnwritten { ino: u64 }
        => "preallocated extent of inode {ino} was never written, and has checksums";
    "data-copy-bad" Warning SCRUB DataCopyBad { copy: usize, len: u64 }
        => "{len} bytes of data fail their checksum in copy {copy}; another copy is good";
    "data-unreadable" Error RESTORE_FILE DataUnreadable { len: u64, why: String }
        => "{len} bytes of data have no good copy: {why}";

    "data-cut" Error RESTORE_FILE DataCut { ino: u64, from: u64, len: u64 }
        => "inode {ino}: {len} bytes from {from} on lie behind the end of the device";

    // Inodes.
    "inode-missing" Error REPAIR InodeMissing { ino: u64 } => "inode {ino} has no inode item";
    "inode-bad" Error REPAIR InodeBad { ino: u64, why: String } => "inode {ino}: {why}";
    "verity-bad" Error RESTORE_FILE VerityBad { ino: u64, why: String }
        => "inode {ino} cannot be read, since fs-verity cannot verify it: {why}";
    "verity-content" Error RESTORE_FILE VerityContent { ino: u64, from: u64, len: u64 }
        => "inode {ino}: {len} bytes from {from} on are not what fs-verity says";
    "verity-tree" Error RESTORE_FILE VerityTree { ino: u64, at: u64 }
        => "inode {ino}: its fs-verity tree is damaged at byte {at}: what that is about cannot be read";
    "link-count" Error REPAIR LinkCount { ino: u64, stored: u64, counted: u64 }
        => "inode {ino} says {stored} links, it has {counted} names";
    "orphan-item-missing" Error REPAIR OrphanItemMissing { ino: u64 }
        => "inode {ino} has no name and no orphan item: its space is lost";
    "inode-ref-missing" Error REPAIR InodeRefMissing { dir: u64, ino: u64, name: Name }
        => "directory {dir} has {name}, inode {ino} has no reference for it";
    "dir-item-missing" Error REPAIR DirItemMissing { dir: u64, ino: u64, name: Name }
        => "directory {dir} has no hash entry for {name} of inode {ino}";
    "dir-index-missing" Error REPAIR DirIndexMissing { dir: u64, ino: u64, name: Name }
        => "directory {dir} has no index entry for {name} of inode {ino}";
    "dir-entry-differs" Error REPAIR DirEntryDiffers { dir: u64, name: Name, why: String }
        => "directory {dir}, {name}: {why}";
    "name-duplicate" Error REPAIR NameDuplicate { dir: u64, name: Name }
        => "directory {dir} has {name} twice";
    "dir-size" Error REPAIR DirSize { ino: u64, stored: u64, counted: u64 }
        => "directory {ino} has size {stored}, its names make {counted}";
    "dir-links" Error REPAIR DirLinks { ino: u64, links: u64 }
        => "directory {ino} has {links} names";
    "file-bytes" Error REPAIR FileBytes { ino: u64, stored: u64, counted: u64 }
        => "inode {ino} says {stored} bytes allocated, its extents sum to {counted}";
    "file-extents-overlap" Error RESTORE_FILE FileExtentsOverlap { ino: u64, end: u64 }
        => "inode {ino}: file extent overlaps the one in front of it, which ends at {end}";
    "file-extent-bad" Warning COPY_FILE FileExtentBad { ino: u64, why: String }
        => "inode {ino}: file extent {why}";
    "file-gap" Error REPAIR FileGap { ino: u64, from: u64, to: u64 }
        => "inode {ino} has no extent, not even a hole, from {from} to {to}";
    "file-extent-beyond-end" Note HARMLESS FileExtentBeyondEnd { ino: u64, size: u64 }
        => "inode {ino} has written extents behind its size of {size}";
    "symlink-empty" Note LINK_ANEW SymlinkEmpty { ino: u64 }
        => "symbolic link {ino} leads nowhere";
    "ram-bytes" Note HARMLESS RamBytes { ino: u64, stored: u64, len: u64 }
        => "inode {ino}: extent of {len} bytes that is not compressed says {stored} in memory";
    "item-of-wrong-type" Error REPAIR ItemOfWrongType { ino: u64, why: String }
        => "inode {ino}: {why}";

    // Subvolumes.
    "tree-missing" Error RESTORE TreeMissing { what: String } => "there is no {what}";
    "received-writable" Warning RECEIVED ReceivedWritable { subvolume: TreeId }
        => "subvolume {subvolume} was received and has been made writable";
    "root-bad" Error REPAIR RootBad { why: String } => "root item: {why}";
    "root-ref-missing" Error REPAIR RootRefMissing { parent: TreeId, child: TreeId }
        => "subvolume {child} says that it is in {parent}, which does not say so";
    "root-backref-missing" Error REPAIR RootBackrefMissing { parent: TreeId, child: TreeId }
        => "subvolume {parent} says that it holds {child}, which does not say so";
    "root-ref-differs" Error REPAIR RootRefDiffers { parent: TreeId, child: TreeId }
        => "subvolumes {parent} and {child} disagree about the name between them";
    "root-entry-missing" Error REPAIR RootEntryMissing { dir: u64, child: TreeId, name: Name }
        => "directory {dir} has no entry {name} for subvolume {child}";
    "subvolume-unreachable" Error REPAIR SubvolumeUnreachable { child: TreeId }
        => "subvolume {child} cannot be reached from the top level and is not being deleted";
    "drop-progress" Error DROP_REST DropProgress { why: String }
        => "its deletion cannot have come to where it is said to be: {why}";
    "root-orphan-missing" Error REPAIR RootOrphanMissing { child: TreeId }
        => "subvolume {child} is deleted and nobody is told to free it";
    "default-subvolume-bad" Error REPAIR DefaultSubvolumeBad { why: String }
        => "default subvolume: {why}";
    "qgroup-count" Warning RESCAN_QUOTA QgroupCount {
        level: u64,
        id: u64,
        referenced: u64,
        exclusive: u64,
        really_referenced: u64,
        really_exclusive: u64,
    } => "quota group {level}/{id} says {referenced} bytes referenced and {exclusive} exclusive, \
          its subvolumes reach {really_referenced} and {really_exclusive}";
    "qgroup-owned" Warning BEGIN_QUOTA_ANEW QgroupOwned {
        level: u64,
        id: u64,
        referenced: u64,
        exclusive: u64,
        owned: u64,
    } => "simple quota group {level}/{id} says {referenced} bytes referenced and {exclusive} exclusive, \
          its subvolumes own {owned}";
    "qgroup-missing" Warning BEGIN_QUOTA_ANEW QgroupMissing { id: u64, owned: u64 }
        => "subvolume {id} owns {owned} bytes and has no simple quota group";
    "qgroup-uncounted" Note COUNT_ANEW QgroupUncounted { subvolume: TreeId }
        => "subvolume {subvolume} has no quota group: nothing counts what it has";
    "qgroup-relation-stray" Warning REMOVE_RELATION QgroupRelationStray { child: Group, parent: Group, absent: Group }
        => "quota group {child} is said to be in {parent}, and there is no {absent}";
    "qgroup-relation-half" Warning REMOVE_RELATION QgroupRelationHalf { from: Group, to: Group }
        => "quota group {from} names {to}, which does not name it";
    "qgroup-relation-level" Warning REMOVE_RELATION QgroupRelationLevel { child: Group, parent: Group }
        => "quota group {child} is said to be in {parent}, whose level is not higher";
    "qgroup-limit-alone" Warning COUNT_ANEW QgroupLimitAlone { group: Group }
        => "there is a limit for quota group {group}, which does not exist";
    "qgroup-limit-missing" Note LIMIT_ANEW QgroupLimitMissing { group: Group }
        => "quota group {group} has no item for its limit";
    "sharing-uncounted" Note UNCOUNTED SharingUncounted
        => "subvolumes share in more ways than are counted: what quota groups hold is not looked at";
    "extent-owner-missing" Warning BEGIN_QUOTA_ANEW ExtentOwnerMissing
        => "content of after simple quotas began does not say who wrote it first";
    "simple-quota-flag" Warning BEGIN_QUOTA_ANEW SimpleQuotaFlag
        => "simple quotas are kept, and the superblock does not say so";
    "uuid-missing" Note FORGET_UUIDS UuidMissing { subvolume: TreeId }
        => "subvolume {subvolume} is not in the UUID tree";
    "uuid-stray" Note FORGET_UUIDS UuidStray { key: Key } => "UUID tree entry {key} has no subvolume";
}
