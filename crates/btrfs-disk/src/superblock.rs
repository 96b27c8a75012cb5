//! The superblock: where every mount begins.
//!
//! Invariant: `parse` accepts only bytes with the magic and a valid checksum; judging
//! whether the volume can be used is the feature gate's work (btrfs-volume).

use crate::checksum::{CSUM_FIELD, ChecksumType};
use crate::error::{Corrupt, Error, Result};
use crate::items::DevItem;
use crate::le::FixedSize;
use crate::le::{index, len32};
use crate::{Generation, Geometry, Logical};

/// Bytes of one copy.
pub const SUPER_SIZE: usize = 4096;
/// `_BHRfS_M` as a little-endian number.
pub const MAGIC: u64 = 0x4D5F_5366_5248_425F;
/// Offsets of the copies on a device, in bytes.
pub const COPIES: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// Bytes that a superblock has for system chunks.
pub const SYS_CHUNK_ARRAY_SIZE: usize = 2048;
/// How many sets of roots a superblock keeps for rescue.
pub const BACKUP_ROOTS: usize = 4;

le_struct! {
    /// The members of the superblock in front of `dev_item`'s followers.
    pub struct SuperFields[811] {
        /// Checksum of all that is behind this field, to the end of the copy.
        csum: [u8; 32],
        /// The volume's UUID, as users see it.
        fsid: [u8; 16],
        /// Where on the device this copy lies, in bytes.
        bytenr: u64,
        /// 1 (written); from bit 32 on what is special: a seed, a dump of metadata alone.
        flags: u64,
        /// [`MAGIC`].
        magic: u64,
        /// The commit that wrote it.
        generation: Generation,
        /// The root node of the root tree.
        root: Logical,
        /// The root node of the chunk tree.
        chunk_root: Logical,
        /// The root node of the tree of log trees; 0: no log is to be replayed.
        log_root: Logical,
        /// No longer used.
        log_root_transid: u64,
        /// Bytes of all devices together.
        total_bytes: u64,
        /// Bytes that trees refer to, in all block groups; copies are not counted.
        bytes_used: u64,
        /// The directory in the root tree that names the default subvolume: 6.
        root_dir_objectid: u64,
        /// Devices that belong to the volume.
        num_devices: u64,
        /// Bytes of a sector.
        sectorsize: u32,
        /// Bytes of a node.
        nodesize: u32,
        /// As `nodesize`: once leaves had a size of their own.
        unused_leafsize: u32,
        /// As `sectorsize`; nothing goes by it.
        stripesize: u32,
        /// Bytes of the array of system chunks that are used.
        sys_chunk_array_size: u32,
        /// The commit that wrote the root node of the chunk tree.
        chunk_root_generation: Generation,
        /// Features that may be there unknown to who reads or writes; none has a name.
        compat_flags: u64,
        /// Features that may be unknown to who only reads: bits of `compat_ro`.
        compat_ro_flags: u64,
        /// Features that must be known: bits of `incompat`.
        incompat_flags: u64,
        /// A [`ChecksumType`] as its number.
        csum_type: u16,
        /// Level of the root tree's root node.
        root_level: u8,
        /// Level of the chunk tree's root node.
        chunk_root_level: u8,
        /// Level of the root node of the tree of log trees.
        log_root_level: u8,
        /// Of the device that this copy lies on.
        dev_item: DevItem,
        /// The user's name for the volume; it ends at the first zero.
        label: [u8; 256],
        /// The commit that the version 1 space cache is of; 0 or `u64::MAX`: there is none.
        cache_generation: u64,
        /// The last commit by one who keeps the UUID tree; if it is not `generation` that may be
        /// wrong.
        uuid_tree_generation: u64,
        /// The UUID in node headers, with METADATA_UUID; else zeros.
        metadata_uuid: [u8; 16],
        /// How many extent trees there are, with EXTENT_TREE_V2; else 0.
        nr_global_roots: u64,
        /// Nobody's yet: zeros.
        reserved: [u8; 216],
    }
}

