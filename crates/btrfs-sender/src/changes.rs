//! What differs, inode by inode.

use crate::error::Result;
use crate::tree::{Tree, piece_of};
use btrfs_disk::Key;
use btrfs_disk::ids::{FIRST_FREE_OBJECTID, LAST_FREE_OBJECTID};
use btrfs_disk::key::kind;
use btrfs_tree::{Difference, compare};

/// What both trees say of one key.
pub(crate) struct Both {
    pub(crate) key: Key,
    pub(crate) left: Option<Vec<u8>>,
    pub(crate) right: Option<Vec<u8>>,
}

/// What differs of one inode.
#[derive(Default)]
pub(crate) struct Change {
    pub(crate) ino: u64,
    pub(crate) names: Vec<Both>,
    pub(crate) xattrs: Vec<Both>,
    /// Ranges whose extents are others, in order, without overlap.
    pub(crate) ranges: Vec<(u64, u64)>,
}

impl Change {
    fn add(&mut self, found: &Difference<'_>, sector: u64) -> Result<()> {
        let both = || Both {
            key: found.key,
            left: found.left.map(<[u8]>::to_vec),
            right: found.right.map(<[u8]>::to_vec),
        };
        match found.key.kind {
            kind::INODE_REF | kind::INODE_EXTREF => self.names.push(both()),
            kind::XATTR_ITEM => self.xattrs.push(both()),
            kind::EXTENT_DATA => {
                for data in [found.left, found.right].into_iter().flatten() {
                    let piece = piece_of(found.key, data, sector)?;
                    self.add_range(piece.start, piece.end);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// They come in the order of where they begin.
    fn add_range(&mut self, start: u64, end: u64) {
        match self.ranges.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => self.ranges.push((start, end)),
        }
    }
}

/// Tells of each inode of which something differs, by number. `left` may be empty.
pub(crate) fn changes(
    left: Option<&Tree<'_>>,
    right: &Tree<'_>,
    take: &mut dyn FnMut(Change) -> Result<()>,
) -> Result<()> {
    let mut current: Option<Change> = None;
    let root = left.map(|left| left.root);
    compare(right.reader(), root.as_ref(), &right.root, &mut |found| -> Result<()> {
        let ino = found.key.objectid;
        if !(FIRST_FREE_OBJECTID..=LAST_FREE_OBJECTID).contains(&ino) {
            return Ok(());
        }
        if current.as_ref().is_none_or(|change| change.ino != ino)
            && let Some(done) = current.replace(Change { ino, ..Change::default() })
        {
            take(done)?;
        }
        match &mut current {
            // Of what is new everything is sent anyway.
            Some(change) if left.is_some() => change.add(&found, right.sector),
            _ => Ok(()),
        }
    })?;
    match current {
        Some(last) => take(last),
        None => Ok(()),
    }
}
