//! What the caller may choose, and the settled choice with every default filled in.

use super::error::{MkfsError, Result};
use btrfs_disk::ChecksumType;
use btrfs_disk::ids::{NODE_SIZES, compat_ro, incompat};
use btrfs_disk::items::Timespec;

pub(super) const SECTOR: u32 = btrfs_disk::ids::SECTOR_SIZE;

/// How many copies of the metadata there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Profile {
    /// One copy.
    Single,
    /// Two copies on the one device.
    Dup,
}

impl Profile {
    /// How often the device has what is stored so.
    pub fn copies(self) -> u64 {
        match self {
            Profile::Single => 1,
            Profile::Dup => 2,
        }
    }
}

/// What the volume's structures are like, as in `mkfs.btrfs -O`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Holes of files have no items.
    pub no_holes: bool,
    /// Free space is kept in a tree.
    pub free_space_tree: bool,
    /// Needs the two others.
    pub block_group_tree: bool,
}

/// Quota groups that are there from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Quotas {
    /// An extent counts for whoever reaches it.
    Full,
    /// It counts for its first owner alone; kernels before 6.7 refuse the volume.
    Simple,
}

impl Default for Features {
    fn default() -> Features {
        Features { no_holes: true, free_space_tree: true, block_group_tree: false }
    }
}

/// `Default` is what `mkfs.btrfs` does without options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MkfsOptions {
    /// At most 255 bytes, none of them NUL or a line's end.
    pub label: Vec<u8>,
    /// Random where `None`.
    pub uuid: Option<[u8; 16]>,
    /// 4096 to 65536; 16384 where `None`, 4096 with `mixed`.
    pub node_size: Option<u32>,
    /// How nodes and content are checksummed.
    pub csum: ChecksumType,
    /// DUP where `None`, single with `mixed`. With `mixed` data has it too.
    pub metadata_profile: Option<Profile>,
    /// Data and metadata in the same block groups, for small volumes.
    pub mixed: bool,
    /// What the structures are like.
    pub features: Features,
    /// None where `None`.
    pub quotas: Option<Quotas>,
    /// Who owns the top directory.
    pub root_uid: u32,
    /// The group of the top directory.
    pub root_gid: u32,
    /// Permission bits of the top directory.
    pub root_perm: u16,
    /// Tell the device that its old contents are gone.
    pub discard: bool,
    /// Every UUID comes from here and not from the system's randomness: for tests.
    pub seed: Option<u64>,
    /// Now, where `None`.
    pub time: Option<Timespec>,
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions {
            label: Vec::new(),
            uuid: None,
            node_size: None,
            csum: ChecksumType::Crc32c,
            metadata_profile: None,
            mixed: false,
            features: Features::default(),
            quotas: None,
            root_uid: 0,
            root_gid: 0,
            root_perm: 0o755,
            discard: true,
            seed: None,
            time: None,
        }
    }
}

/// Options without gaps and contradictions.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    pub label: [u8; 256],
    pub node_size: u32,
    pub csum: ChecksumType,
    pub profile: Profile,
    pub mixed: bool,
    pub features: Features,
    pub quotas: Option<Quotas>,
    pub root_uid: u32,
    pub root_gid: u32,
    pub root_perm: u16,
    pub discard: bool,
    pub time: Timespec,
}

impl MkfsOptions {
    pub(super) fn settle(&self) -> Result<Settled> {
        let node_size = self.node_size.unwrap_or(if self.mixed { SECTOR } else { 16384 });
        let profile = if self.mixed { Profile::Single } else { Profile::Dup };
        self.check(node_size)?;
        let mut label = [0; 256];
        label[..self.label.len()].copy_from_slice(&self.label);
        Ok(Settled {
            label,
            node_size,
            csum: self.csum,
            profile: self.metadata_profile.unwrap_or(profile),
            mixed: self.mixed,
            features: self.features,
            quotas: self.quotas,
            root_uid: self.root_uid,
            root_gid: self.root_gid,
            root_perm: self.root_perm & 0o7777,
            discard: self.discard,
            time: self.time.unwrap_or_else(now),
        })
    }

    fn check(&self, node_size: u32) -> Result<()> {
        let invalid = |what: String| Err(MkfsError::Invalid(what));
        if !node_size.is_power_of_two() || !NODE_SIZES.contains(&node_size) {
            return invalid(format!("node size {node_size} is none of 4096, 8192 ... 65536"));
        }
        if self.mixed && node_size != SECTOR {
            return invalid(format!("mixed block groups need nodes of {SECTOR} bytes"));
        }
        if self.label.len() > 255 {
            return invalid(format!("label of {} bytes, 255 fit", self.label.len()));
        }
        if self.label.iter().any(|b| matches!(b, 0 | b'\n')) {
            return invalid("label with a NUL or a line's end".into());
        }
        let f = &self.features;
        if f.block_group_tree && !(f.free_space_tree && f.no_holes) {
            return invalid("a block-group tree needs no-holes and the free-space tree".into());
        }
        Ok(())
    }
}

impl Settled {
    pub(super) fn incompat(&self) -> u64 {
        let mut flags =
            incompat::MIXED_BACKREF | incompat::EXTENDED_IREF | incompat::SKINNY_METADATA;
        if self.features.no_holes {
            flags |= incompat::NO_HOLES;
        }
        if self.mixed {
            flags |= incompat::MIXED_GROUPS;
        }
        if self.quotas == Some(Quotas::Simple) {
            flags |= incompat::SIMPLE_QUOTA;
        }
        flags
    }

    pub(super) fn compat_ro(&self) -> u64 {
        let mut flags = 0;
        if self.features.free_space_tree {
            flags |= compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;
        }
        if self.features.block_group_tree {
            flags |= compat_ro::BLOCK_GROUP_TREE;
        }
        flags
    }
}

fn now() -> Timespec {
    let now = vfs::Timestamp::now();
    Timespec { sec: now.secs, nsec: now.nanos }
}
