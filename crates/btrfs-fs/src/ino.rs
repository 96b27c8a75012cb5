//! One inode number for the whole mount, out of (subvolume, object id).
//!
//! FUSE has a single `st_dev`, so numbers must not repeat across subvolumes. The scheme
//! is part of the public contract (docs/SEMANTICS.md) and stable across remounts:
//!
//! * bits 0..40: the object id inside its subvolume;
//! * bits 40..63: the subvolume id, 0 for the top level (id 5), so that files of the
//!   top level have the number that the kernel's btrfs shows;
//! * bit 63: an empty stand-in directory: the place of a nested subvolume inside a
//!   snapshot, which the kernel shows as an empty directory too. Bits 0..40 are then the
//!   id of the absent subvolume.
//!
//! Numbers that do not fit are refused (EOVERFLOW), never folded.

use btrfs_disk::TreeId;
use vfs::{Errno, FsError, Ino, Result};

const OBJECT_BITS: u32 = 40;
const SUBVOL_BITS: u32 = 23;
const STAND_IN: u64 = 1 << 63;

/// Where an inode lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct InodeId {
    pub tree: TreeId,
    pub objectid: u64,
}

impl InodeId {
    pub fn new(tree: TreeId, objectid: u64) -> InodeId {
        InodeId { tree, objectid }
    }

    pub fn to_ino(self) -> Result<Ino> {
        Ok(Ino(pack(self.tree, self.objectid)?))
    }

    pub fn from_ino(ino: Ino) -> InodeId {
        let subvol = (ino.0 & !STAND_IN) >> OBJECT_BITS;
        let tree = if subvol == 0 { TreeId::FS } else { TreeId(subvol) };
        InodeId { tree, objectid: ino.0 & ((1 << OBJECT_BITS) - 1) }
    }
}

fn pack(tree: TreeId, objectid: u64) -> Result<u64> {
    let subvol = if tree == TreeId::FS { 0 } else { tree.0 };
    if objectid >> OBJECT_BITS != 0 || subvol >> SUBVOL_BITS != 0 {
        return Err(FsError::Posix(Errno::EOVERFLOW));
    }
    Ok(subvol << OBJECT_BITS | objectid)
}

/// The number of the stand-in for `absent` inside `tree`.
pub fn stand_in(tree: TreeId, absent: TreeId) -> Result<Ino> {
    Ok(Ino(pack(tree, absent.0)? | STAND_IN))
}

pub fn is_stand_in(ino: Ino) -> bool {
    ino.0 & STAND_IN != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_do_not_meet() {
        for (tree, object) in [(5, 256), (256, 256), (257, 1 << 39), ((1 << 23) - 1, 5)] {
            let id = InodeId::new(TreeId(tree), object);
            assert_eq!(InodeId::from_ino(id.to_ino().unwrap()), id);
        }
        assert_eq!(InodeId::new(TreeId::FS, 257).to_ino().unwrap(), Ino(257));
        assert!(InodeId::new(TreeId::FS, 1 << 40).to_ino().is_err());
        assert!(InodeId::new(TreeId(1 << 23), 256).to_ino().is_err());
        assert!(is_stand_in(stand_in(TreeId(300), TreeId(256)).unwrap()));
    }
}
