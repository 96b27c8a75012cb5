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
    pub const DATA: u64 = 1 << 0;
    pub const TREE_BLOCK: u64 = 1 << 1;
    pub const FULL_BACKREF: u64 = 1 << 8;
}

le_struct! {
    pub struct ExtentItemFields[24] { refs: u64, generation: u64, flags: u64 }
}

le_struct! {
    pub struct ExtentDataRef[28] { root: TreeId, objectid: u64, offset: u64, count: u32 }
}

le_struct! {
    pub struct SharedDataRef[4] { count: u32 }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InlineRef {
    TreeBlock {
        root: TreeId,
    },
    SharedBlock {
        parent: u64,
    },
    Data(ExtentDataRef),
    SharedData {
        parent: u64,
        count: u32,
    },
    /// Simple quotas: the subvolume that first owned the extent.
    Owner {
        root: TreeId,
    },
}

impl InlineRef {
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
    pub fields: ExtentItemFields,
    /// First key and level: only in an EXTENT_ITEM of a tree block.
    pub block_info: Option<(Key, u8)>,
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
