//! Bytes that items take of leaves, with their headers, as the format has them: what costs and
//! bounds are made of.
//!
//! It does not know how many of them what changes.

use btrfs_disk::FixedSize;
use btrfs_disk::items::{
    DirFields, ExtentDataRef, ExtentItemFields, FileExtentFields, InodeItem, MAX_NAME, RootItem,
    RootRef,
};
use btrfs_disk::key::KEY_SIZE;
use btrfs_disk::node::{ITEM_SIZE, KEY_PTR_SIZE};

/// An item without data, which is its header: one end of a free range, an item that says which
/// node refers to a node.
pub(super) const HEADER: u64 = ITEM_SIZE as u64;
/// An INODE_ITEM.
pub(super) const INODE: u64 = InodeItem::SIZE as u64 + HEADER;
/// An item that holds a name, less the name: DIR_ITEM, DIR_INDEX, INODE_REF or XATTR_ITEM, the
/// longest of which is as a directory's.
pub(super) const NAMED: u64 = DirFields::SIZE as u64 + HEADER;
/// An EXTENT_DATA item of an extent or a hole, in its tree.
pub(super) const FILE_EXTENT: u64 = FileExtentFields::SIZE as u64 + HEADER;
/// What tells the kinds of references apart inside of an extent item.
const INLINE_KIND: u64 = 1;
/// First key and level, which volumes without skinny metadata have in it.
const BLOCK_INFO: u64 = KEY_SIZE as u64 + 1;
/// An extent item of a node, with the one reference in it: its tree's or its parent's number.
const NODE_EXTENT: u64 = ExtentItemFields::SIZE as u64 + BLOCK_INFO + INLINE_KIND + 8 + HEADER;
/// Who wrote an extent of data first, in its item: simple quotas have that.
const FIRST_OWNER: u64 = INLINE_KIND + 8;
/// An extent item of data, with the one reference in it.
const DATA_EXTENT: u64 =
    ExtentItemFields::SIZE as u64 + INLINE_KIND + ExtentDataRef::SIZE as u64 + FIRST_OWNER + HEADER;
/// An item that says which file refers to an extent.
pub(super) const DATA_REFERENCE: u64 = ExtentDataRef::SIZE as u64 + HEADER;
/// A pointer in its node.
pub(super) const POINTER: u64 = KEY_PTR_SIZE as u64;
/// Items that an unwritten extent will have in all trees: the file's, the extent's, ends of free
/// ranges, headers of checksums.
pub(super) const UNWRITTEN: u64 = FILE_EXTENT + DATA_EXTENT + 2 * HEADER + 2 * HEADER;
/// The records of a new node: extent item, and two ends of free ranges.
pub(super) const NODE_RECORD: u64 = NODE_EXTENT + 2 * HEADER;
/// A ROOT_ITEM and the references beside it, with the longest names.
pub(super) const ROOT_RECORDS: u64 =
    RootItem::SIZE as u64 + 2 * (RootRef::FIXED + MAX_NAME) as u64 + 3 * HEADER;

// Figures that promises were measured with.
const _: () = {
    assert!(HEADER == 25 && POINTER == 33);
    assert!(INODE == 160 + 25 && NAMED == 30 + 25 && FILE_EXTENT == 53 + 25);
    assert!(UNWRITTEN == 78 + 87 + 50 + 50 && DATA_REFERENCE == 28 + 25);
    assert!(NODE_RECORD == 33 + 18 + 25 + 2 * 25);
    assert!(ROOT_RECORDS == 439 + 2 * (18 + 255) + 3 * 25);
};
