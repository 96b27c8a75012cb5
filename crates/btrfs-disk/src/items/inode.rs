//! INODE_ITEM, INODE_REF and INODE_EXTREF.

use crate::error::Corrupt;
use crate::le::FixedSize;
use crate::le::len16;

le_struct! {
    /// A time since 1970.
    pub struct Timespec[12] {
        /// Seconds; negative before 1970.
        sec: i64,
        /// Nanoseconds on top, less than a second ([`Timespec::nanos`]).
        nsec: u32,
    }
}

impl Timespec {
    /// Nanoseconds that are less than a second: an item may have any number. FUSE's kernel side makes the same of it.
    pub fn nanos(&self) -> u32 {
        self.nsec.min(999_999_999)
    }
}

le_struct! {
    /// An inode.
    pub struct InodeItem[160] {
        /// The commit that made it: tells apart who had the number one after the other.
        generation: u64,
        /// The last commit that changed it.
        transid: u64,
        /// File size; for a directory twice the sum of its name lengths.
        size: u64,
        /// Bytes that the inode's extents occupy (decompressed size of the used part).
        nbytes: u64,
        /// No longer used.
        block_group: u64,
        /// Names that it has; 1 for a directory.
        nlink: u32,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
        /// Kind and permissions, as `st_mode` (see [`mode`]).
        mode: u32,
        /// Major and minor number of a device file.
        rdev: u64,
        /// Bits of [`inode_flags`].
        flags: u64,
        /// `i_version`.
        sequence: u64,
        /// Nobody's yet: zeros.
        reserved: [u8; 32],
        /// Last access.
        atime: Timespec,
        /// Last change of the inode.
        ctime: Timespec,
        /// Last change of the content.
        mtime: Timespec,
        /// When it was made.
        otime: Timespec,
    }
}

le_struct! {
    /// VERITY_DESC_ITEM at offset 0: of the descriptor, whose bytes are in the items from offset 1 on.
    pub struct VerityItem[25] {
        /// Bytes of the descriptor, its signature included.
        size: u64,
        /// Nobody's yet: zeros.
        reserved: [u8; 16],
        /// How the descriptor is encrypted: not at all.
        encryption: u8,
    }
}

pub mod mode {
    //! What `InodeItem::mode` says of the kind of a file: the numbers of Linux's `st_mode`.
    /// The bits that say the kind.
    pub const S_IFMT: u32 = 0o170_000;
    /// A socket.
    pub const S_IFSOCK: u32 = 0o140_000;
    /// A symbolic link.
    pub const S_IFLNK: u32 = 0o120_000;
    /// A file.
    pub const S_IFREG: u32 = 0o100_000;
    /// A block device.
    pub const S_IFBLK: u32 = 0o060_000;
    /// A directory.
    pub const S_IFDIR: u32 = 0o040_000;
    /// A character device.
    pub const S_IFCHR: u32 = 0o020_000;
    /// A FIFO.
    pub const S_IFIFO: u32 = 0o010_000;
}

pub mod inode_flags {
    //! `BTRFS_INODE_*` bits of `InodeItem::flags`.
    /// Its content has no checksums.
    pub const NODATASUM: u64 = 1 << 0;
    /// Its content is overwritten in place where nobody shares it; goes with `NODATASUM`.
    pub const NODATACOW: u64 = 1 << 1;
    /// Nobody may write to it.
    pub const READONLY: u64 = 1 << 2;
    /// Its content is not compressed: by wish, or because it did not pay.
    pub const NOCOMPRESS: u64 = 1 << 3;
    /// It has preallocated extents, or had.
    pub const PREALLOC: u64 = 1 << 4;
    /// What is written to it is on disk when the call returns (`chattr +S`).
    pub const SYNC: u64 = 1 << 5;
    /// Nobody may change, rename or remove it (`chattr +i`).
    pub const IMMUTABLE: u64 = 1 << 6;
    /// It may grow at its end only (`chattr +a`).
    pub const APPEND: u64 = 1 << 7;
    /// Programs that back up leave it out (`chattr +d`).
    pub const NODUMP: u64 = 1 << 8;
    /// Its time of access is not kept (`chattr +A`).
    pub const NOATIME: u64 = 1 << 9;
    /// Changes of the directory are on disk when the call returns (`chattr +D`).
    pub const DIRSYNC: u64 = 1 << 10;
    /// Its content is to be compressed (`chattr +c`).
    pub const COMPRESS: u64 = 1 << 11;
    /// In a ROOT_ITEM's inode: the item's `flags` and `byte_limit` are meant; old kernels left any
    /// bytes there.
    pub const ROOT_ITEM_INIT: u64 = 1 << 31;
    /// Read-only compatible flags live in the upper half.
    pub const RO_VERITY: u64 = 1 << 32;
    /// All incompatible flags that have a name: bits 0 to 11 and 31.
    pub const KNOWN: u64 = 0xfff | ROOT_ITEM_INIT;
    /// All read-only compatible flags that have a name.
    pub const RO_KNOWN: u64 = RO_VERITY;
}

