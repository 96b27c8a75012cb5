//! Where a look at a volume starts, if not at what its newest superblock says: for volumes whose newest
//! trees are damaged.

use btrfs_disk::superblock::RootBackup;
use btrfs_disk::{Error, Generation, Logical, Result, Superblock};
use std::cmp::Reverse;

/// What is taken in the place of the newest superblock's words. The default takes those.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Start {
    /// This copy of the superblock, from 0 on, and no other.
    pub copy: Option<usize>,
    /// The newest root tree of the superblock's backups that is not the superblock's own.
    pub backup: bool,
    /// The root node of the root tree; `backup` goes before it.
    pub root: Option<Logical>,
    /// The commit that wrote it, where that is known: a copy of another one is not meant.
    pub root_generation: Option<Generation>,
    /// The root node of the chunk tree.
    pub chunk_root: Option<Logical>,
}

impl Start {
    pub(crate) fn is_elsewhere(&self) -> bool {
        *self != Start::default()
    }
}

/// A root node: where, of which commit, of which level.
pub(crate) type Root = (Logical, Generation, u8);

/// Backups of root trees of other commits than the superblock's own, the newest first.
pub fn backups(sb: &Superblock) -> Vec<&RootBackup> {
    let others =
        sb.backups.iter().filter(|b| b.tree_root_gen != sb.generation() && b.tree_root.0 != 0);
    let mut found: Vec<_> = others.collect();
    found.sort_by_key(|backup| Reverse(backup.tree_root_gen.0));
    found
}

pub(crate) fn backup(sb: &Superblock) -> Result<Root> {
    let newest = backups(sb).into_iter().next();
    let root = newest.map(|b| (b.tree_root, b.tree_root_gen, b.tree_root_level));
    root.ok_or_else(|| Error::corrupt("the superblock has no backup of roots"))
}
