//! The trees of the last commit, for who reads them as they are: a stream of a subvolume is made
//! of them.
//!
//! Invariant: as long as a [`Committed`] lives, nothing that its trees lead to is written over. So
//! it holds back room that later commits free: who has it for long pays with that.

use crate::engine::Engine;
use crate::extents;
use crate::fs::BtrfsFs;
use crate::ino::InodeId;
use crate::subvol::SubvolId;
use btrfs_disk::TreeId;
use btrfs_disk::items::{FileExtentFields, RootItem};
use btrfs_tree::{NodeReader, TreeRoot};
use btrfs_txn::Roots;
use std::sync::Arc;
use vfs::{Errno, Result};

/// The trees of one commit.
pub struct Committed<'f> {
    engine: &'f Engine,
    roots: Arc<Roots>,
}

impl BtrfsFs {
    /// Those of the last commit; what is in memory is not in them.
    pub fn committed(&self) -> Result<Committed<'_>> {
        let engine = self.open()?;
        Ok(Committed { engine, roots: engine.core.roots() })
    }
}

impl Committed<'_> {
    /// Reads nodes of all trees, each of them verified.
    pub fn nodes(&self) -> &dyn NodeReader {
        &self.engine.core.store
    }

    /// A tree, and what the root tree says of it.
    pub fn tree(&self, tree: TreeId) -> Option<(TreeRoot, RootItem)> {
        self.roots.get(tree).map(|root| (root.root, root.item))
    }

    /// A subvolume; ENOENT where there is none of this number.
    pub fn subvolume(&self, id: SubvolId) -> Result<(TreeRoot, RootItem)> {
        let tree = TreeId(id.0);
        self.tree(tree).filter(|_| tree.is_subvolume()).ok_or(Errno::ENOENT.into())
    }

    /// Fills `buf` with content of a file of a subvolume from `offset` on, zeros in holes and
    /// behind the last extent. `flags` are the inode's.
    pub fn read(
        &self,
        tree: TreeId,
        ino: u64,
        flags: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        extents::read_extents(&self.engine.core, InodeId::new(tree, ino), flags, offset, buf)
    }

    /// Fills `buf` with the first bytes of an extent as they are stored; whole sectors. `flags`
    /// are those of the inode that has it.
    pub fn read_stored(&self, flags: u64, extent: &FileExtentFields, buf: &mut [u8]) -> Result<()> {
        let core = &self.engine.core;
        extents::read_sectors(core, &core.view(), flags, extent, extent.disk_bytenr, buf)
    }
}