/// One name inside an INODE_REF item: `index`, then the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeRef<'a> {
    /// Offset of the name's DIR_INDEX in the directory.
    pub index: u64,
    /// The name, without a zero at its end.
    pub name: &'a [u8],
}

impl<'a> InodeRef<'a> {
    const FIXED: usize = 10;

    /// Writes it behind what `out` has.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&len16(self.name).to_le_bytes());
        out.extend_from_slice(self.name);
    }

    /// The reference alone as bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(size_of::<u64>() + size_of::<u16>() + self.name.len());
        self.append_to(&mut out);
        out
    }

    /// All names of an item; the last result is an error if the item is malformed.
    pub fn iter(mut data: &'a [u8]) -> impl Iterator<Item = Result<InodeRef<'a>, Corrupt>> {
        std::iter::from_fn(move || {
            if data.is_empty() {
                return None;
            }
            let Some(fixed) = data.get(..Self::FIXED) else {
                data = &[];
                return Some(Err(Corrupt::new("inode ref is cut short")));
            };
            let index = u64::from_le_bytes(fixed[..8].try_into().expect("sized"));
            let len = usize::from(u16::from_le_bytes([fixed[8], fixed[9]]));
            let Some(name) = data.get(Self::FIXED..Self::FIXED + len) else {
                data = &[];
                return Some(Err(Corrupt::new("inode ref's name is cut short")));
            };
            data = &data[Self::FIXED + len..];
            Some(Ok(InodeRef { index, name }))
        })
    }
}

/// One name inside an INODE_EXTREF item: parent, index, name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeExtRef<'a> {
    /// Inode of the directory.
    pub parent: u64,
    /// Offset of the name's DIR_INDEX in the directory.
    pub index: u64,
    /// The name, without a zero at its end.
    pub name: &'a [u8],
}

impl<'a> InodeExtRef<'a> {
    const FIXED: usize = 18;

    /// Writes it behind what `out` has.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.parent.to_le_bytes());
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&len16(self.name).to_le_bytes());
        out.extend_from_slice(self.name);
    }

    /// All names of an item; the last result is an error if the item is malformed.
    pub fn iter(mut data: &'a [u8]) -> impl Iterator<Item = Result<InodeExtRef<'a>, Corrupt>> {
        std::iter::from_fn(move || {
            if data.is_empty() {
                return None;
            }
            let Some(fixed) = data.get(..Self::FIXED) else {
                data = &[];
                return Some(Err(Corrupt::new("inode extref is cut short")));
            };
            let parent = u64::from_le_bytes(fixed[..8].try_into().expect("sized"));
            let index = u64::from_le_bytes(fixed[8..16].try_into().expect("sized"));
            let len = usize::from(u16::from_le_bytes([fixed[16], fixed[17]]));
            let Some(name) = data.get(Self::FIXED..Self::FIXED + len) else {
                data = &[];
                return Some(Err(Corrupt::new("inode extref's name is cut short")));
            };
            data = &data[Self::FIXED + len..];
            Some(Ok(InodeExtRef { parent, index, name }))
        })
    }
}

impl InodeItem {
    /// The data of its item.
    pub fn to_boxed(&self) -> Box<[u8]> {
        self.to_vec().into_boxed_slice()
    }
}
