//! Files with fs-verity: a descriptor that says what can be, and a tree of hashes without gaps. (The
//! hashes themselves are held against content where content is read: `crate::verity`.)

use btrfs_disk::items::{InodeItem, VerityItem, inode_flags};
use btrfs_disk::key::kind::VERITY_DESC_ITEM;
use btrfs_disk::{FixedSize, Key};
use fs_verity::{Descriptor, MAX_DESCRIPTOR};

/// What was seen of it so far.
#[derive(Default)]
pub(super) struct VerityState {
    header: Option<VerityItem>,
    descriptor: Vec<u8>,
    /// Bytes of the tree that lie one behind the other, from its begin on.
    tree: u64,
    /// What does not continue what is in front of it.
    stray: Option<&'static str>,
}

impl VerityState {
    pub(super) fn item(&mut self, key: Key, data: &[u8]) {
        if key.kind != VERITY_DESC_ITEM {
            if key.offset != self.tree {
                self.stray.get_or_insert("its tree has a gap, or items that overlap");
            }
            self.tree = key.offset.saturating_add(data.len() as u64);
        } else if key.offset == 0 {
            self.header = VerityItem::read(data).ok();
        } else if key.offset != 1 + self.descriptor.len() as u64 {
            self.stray.get_or_insert("its descriptor has a gap, or items that overlap");
        } else if self.descriptor.len() <= MAX_DESCRIPTOR {
            self.descriptor.extend_from_slice(data);
        }
    }

    /// What the file is to be held against, if it is one; or what is wrong. What an interrupted attempt
    /// left, or the beginning of one, is nothing.
    pub(super) fn judge(&self, item: &InodeItem) -> Result<Option<Descriptor>, String> {
        if item.flags & inode_flags::RO_VERITY == 0 || item.nlink == 0 {
            return Ok(None);
        }
        let header = self.header.ok_or("it has no descriptor")?;
        if header.encryption != 0 || header.size != self.descriptor.len() as u64 {
            let (size, there) = (header.size, self.descriptor.len());
            return Err(format!("its descriptor should have {size} bytes, and has {there}"));
        }
        if let Some(stray) = self.stray {
            return Err(stray.into());
        }
        let descriptor = Descriptor::parse(&self.descriptor).map_err(|why| why.to_string())?;
        if descriptor.data_size != item.size {
            let (of, size) = (descriptor.data_size, item.size);
            return Err(format!("its descriptor is of {of} bytes, the file has {size}"));
        }
        let size = descriptor.merkle().map_err(|why| why.to_string())?.tree_size();
        if size != self.tree {
            return Err(format!("its tree should have {size} bytes, and has {}", self.tree));
        }
        Ok(Some(Descriptor { signature: Vec::new(), ..descriptor }))
    }
}
