//! INODE_ITEM, INODE_REF and INODE_EXTREF.

use crate::error::Corrupt;
use crate::le::FixedSize;
use crate::le::len16;

le_struct! {
    pub struct Timespec[12] { sec: i64, nsec: u32 }
}

le_struct! {
    pub struct InodeItem[160] {
        generation: u64,
        transid: u64,
        /// File size; for a directory twice the sum of its name lengths.
        size: u64,
        /// Bytes that the inode's extents occupy (decompressed size of the used part).
        nbytes: u64,
        block_group: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u32,
        rdev: u64,
        flags: u64,
        /// `i_version`.
        sequence: u64,
        reserved: [u8; 32],
        atime: Timespec,
        ctime: Timespec,
        mtime: Timespec,
        otime: Timespec,
    }
}

pub mod mode {
    //! What `InodeItem::mode` says of the kind of a file: the numbers of Linux's `st_mode`.
    pub const S_IFMT: u32 = 0o170_000;
    pub const S_IFSOCK: u32 = 0o140_000;
    pub const S_IFLNK: u32 = 0o120_000;
    pub const S_IFREG: u32 = 0o100_000;
    pub const S_IFBLK: u32 = 0o060_000;
    pub const S_IFDIR: u32 = 0o040_000;
    pub const S_IFCHR: u32 = 0o020_000;
    pub const S_IFIFO: u32 = 0o010_000;
}

pub mod inode_flags {
    //! `BTRFS_INODE_*` bits of `InodeItem::flags`.
    pub const NODATASUM: u64 = 1 << 0;
    pub const NODATACOW: u64 = 1 << 1;
    pub const READONLY: u64 = 1 << 2;
    pub const NOCOMPRESS: u64 = 1 << 3;
    pub const PREALLOC: u64 = 1 << 4;
    pub const SYNC: u64 = 1 << 5;
    pub const IMMUTABLE: u64 = 1 << 6;
    pub const APPEND: u64 = 1 << 7;
    pub const NODUMP: u64 = 1 << 8;
    pub const NOATIME: u64 = 1 << 9;
    pub const DIRSYNC: u64 = 1 << 10;
    pub const COMPRESS: u64 = 1 << 11;
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
    pub index: u64,
    pub name: &'a [u8],
}

impl<'a> InodeRef<'a> {
    const FIXED: usize = 10;

    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&len16(self.name).to_le_bytes());
        out.extend_from_slice(self.name);
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
    pub parent: u64,
    pub index: u64,
    pub name: &'a [u8],
}

impl<'a> InodeExtRef<'a> {
    const FIXED: usize = 18;

    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.parent.to_le_bytes());
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&len16(self.name).to_le_bytes());
        out.extend_from_slice(self.name);
    }

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
    pub fn to_boxed(&self) -> Box<[u8]> {
        self.to_vec().into_boxed_slice()
    }
}
