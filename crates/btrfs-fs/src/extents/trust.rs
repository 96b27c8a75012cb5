//! What content is held against before it is given out.

use btrfs_disk::items::inode_flags;

/// What content is held against before it is given out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Its checksums.
    Sums,
    /// The file has none: nothing but the place says whose it is.
    Place,
    /// Nothing; whoever asks minds neither.
    Blind,
}

impl Trust {
    /// By the flags of the inode.
    pub(crate) fn of(flags: u64) -> Trust {
        if flags & inode_flags::NODATASUM == 0 { Trust::Sums } else { Trust::Place }
    }
}
