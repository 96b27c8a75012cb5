//! What the judges of items are given, and the checks that several of them share.
//!
//! Does not know any type of item: `judge` goes from an item to the judge of its type.

use super::{Limits, ensure, home};
use crate::error::Corrupt;
use crate::key::Key;
use crate::{Geometry, TreeId};

pub(super) type Verdict = Result<(), Corrupt>;

/// What holds for every item of one leaf.
pub(super) struct Rules<'a> {
    pub geometry: &'a Geometry,
    pub limits: &'a Limits,
    /// The tree that the leaf's header names.
    pub owner: TreeId,
    /// The bits that are zero in sector aligned numbers.
    below_sector: u64,
}

/// One item and the one in front of it in the same leaf.
pub(super) struct Item<'a> {
    pub key: Key,
    pub data: &'a [u8],
    pub previous: Option<(Key, &'a [u8])>,
}

impl Item<'_> {
    /// The item in front, if it has one of `kinds`.
    pub(super) fn previous_of(&self, kinds: &[u8]) -> Option<(Key, &[u8])> {
        self.previous.filter(|(key, _)| kinds.contains(&key.kind))
    }
}

impl<'a> Rules<'a> {
    pub(super) fn new(geometry: &'a Geometry, limits: &'a Limits, owner: TreeId) -> Rules<'a> {
        let sector = u64::from(geometry.sector_size);
        // Of sectors that are no power of two only address 0 is aligned.
        let below_sector = if sector.is_power_of_two() { sector - 1 } else { u64::MAX };
        Rules { geometry, limits, owner, below_sector }
    }

    pub(super) fn sector(&self) -> u64 {
        u64::from(self.geometry.sector_size)
    }

    pub(super) fn is_aligned(&self, value: u64) -> bool {
        value & self.below_sector == 0
    }

    /// `value`, called `what`, is a whole number of sectors.
    pub(super) fn aligned(&self, what: &str, value: u64) -> Verdict {
        ensure!(self.is_aligned(value), "{what} {value} is not sector aligned");
        Ok(())
    }

    /// `value`, called `what`, is not younger than the volume.
    pub(super) fn not_younger(&self, what: &str, value: u64) -> Verdict {
        match self.limits.max_generation {
            Some(max) if value > max.0 => {
                Err(Corrupt::new(format!("{what} {value}, the volume is at {max}")))
            }
            _ => Ok(()),
        }
    }

    /// In a subvolume's leaf an inode's items follow its INODE_ITEM.
    pub(super) fn follows_its_inode(&self, item: &Item<'_>) -> Verdict {
        match item.previous {
            Some((before, _)) if home::is_fs_tree(self.owner) => {
                ensure!(
                    before.objectid == item.key.objectid,
                    "follows {before}, its inode is missing"
                );
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The item has exactly `size` bytes.
pub(super) fn sized(item: &Item<'_>, size: usize) -> Verdict {
    ensure!(item.data.len() == size, "item of {} bytes instead of {size}", item.data.len());
    Ok(())
}

/// End of the range `start..start + len`, which lies inside 64 bits.
pub(super) fn end_of(what: &str, start: u64, len: u64) -> Result<u64, Corrupt> {
    start
        .checked_add(len)
        .ok_or_else(|| Corrupt::new(format!("{what} of {len} bytes at {start} has no end")))
}

/// A name of a directory entry: 1 to 255 bytes that a path can hold.
pub(super) fn name(name: &[u8]) -> Verdict {
    ensure!(!name.is_empty() && name.len() <= 255, "name of {} bytes", name.len());
    ensure!(!name.iter().any(|b| matches!(b, 0 | b'/')), "name with a slash or a zero byte");
    Ok(())
}
