//! What is on a medium already: the marks by which file systems, swap, partition tables and
//! what volumes are built from (RAID, LVM, encryption) are known, from their published formats.
//!
//! For who is about to overwrite it, so a mark alone counts, checksums do not: half of something is
//! reason enough to ask. What cannot be read, or lies behind the end, has no mark.
//!
//! Not known here: file systems that few have (`blkid -p` knows them), and what marks only
//! content has.

use blockdev::BlockDevice;
use btrfs_disk::superblock::{COPIES, MAGIC, MAGIC_AT, SUPER_SIZE};

/// Where it is, what it is, and what has it.
type Mark = (u64, &'static [u8], &'static str);

const SWAP: &str = "a swap area";
const HIBERNATED: &str = "a swap area with a machine that hibernates";
const LVM: &str = "a physical volume of LVM2";
const LUKS: &str = "an encrypted volume (LUKS)";
const RAID: &str = "a member of a Linux software RAID (md)";
const ZFS: &str = "a member of a ZFS pool";
const GPT: &str = "a partition table (GPT)";
const FAT: &str = "a FAT file system";
const F2FS: &str = "an F2FS file system";
const UFS: &str = "a UFS file system";

/// What a boot sector may stand in front of comes first, the boot sector last.
const MARKS: &[Mark] = &[
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0, b"LUKS\xba\xbe", LUKS),
    (0, b"dmvdo001", "a VDO volume"),
    (0, b"integrt\0", "a volume of dm-integrity"),
    (0, b"bluestore block device", "a Ceph BlueStore device"),
    (0, b"hsqs", "a SquashFS file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (3, b"ReFS\0\0\0\0", "a ReFS file system"),
    (3, b"-FVE-FS-", "an encrypted volume (BitLocker)"),
    (32, b"NXSB", "an APFS container"),
    (54, b"FAT12   ", FAT),
    (54, b"FAT16   ", FAT),
    (82, b"FAT32   ", FAT),
    (1024, b"\x10\x20\xf5\xf2", F2FS),
    (4096 + 1024, b"\x10\x20\xf5\xf2", F2FS),
    (1024, b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    (1024, b"H+\0\x04", "an HFS+ file system"),
    (1024, b"HX\0\x05", "an HFS+ file system"),
    (1024 + 6, b"\x34\x34", "a NILFS2 file system"),
    (4096 + 24, &BCACHE, "a bcache device"),
    (4096 + 24, &BCACHEFS, "a bcachefs file system"),
    (8192 + 1372, b"\x54\x19\x01\0", UFS),
    (8192 + 1372, b"\0\x01\x19\x54", UFS),
    (65536 + 1372, b"\x19\x01\x54\x19", UFS),
    (65536 + 1372, b"\x19\x54\x01\x19", UFS),
    (32768, b"JFS1", "a JFS file system"),
    (32769, b"CD001", "an ISO 9660 file system"),
    (32769, b"BEA01", "a UDF file system"),
    (65536, b"\x01\x16\x19\x70", "a GFS2 file system"),
    (65536 + 52, b"ReIsEr", "a ReiserFS file system"),
    (512, b"EFI PART", GPT),
    (4096, b"EFI PART", GPT),
    (510, b"\x55\xaa", "a partition table or a boot sector"),
];

const BCACHE: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];
const BCACHEFS: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef,
];

const MD_MAGIC: u32 = 0xa92b_4efc;
const ZFS_LABEL: u64 = 256 << 10;
/// The uberblocks of a label: its second half, at least 1 KiB each.
const UBERBLOCKS: u64 = 128 << 10;
const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;

/// What is there, to be said in "there is ... on it".
pub fn found(device: &dyn BlockDevice) -> Option<&'static str> {
    let medium = Medium(device);
    medium
        .btrfs()
        .or_else(|| medium.lvm())
        .or_else(|| medium.raid())
        .or_else(|| medium.swap())
        .or_else(|| medium.zfs())
        .or_else(|| medium.second_luks())
        // In front of the others a partition table may stand, as on an image that boots.
        .or_else(|| MARKS.iter().find(|(at, mark, _)| medium.has(*at, mark)).map(|m| m.2))
        .or_else(|| medium.end_of_gpt())
}

struct Medium<'a>(&'a dyn BlockDevice);