le_struct! {
    /// One of four sets of roots of recent commits, for rescue.
    pub struct RootBackup[168] {
        /// The root node of the root tree.
        tree_root: Logical,
        /// The commit that wrote that node, and that the whole set is of.
        tree_root_gen: Generation,
        /// The root node of the chunk tree.
        chunk_root: Logical,
        /// The commit that wrote that node.
        chunk_root_gen: Generation,
        /// The root node of the extent tree.
        extent_root: Logical,
        /// The commit that wrote that node.
        extent_root_gen: Generation,
        /// The root node of the top level subvolume.
        fs_root: Logical,
        /// The commit that wrote that node.
        fs_root_gen: Generation,
        /// The root node of the device tree.
        dev_root: Logical,
        /// The commit that wrote that node.
        dev_root_gen: Generation,
        /// The root node of the checksum tree.
        csum_root: Logical,
        /// The commit that wrote that node.
        csum_root_gen: Generation,
        /// The superblock's member of that commit, in bytes.
        total_bytes: u64,
        /// The superblock's member of that commit, in bytes.
        bytes_used: u64,
        /// The superblock's member of that commit.
        num_devices: u64,
        /// Nobody's yet: zeros.
        unused: [u8; 32],
        /// Level of the root tree's root node.
        tree_root_level: u8,
        /// Level of the chunk tree's root node.
        chunk_root_level: u8,
        /// Level of the extent tree's root node.
        extent_root_level: u8,
        /// Level of the top level subvolume's root node.
        fs_root_level: u8,
        /// Level of the device tree's root node.
        dev_root_level: u8,
        /// Level of the checksum tree's root node.
        csum_root_level: u8,
        /// Nobody's yet: zeros.
        unused_8: [u8; 10],
    }
}

/// Where the magic lies in a superblock: behind checksum, UUID, address and flags.
pub const MAGIC_AT: usize = 64;
const ARRAY_AT: usize = SuperFields::SIZE;
const BACKUPS_AT: usize = ARRAY_AT + SYS_CHUNK_ARRAY_SIZE;
/// Where the unused end begins.
pub const TAIL_AT: usize = BACKUPS_AT + BACKUP_ROOTS * RootBackup::SIZE;

/// One copy of the superblock, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// All that stands in front of the system chunks.
    pub fields: SuperFields,
    /// (key, chunk item) pairs of the SYSTEM chunks; exactly `sys_chunk_array_size` bytes.
    pub sys_chunks: Vec<u8>,
    /// Roots of recent commits; who writes a commit replaces the oldest.
    pub backups: [RootBackup; BACKUP_ROOTS],
    /// Bytes behind the backups, carried unchanged.
    pub tail: Vec<u8>,
}

impl Superblock {
    /// Takes the bytes of one copy; checks magic, checksum and its own offset.
    pub fn parse(bytes: &[u8], at: u64) -> Result<Superblock> {
        if bytes.len() < SUPER_SIZE {
            return Err(Error::corrupt("superblock is cut short"));
        }
        let bytes = &bytes[..SUPER_SIZE];
        let fields = SuperFields::read(bytes)?;
        if fields.magic != MAGIC {
            return Err(Error::corrupt(format!("no btrfs superblock at offset {at}")));
        }
        let csum = ChecksumType::from_disk(fields.csum_type)?;
        if csum.digest(&bytes[CSUM_FIELD..])[..csum.size()] != fields.csum[..csum.size()] {
            return Err(Error::corrupt(format!("superblock at offset {at} fails its checksum")));
        }
        if fields.bytenr != at {
            return Err(Error::corrupt(format!(
                "superblock at offset {at} says that it belongs at {}",
                fields.bytenr
            )));
        }
        let used = index(fields.sys_chunk_array_size);
        if used > SYS_CHUNK_ARRAY_SIZE {
            return Err(Corrupt::new(format!("system chunk array of {used} bytes")).into());
        }
        let mut backups = [RootBackup::default(); BACKUP_ROOTS];
        for (i, backup) in backups.iter_mut().enumerate() {
            *backup = RootBackup::read(&bytes[BACKUPS_AT + i * RootBackup::SIZE..])?;
        }
        Ok(Superblock {
            fields,
            sys_chunks: bytes[ARRAY_AT..ARRAY_AT + used].to_vec(),
            backups,
            tail: bytes[TAIL_AT..].to_vec(),
        })
    }

