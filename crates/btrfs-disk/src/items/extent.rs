//! EXTENT_ITEM and METADATA_ITEM with their inline back-references, and the separate ones.
//!
//! An extent item is the fixed part, for a tree block without skinny metadata an
//! 18-byte tree block info (key, level), then inline references: a type byte, an
//! 8-byte offset (root or parent) or an EXTENT_DATA_REF, a 4-byte count after a
//! SHARED_DATA_REF. Inline references are sorted by type, then by descending hash or offset.

use crate::TreeId;
use crate::error::Corrupt;
use crate::key::{Key, kind};
use crate::le::FixedSize;

pub mod extent_flags {
    //! `BTRFS_EXTENT_FLAG_*` and `BTRFS_BLOCK_FLAG_FULL_BACKREF`.
    /// The extent has content.
    pub const DATA: u64 = 1 << 0;
    /// The extent is a node.
    pub const TREE_BLOCK: u64 = 1 << 1;
    /// What the node points to is held by the node's address, not by its tree.
    pub const FULL_BACKREF: u64 = 1 << 8;
}

le_struct! {
    /// What every extent item begins with.
    pub struct ExtentItemFields[24] {
        /// References to the extent, inline and separate ones together.
        refs: u64,
        /// The commit that allocated it.
        generation: u64,
        /// Bits of [`extent_flags`].
        flags: u64,
    }
}

le_struct! {
    /// A file of a tree refers to content.
    pub struct ExtentDataRef[28] {
        /// The tree that has the file's items.
        root: TreeId,
        /// The file's inode.
        objectid: u64,
        /// Offset of an item in the file less the item's offset into the extent; may wrap.
        offset: u64,
        /// Items that refer to the extent so.
        count: u32,
    }
}

le_struct! {
    /// A leaf refers to content; its address is in the key, or in front of this.
    pub struct SharedDataRef[4] {
        /// Items of the leaf that refer to the extent.
        count: u32,
    }
}

/// A reference that stands in the extent item itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: who counts references must count each kind that the gate lets in.
pub enum InlineRef {
    /// TREE_BLOCK_REF: a tree holds this tree block.
    TreeBlock {
        /// The tree.
        root: TreeId,
    },
    /// SHARED_BLOCK_REF: a node holds this tree block.
    SharedBlock {
        /// Address of the node.
        parent: u64,
    },
    /// EXTENT_DATA_REF: a file of a tree holds this content.
    Data(ExtentDataRef),
    /// SHARED_DATA_REF: a leaf holds this content.
    SharedData {
        /// Address of the leaf.
        parent: u64,
        /// Items of the leaf that refer to it.
        count: u32,
    },
    /// Simple quotas: the subvolume that first owned the extent.
    Owner {
        /// The subvolume.
        root: TreeId,
    },
}

impl InlineRef {
    /// Item type of the reference, which is its first byte.
    pub fn kind(&self) -> u8 {
        match self {
            InlineRef::TreeBlock { .. } => kind::TREE_BLOCK_REF,
            InlineRef::SharedBlock { .. } => kind::SHARED_BLOCK_REF,
            InlineRef::Data(_) => kind::EXTENT_DATA_REF,
            InlineRef::SharedData { .. } => kind::SHARED_DATA_REF,
            InlineRef::Owner { .. } => kind::EXTENT_OWNER_REF,
        }
    }

    /// References that this one stands for.
    pub fn count(&self) -> u64 {
        match self {
            InlineRef::Data(data) => u64::from(data.count),
            InlineRef::SharedData { count, .. } => u64::from(*count),
            InlineRef::Owner { .. } => 0,
            _ => 1,
        }
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        out.push(self.kind());
        match self {
            InlineRef::TreeBlock { root } | InlineRef::Owner { root } => {
                out.extend_from_slice(&root.0.to_le_bytes());
            }
            InlineRef::SharedBlock { parent } => out.extend_from_slice(&parent.to_le_bytes()),
            InlineRef::Data(data) => out.extend_from_slice(&data.to_vec()),
            InlineRef::SharedData { parent, count } => {
                out.extend_from_slice(&parent.to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
            }
        }
    }

    /// All references of an item's tail; yields one error and ends where bytes are malformed.
    pub fn iter(mut data: &[u8]) -> impl Iterator<Item = Result<InlineRef, Corrupt>> + '_ {
        std::iter::from_fn(move || {
            if data.is_empty() {
                return None;
            }
            let taken = InlineRef::take(&mut data);
            if taken.is_err() {
                data = &[];
            }
            Some(taken)
        })
    }