impl Medium<'_> {
    fn read(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        let end = at.checked_add(len as u64)?;
        let mut bytes = vec![0; len];
        (end <= self.0.len() && self.0.read_at(at, &mut bytes).is_ok()).then_some(bytes)
    }

    fn has(&self, at: u64, mark: &[u8]) -> bool {
        self.read(at, mark.len()).as_deref() == Some(mark)
    }

    /// Whoever wiped the first superblock alone can have his volume back from the others.
    fn btrfs(&self) -> Option<&'static str> {
        let is_one = |at: u64| {
            let sb = self.read(at, SUPER_SIZE);
            sb.is_some_and(|sb| sb[MAGIC_AT..].starts_with(&MAGIC.to_le_bytes()))
        };
        match COPIES.iter().position(|at| is_one(*at))? {
            0 => Some("a btrfs volume"),
            _ => Some("a btrfs volume (a copy of its superblock; the first one is gone)"),
        }
    }

    /// The label is in one of the first four sectors.
    fn lvm(&self) -> Option<&'static str> {
        let is_label = |at: u64| self.has(at, b"LABELONE") && self.has(at + 24, b"LVM2 001");
        (0..4).any(|sector| is_label(sector * 512)).then_some(LVM)
    }

    /// Ends the first page, whatever the machine's pages are.
    fn swap(&self) -> Option<&'static str> {
        let marks: [(&[u8], _); 5] = [
            (b"SWAPSPACE2", SWAP),
            (b"SWAP-SPACE", SWAP),
            (b"S1SUSPEND\0", HIBERNATED),
            (b"S2SUSPEND\0", HIBERNATED),
            (b"ULSUSPEND\0", HIBERNATED),
        ];
        let ends = (12..=16).map(|bits| self.read((1 << bits) - 10, 10));
        let which = |end: Vec<u8>| marks.iter().find(|(mark, _)| *mark == end).map(|m| m.1);
        ends.flatten().find_map(which)
    }

    /// 1.1 is at the beginning, 1.2 behind 4 KiB, 1.0 and 0.90 near the end.
    fn raid(&self) -> Option<&'static str> {
        let len = self.0.len();
        let newer = [Some(0), Some(4096), len.checked_sub(8192).map(|at| at & !4095)];
        let old = (len & !0xffff).checked_sub(0x1_0000);
        let of_newer = [MD_MAGIC.to_le_bytes(), 1u32.to_le_bytes()].concat();
        let has = |at: u64, mark: &[u8]| self.has(at, mark);
        let is_old = |at: u64| has(at, &MD_MAGIC.to_le_bytes()) || has(at, &MD_MAGIC.to_be_bytes());
        let is_there = newer.into_iter().flatten().any(|at| has(at, &of_newer));
        (is_there || old.is_some_and(is_old)).then_some(RAID)
    }

    /// Two labels at the beginning, two at the end.
    fn zfs(&self) -> Option<&'static str> {
        let end = self.0.len() / ZFS_LABEL * ZFS_LABEL;
        let of_end = [2, 1].map(|labels| end.checked_sub(labels * ZFS_LABEL));
        let labels = [Some(0), Some(ZFS_LABEL)].into_iter().chain(of_end).flatten();
        let marks = [UBERBLOCK_MAGIC.to_le_bytes(), UBERBLOCK_MAGIC.to_be_bytes()];
        let has_one = |label: u64| {
            let ring = self.read(label + UBERBLOCKS, UBERBLOCKS as usize).unwrap_or_default();
            ring.chunks(1024).any(|block| marks.iter().any(|mark| block.starts_with(mark)))
        };
        labels.into_iter().any(has_one).then_some(ZFS)
    }

    /// LUKS2 has a second header, behind a first one of 16 KiB to 4 MiB.
    fn second_luks(&self) -> Option<&'static str> {
        (14..=22).any(|bits| self.has(1 << bits, b"SKUL\xba\xbe")).then_some(LUKS)
    }

    /// The copy in the last sector.
    fn end_of_gpt(&self) -> Option<&'static str> {
        let at = [512, 4096].map(|sector| self.0.len().checked_sub(sector));
        at.into_iter().flatten().any(|at| self.has(at, b"EFI PART")).then_some(GPT)
    }
}