    /// The bytes of the copy at offset `at`, with its checksum.
    pub fn to_bytes(&self, at: u64) -> Result<Vec<u8>> {
        let csum = ChecksumType::from_disk(self.fields.csum_type)?;
        let mut out = vec![0; SUPER_SIZE];
        let mut fields = self.fields;
        fields.bytenr = at;
        fields.sys_chunk_array_size = len32(self.sys_chunks.len());
        fields.write(&mut out);
        out[ARRAY_AT..ARRAY_AT + self.sys_chunks.len()].copy_from_slice(&self.sys_chunks);
        for (i, backup) in self.backups.iter().enumerate() {
            backup.write(&mut out[BACKUPS_AT + i * RootBackup::SIZE..]);
        }
        out[TAIL_AT..TAIL_AT + self.tail.len()].copy_from_slice(&self.tail);
        csum.seal(&mut out);
        Ok(out)
    }

    /// The commit that it is the end of.
    pub fn generation(&self) -> Generation {
        self.fields.generation
    }

    /// The UUID that node headers carry.
    pub fn header_uuid(&self) -> [u8; 16] {
        if self.fields.incompat_flags & crate::ids::incompat::METADATA_UUID != 0 {
            self.fields.metadata_uuid
        } else {
            self.fields.fsid
        }
    }

    /// `chunk_tree_uuid` is not in the superblock; nodes tell it, zeros until then.
    pub fn geometry(&self) -> Result<Geometry> {
        Ok(Geometry {
            sector_size: self.fields.sectorsize,
            node_size: self.fields.nodesize,
            csum: ChecksumType::from_disk(self.fields.csum_type)?,
            metadata_uuid: self.header_uuid(),
            chunk_tree_uuid: [0; 16],
        })
    }

    /// The user's name for the volume, without the zeros behind it; any bytes.
    pub fn label(&self) -> &[u8] {
        let label = &self.fields.label;
        &label[..label.iter().position(|b| *b == 0).unwrap_or(label.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        let fields = SuperFields {
            fsid: [3; 16],
            metadata_uuid: [4; 16],
            magic: MAGIC,
            generation: Generation(9),
            sectorsize: 4096,
            nodesize: 16384,
            csum_type: 1,
            sys_chunk_array_size: 5,
            ..SuperFields::default()
        };
        let tail = vec![6; SUPER_SIZE - TAIL_AT];
        let sys_chunks = vec![1, 2, 3, 4, 5];
        Superblock { fields, sys_chunks, backups: [RootBackup::default(); BACKUP_ROOTS], tail }
    }

    #[test]
    fn every_copy_comes_back() {
        for at in COPIES {
            let mut expected = sample();
            let found = Superblock::parse(&expected.to_bytes(at).unwrap(), at).expect("good");
            expected.fields.bytenr = at;
            expected.fields.csum = found.fields.csum;
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn metadata_uuid_counts_only_with_its_feature() {
        let mut superblock = sample();
        assert_eq!(superblock.header_uuid(), [3; 16]);
        superblock.fields.incompat_flags = crate::ids::incompat::METADATA_UUID;
        assert_eq!(superblock.header_uuid(), [4; 16]);
    }

    #[test]
    fn damage_is_refused() {
        let good = sample().to_bytes(COPIES[0]).unwrap();
        let says = |bytes: &[u8], at| Superblock::parse(bytes, at).unwrap_err().to_string();
        assert!(says(&good[..4095], COPIES[0]).contains("cut short"));
        assert!(says(&good, COPIES[1]).contains("belongs at 65536"));
        for at in (32..SUPER_SIZE).step_by(61) {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(Superblock::parse(&bad, COPIES[0]).is_err(), "byte {at}");
        }
        let mut long = sample();
        long.fields.csum_type = 4;
        assert!(long.to_bytes(0).is_err());
    }
}
