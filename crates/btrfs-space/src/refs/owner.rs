//! Who holds a reference, and how the extent tree spells that.

use btrfs_disk::checksum::data_ref_hash;
use btrfs_disk::items::{ExtentDataRef, InlineRef, SharedDataRef};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Error, FixedSize, Key, Logical, Result, TreeId};

/// What kind of extent is referenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: an extent is one or the other, and has its item accordingly.
pub enum ExtentKind {
    /// A tree block.
    Node {
        /// 0 for a leaf.
        level: u8,
    },
    /// Content of files.
    Data,
}

/// The holder of a reference. `Tree` and `Data` are keyed by the tree; the shared ones
/// name the node in which the pointer stands (full back-references).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
// Exhaustive: the format has these; each has a key and a count of its own.
pub enum RefOwner {
    /// A tree block that a tree holds (TREE_BLOCK_REF).
    Tree {
        /// The tree that has it as its root, or in one of its nodes.
        root: TreeId,
    },
    /// A tree block that one node points to, whoever has that node (SHARED_BLOCK_REF).
    SharedTree {
        /// Address of that node, one level higher.
        parent: Logical,
    },
    /// Content that a file of a tree has in its items (EXTENT_DATA_REF).
    Data {
        /// The tree whose leaves have those items.
        root: TreeId,
        /// The file's inode number in that tree.
        ino: u64,
        /// File offset of the EXTENT_DATA item less the item's offset into the extent, wrapping.
        offset: u64,
    },
    /// Content that one leaf has in its items, whoever has the leaf (SHARED_DATA_REF).
    SharedData {
        /// Address of the leaf.
        parent: Logical,
    },
}

impl RefOwner {
    /// Whether content is held, not a tree block.
    pub fn is_data(&self) -> bool {
        matches!(self, RefOwner::Data { .. } | RefOwner::SharedData { .. })
    }

    /// Item type of a separate reference; inline ones ascend by it.
    pub fn kind(&self) -> u8 {
        match self {
            RefOwner::Tree { .. } => kind::TREE_BLOCK_REF,
            RefOwner::SharedTree { .. } => kind::SHARED_BLOCK_REF,
            RefOwner::Data { .. } => kind::EXTENT_DATA_REF,
            RefOwner::SharedData { .. } => kind::SHARED_DATA_REF,
        }
    }

    /// Inline references of one type descend by this; it is a separate one's key offset
    /// (of which a data reference may be pushed up by others of the same hash).
    pub fn sequence(&self) -> u64 {
        match self {
            RefOwner::Tree { root } => root.0,
            RefOwner::SharedTree { parent } | RefOwner::SharedData { parent } => parent.0,
            RefOwner::Data { root, ino, offset } => data_ref_hash(root.0, *ino, *offset),
        }
    }

    /// Bytes that an inline reference takes in its item.
    pub(crate) fn inline_size(&self) -> usize {
        match self {
            RefOwner::Tree { .. } | RefOwner::SharedTree { .. } => 9,
            RefOwner::Data { .. } => 29,
            RefOwner::SharedData { .. } => 13,
        }
    }

    pub(crate) fn to_inline(self, count: u64) -> Result<InlineRef> {
        Ok(match self {
            RefOwner::Tree { root } => single(count, InlineRef::TreeBlock { root })?,
            RefOwner::SharedTree { parent } => {
                single(count, InlineRef::SharedBlock { parent: parent.0 })?
            }
            RefOwner::Data { root, ino, offset } => InlineRef::Data(ExtentDataRef {
                root,
                objectid: ino,
                offset,
                count: narrow(count)?,
            }),
            RefOwner::SharedData { parent } => {
                InlineRef::SharedData { parent: parent.0, count: narrow(count)? }
            }
        })
    }

    /// `None` for what is no reference (a simple quota's owner).
    pub fn of_inline(inline: &InlineRef) -> Option<RefOwner> {
        Some(match inline {
            InlineRef::TreeBlock { root } => RefOwner::Tree { root: *root },
            InlineRef::SharedBlock { parent } => RefOwner::SharedTree { parent: Logical(*parent) },
            InlineRef::Data(data) => Self::of_data(data),
            InlineRef::SharedData { parent, .. } => {
                RefOwner::SharedData { parent: Logical(*parent) }
            }
            InlineRef::Owner { .. } => return None,
        })
    }

    fn of_data(data: &ExtentDataRef) -> RefOwner {
        RefOwner::Data { root: data.root, ino: data.objectid, offset: data.offset }
    }

    /// Data of a separate item.
    pub(crate) fn separate_data(&self, count: u64) -> Result<Vec<u8>> {
        Ok(match self.to_inline(count)? {
            InlineRef::Data(data) => data.to_vec(),
            InlineRef::SharedData { count, .. } => SharedDataRef { count }.to_vec(),
            _ => Vec::new(),
        })
    }

    /// Holder and count of a separate item; `None` if the key is of another type.
    pub fn of_separate(key: &Key, data: &[u8]) -> Result<Option<(RefOwner, u64)>> {
        Ok(Some(match key.kind {
            kind::TREE_BLOCK_REF => (RefOwner::Tree { root: TreeId(key.offset) }, 1),
            kind::SHARED_BLOCK_REF => (RefOwner::SharedTree { parent: Logical(key.offset) }, 1),
            kind::EXTENT_DATA_REF => {
                let data = ExtentDataRef::read(data).map_err(|c| c.key(*key))?;
                (Self::of_data(&data), u64::from(data.count))
            }
            kind::SHARED_DATA_REF => {
                let count = SharedDataRef::read(data).map_err(|c| c.key(*key))?.count;
                (RefOwner::SharedData { parent: Logical(key.offset) }, u64::from(count))
            }
            _ => return Ok(None),
        }))
    }
}

fn single(count: u64, inline: InlineRef) -> Result<InlineRef> {
    if count == 1 {
        return Ok(inline);
    }
    Err(Corrupt::new(format!("{count} references of one holder to a tree block")).into())
}

fn narrow(count: u64) -> Result<u32> {
    u32::try_from(count)
        .map_err(|_| Error::Unsupported("more than 2^32 references of one file".into()))
}
