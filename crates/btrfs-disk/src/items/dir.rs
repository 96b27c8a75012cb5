//! DIR_ITEM, DIR_INDEX and XATTR_ITEM: one format, several entries in an item where
//! names share a hash (never in a DIR_INDEX).

use crate::error::Corrupt;
use crate::key::Key;
use crate::le::FixedSize;
use crate::le::len16;

/// Bytes of the longest name, of a file or an attribute.
pub const MAX_NAME: usize = 255;

pub mod dir_type {
    //! `BTRFS_FT_*` values of `DirFields::kind`.
    /// Not said.
    pub const UNKNOWN: u8 = 0;
    /// A file.
    pub const REG_FILE: u8 = 1;
    /// A directory or a subvolume.
    pub const DIR: u8 = 2;
    /// A character device.
    pub const CHRDEV: u8 = 3;
    /// A block device.
    pub const BLKDEV: u8 = 4;
    /// A FIFO.
    pub const FIFO: u8 = 5;
    /// A socket.
    pub const SOCK: u8 = 6;
    /// A symbolic link.
    pub const SYMLINK: u8 = 7;
    /// No file: the entry is an extended attribute.
    pub const XATTR: u8 = 8;
}

le_struct! {
    /// An entry up to its name; behind that stands an attribute's value.
    pub struct DirFields[30] {
        /// Key of what the name stands for: an INODE_ITEM or a ROOT_ITEM; zero for an xattr.
        location: Key,
        /// The commit that made the entry.
        transid: u64,
        /// Bytes of the value; 0 for a directory's entry.
        data_len: u16,
        /// Bytes of the name.
        name_len: u16,
        /// One of [`dir_type`].
        kind: u8,
    }
}

/// One entry, borrowed from its item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirItem<'a> {
    /// Key of what the name stands for: an INODE_ITEM or a ROOT_ITEM; zero for an xattr.
    pub location: Key,
    /// The commit that made the entry.
    pub transid: u64,
    /// One of [`dir_type`].
    pub kind: u8,
    /// At most [`MAX_NAME`] bytes, neither 0 nor `/` among a file's.
    pub name: &'a [u8],
    /// An xattr's value; empty for a directory entry.
    pub value: &'a [u8],
}

impl<'a> DirItem<'a> {
    /// Writes it behind what `out` has; name and value fit their 16-bit lengths.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let fields = DirFields {
            location: self.location,
            transid: self.transid,
            data_len: len16(self.value),
            name_len: len16(self.name),
            kind: self.kind,
        };
        let mut head = [0; DirFields::SIZE];
        fields.write(&mut head);
        out.extend_from_slice(&head);
        out.extend_from_slice(self.name);
        out.extend_from_slice(self.value);
    }

    /// The data of an item that has this entry alone.
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
