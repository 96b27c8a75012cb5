//! What the printers of items share: which item it is, and numbers out of it.

use btrfs_disk::key::Key;
use btrfs_disk::{Corrupt, Geometry};

/// What each item of a leaf needs to be told.
pub struct ItemContext<'g> {
    pub geometry: &'g Geometry,
    pub key: Key,
}

/// The 64-bit number at `at` of an item.
pub fn word(data: &[u8], at: usize) -> Result<u64, Corrupt> {
    let bytes = data.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_le_bytes).ok_or_else(|| Corrupt::new("item is cut short"))
}