    /// What inline references of one type are sorted by, descending.
    pub fn sequence(&self) -> u64 {
        match self {
            InlineRef::TreeBlock { root } | InlineRef::Owner { root } => root.0,
            InlineRef::SharedBlock { parent } | InlineRef::SharedData { parent, .. } => *parent,
            InlineRef::Data(data) => {
                crate::checksum::data_ref_hash(data.root.0, data.objectid, data.offset)
            }
        }
    }

    /// Takes one reference from the front of `data`.
    fn take(data: &mut &[u8]) -> Result<InlineRef, Corrupt> {
        let cut = || Corrupt::new("inline reference is cut short");
        let (&kind, rest) = data.split_first().ok_or_else(cut)?;
        let word = || -> Result<u64, Corrupt> {
            Ok(u64::from_le_bytes(rest.get(..8).ok_or_else(cut)?.try_into().expect("sized")))
        };
        let (reference, used) = match kind {
            kind::TREE_BLOCK_REF => (InlineRef::TreeBlock { root: TreeId(word()?) }, 8),
            kind::SHARED_BLOCK_REF => (InlineRef::SharedBlock { parent: word()? }, 8),
            kind::EXTENT_OWNER_REF => (InlineRef::Owner { root: TreeId(word()?) }, 8),
            kind::EXTENT_DATA_REF => {
                (InlineRef::Data(ExtentDataRef::read(rest)?), ExtentDataRef::SIZE)
            }
            kind::SHARED_DATA_REF => {
                let parent = word()?;
                let count = SharedDataRef::read(&rest[8..])?.count;
                (InlineRef::SharedData { parent, count }, 12)
            }
            other => return Err(Corrupt::new(format!("inline reference of type {other}"))),
        };
        *data = &rest[used..];
        Ok(reference)
    }
}

/// A whole EXTENT_ITEM or METADATA_ITEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtentItem {
    /// Count, age and flags.
    pub fields: ExtentItemFields,
    /// First key and level: only in an EXTENT_ITEM of a tree block.
    pub block_info: Option<(Key, u8)>,
    /// The references that have no item of their own, in the order of the item.
    pub inline: Vec<InlineRef>,
}

/// The parts of an item in front of its inline references, and their bytes.
pub(crate) type ExtentParts<'a> = (ExtentItemFields, Option<(Key, u8)>, &'a [u8]);

impl ExtentItem {
    /// Reads the fixed parts without looking at the inline references.
    pub(crate) fn split(item_kind: u8, data: &[u8]) -> Result<ExtentParts<'_>, Corrupt> {
        let fields = ExtentItemFields::read(data)?;
        let rest = &data[ExtentItemFields::SIZE..];
        if item_kind != kind::EXTENT_ITEM || fields.flags & extent_flags::TREE_BLOCK == 0 {
            return Ok((fields, None, rest));
        }
        let info = rest.get(..18).ok_or_else(|| Corrupt::new("tree block info is cut short"))?;
        let first = Key::read(info[..17].try_into().expect("sized"));
        Ok((fields, Some((first, info[17])), &rest[18..]))
    }

    /// `item_kind` is EXTENT_ITEM or METADATA_ITEM.
    pub fn parse(item_kind: u8, data: &[u8]) -> Result<ExtentItem, Corrupt> {
        let (fields, block_info, rest) = ExtentItem::split(item_kind, data)?;
        let inline = InlineRef::iter(rest).collect::<Result<_, _>>()?;
        Ok(ExtentItem { fields, block_info, inline })
    }

    /// The subvolume that first owned the extent, where the item says it (simple quotas).
    pub fn first_owner(&self) -> Option<TreeId> {
        self.inline.iter().find_map(|inline| match inline {
            InlineRef::Owner { root } => Some(*root),
            _ => None,
        })
    }

    /// The data of its item.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = self.fields.to_vec();
        if let Some((key, level)) = self.block_info {
            out.extend_from_slice(&key.to_bytes());
            out.push(level);
        }
        for reference in &self.inline {
            reference.append_to(&mut out);
        }
        out
    }
}
