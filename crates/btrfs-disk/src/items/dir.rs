//! DIR_ITEM, DIR_INDEX and XATTR_ITEM: one format, several entries in an item where
//! names share a hash (never in a DIR_INDEX).

use crate::error::Corrupt;
use crate::key::Key;
use crate::le::FixedSize;
use crate::le::len16;

pub const MAX_NAME: usize = 255;

pub mod dir_type {
    //! `BTRFS_FT_*` values of `DirFields::kind`.
    pub const UNKNOWN: u8 = 0;
    pub const REG_FILE: u8 = 1;
    pub const DIR: u8 = 2;
    pub const CHRDEV: u8 = 3;
    pub const BLKDEV: u8 = 4;
    pub const FIFO: u8 = 5;
    pub const SOCK: u8 = 6;
    pub const SYMLINK: u8 = 7;
    pub const XATTR: u8 = 8;
}

le_struct! {
    pub struct DirFields[30] {
        /// Key of what the name stands for: an INODE_ITEM or a ROOT_ITEM; zero for an xattr.
        location: Key,
        transid: u64,
        data_len: u16,
        name_len: u16,
        kind: u8,
    }
}

/// One entry, borrowed from its item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirItem<'a> {
    pub location: Key,
    pub transid: u64,
    pub kind: u8,
    pub name: &'a [u8],
    /// An xattr's value; empty for a directory entry.
    pub value: &'a [u8],
}

impl<'a> DirItem<'a> {
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let fields = DirFields {
            location: self.location,
            transid: self.transid,
            data_len: len16(self.value),
            name_len: len16(self.name),
            kind: self.kind,
        };
        out.extend_from_slice(&fields.to_vec());
        out.extend_from_slice(self.name);
        out.extend_from_slice(self.value);
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(DirFields::SIZE + self.name.len() + self.value.len());
        self.append_to(&mut out);
        out
    }

    /// All entries of an item.
    pub fn iter(data: &'a [u8]) -> DirEntries<'a> {
        DirEntries { data }
    }
}

/// Iterator over an item's entries; yields one error and ends where bytes are malformed.
pub struct DirEntries<'a> {
    data: &'a [u8],
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = Result<DirItem<'a>, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.data.is_empty() {
            return None;
        }
        let data = std::mem::take(&mut self.data);
        let fields = match DirFields::read(data) {
            Ok(fields) => fields,
            Err(e) => return Some(Err(e)),
        };
        let name_end = DirFields::SIZE + usize::from(fields.name_len);
        let end = name_end + usize::from(fields.data_len);
        if end > data.len() {
            return Some(Err(Corrupt::new("directory entry is cut short")));
        }
        self.data = &data[end..];
        Some(Ok(DirItem {
            location: fields.location,
            transid: fields.transid,
            kind: fields.kind,
            name: &data[DirFields::SIZE..name_end],
            value: &data[name_end..end],
        }))
    }
}
