//! The trees of the last commit, for who reads them as they are: a stream of a subvolume is made
//! of them.
//!
//! Invariant: as long as a [`Committed`] lives, nothing that its trees lead to is written over. So
//! it holds back room that later commits free: who has it for long pays with that.

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents::{self, Trust};
use crate::fs::BtrfsFs;
use crate::ino::InodeId;
use crate::subvol::SubvolId;
use btrfs_disk::items::{
    ExtentDataRef, ExtentItem, FileExtent, FileExtentFields, InlineRef, InodeItem, RootItem,
    inode_flags,
};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Expect, FixedSize, Key, Logical, TreeId};
use btrfs_tree::{NodeReader, TreeRoot, scan};
use btrfs_txn::Roots;
use std::sync::Arc;
use vfs::{Errno, Result};

/// References of one extent that are looked at.
/// Chosen, not measured.
const MOST_REFS: usize = 256;

/// A file that has something of an extent: its number in some subvolume, and where the extent's first
/// byte would stand in it (wrapped around where that is before its own).
pub type Reference = (u64, u64);

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

    /// A subvolume; ENOENT where there is none of this number, or it is deleted: that may be half dropped.
    pub fn subvolume(&self, id: SubvolId) -> Result<(TreeRoot, RootItem)> {
        let tree = TreeId(id.0);
        let found = self.tree(tree).filter(|(_, item)| tree.is_subvolume() && !item.is_deleted());
        found.ok_or(Errno::ENOENT.into())
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
        let id = InodeId::new(tree, ino);
        if flags & inode_flags::RO_VERITY == 0 {
            return extents::read_extents(&self.engine.core, id, flags, offset, buf);
        }
        let key = Key::new(ino, kind::INODE_ITEM, 0);
        let item = self.engine.core.view().get(tree, &key).fs()?.ok_or(Errno::ENOENT)?;
        let size = InodeItem::read(&item).fs()?.size;
        let read = self.engine.verity.read((id, flags, size), offset, buf)?;
        buf[read..].fill(0);
        Ok(())
    }

    /// Fills `buf` with bytes of an extent from `skip` on, as they are stored; whole sectors. `flags`
    /// are those of the inode that has it.
    pub fn read_stored(
        &self,
        flags: u64,
        extent: &FileExtentFields,
        skip: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let core = &self.engine.core;
        let blind = core.features.unverified;
        let trust = if blind { Trust::Blind } else { Trust::of(flags) };
        let at = extent.disk_bytenr.offset(skip);
        extents::read_earlier(core, &self.roots, trust, extent, at, buf)
    }

    /// Files that have something of an extent, of the first some hundred references; nothing where
    /// there is only one. They are hints: what cannot be read, of whatever subvolume, is left out.
    pub fn references(&self, extent: Logical) -> Result<Vec<Reference>> {
        let Some(root) = self.roots.get(TreeId::EXTENT) else { return Ok(Vec::new()) };
        let first = Key::new(extent.0, kind::EXTENT_ITEM, 0);
        let last = Key::new(extent.0, kind::SHARED_DATA_REF, u64::MAX);
        let mut all = Vec::new();
        for item in scan(self.nodes(), &root.root, first..=last) {
            let Ok(item) = item else { break };
            let Ok(found) = references_of(item.key(), item.data()) else { continue };
            let Some(some) = found else { return Ok(Vec::new()) };
            for reference in some {
                self.note(extent, reference, &mut all);
            }
            if all.len() >= MOST_REFS {
                break;
            }
        }
        Ok(all)
    }

    fn note(&self, extent: Logical, reference: InlineRef, all: &mut Vec<Reference>) {
        let parent = match reference {
            InlineRef::Data(data) => {
                all.push((data.objectid, data.offset));
                return;
            }
            InlineRef::SharedData { parent, .. } => Logical(parent),
            _ => return,
        };
        let expect =
            Expect { logical: parent, level: 0, generation: None, owner: None, first_key: None };
        let Ok(leaf) = self.nodes().node(&expect) else { return };
        for (key, data) in leaf.items().filter(|(key, _)| key.kind == kind::EXTENT_DATA) {
            if let Ok(FileExtent::Extent { fields, .. }) = FileExtent::parse(data)
                && fields.disk_bytenr == extent
            {
                all.push((key.objectid, key.offset.wrapping_sub(fields.offset)));
            }
        }
    }
}

/// What one item of the extent tree says; `None`: the extent has one reference alone.
fn references_of(key: Key, data: &[u8]) -> std::result::Result<Option<Vec<InlineRef>>, Corrupt> {
    Ok(Some(match key.kind {
        kind::EXTENT_ITEM => {
            let found = ExtentItem::parse(key.kind, data)?;
            if found.fields.refs < 2 {
                return Ok(None);
            }
            found.inline
        }
        kind::EXTENT_DATA_REF => vec![InlineRef::Data(ExtentDataRef::read(data)?)],
        kind::SHARED_DATA_REF => vec![InlineRef::SharedData { parent: key.offset, count: 1 }],
        _ => Vec::new(),
    }))
}
