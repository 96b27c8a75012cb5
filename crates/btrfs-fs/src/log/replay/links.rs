//! Inodes after a replay: links are counted from the references, of every inode that it
//! touched, and what must hold for an inode as a whole is held against it.

use super::Replay;
use crate::error::IntoFs;
use crate::ino::InodeId;
use btrfs_disk::Key;
use btrfs_disk::ids::ORPHAN_OBJECTID;
use btrfs_disk::items::{FileExtent, InodeExtRef, InodeRef};
use btrfs_disk::key::kind;
use vfs::Result;

impl Replay<'_> {
    /// What has no link left becomes an orphan; a directory loses its names first, and with
    /// them what is below it. Ends: each round takes names away or one inode off the list.
    pub(super) fn count_links(&mut self) -> Result<()> {
        let tree = self.log().subvol;
        let range = InodeId::new(tree, 0)..=InodeId::new(tree, u64::MAX);
        while let Some(id) = self.fix.range(range.clone()).next_back().copied() {
            self.fix.remove(&id);
            let Some(item) = self.item(id)? else { continue };
            let links = self.links(id)?;
            let mut state = self.state(id)?;
            if state.is_dir() && links > 1 {
                return Err(self.damage(id, "the log gives a directory two names"));
            }
            if item.mode & vfs::mode::S_IFMT == vfs::mode::S_IFLNK {
                self.check_target(id, item.size)?;
            }
            if u64::from(item.nlink) != links {
                state.item.nlink = u32::try_from(links)
                    .map_err(|_| self.damage(id, "more links than an inode can have"))?;
                self.put(id, state);
            }
            if links == 0 {
                self.orphan(id)?;
            }
        }
        Ok(())
    }

    fn orphan(&mut self, id: InodeId) -> Result<()> {
        if self.state(id)?.is_dir() {
            self.empty(id)?;
        }
        let orphans = InodeId::new(id.tree, ORPHAN_OBJECTID);
        self.op.put(orphans, kind::ORPHAN_ITEM, id.objectid, Box::new([]));
        Ok(())
    }

    /// A symbolic link is one inline extent, as long as the link says; `btrfs-convert` stores the NUL
    /// behind it, too. One that came along was logged by kernels before 5.18 as being there, and
    /// without its target: it is empty then, as their replay leaves it.
    fn check_target(&self, id: InodeId, size: u64) -> Result<()> {
        let mut items = self.op.view.scan(id.tree, Key::new(id.objectid, kind::EXTENT_DATA, 0));
        let extent = items.next().fs()?.filter(|(key, _)| key.kind == kind::EXTENT_DATA);
        let fits = match &extent {
            None => size == 0,
            Some((key, bytes)) => match FileExtent::parse(bytes).fs()? {
                FileExtent::Inline { ram_bytes, content, .. } => {
                    let ends = content.last() == Some(&0);
                    key.offset == 0
                        && (ram_bytes == size || ends && ram_bytes == size.saturating_add(1))
                }
                FileExtent::Extent { .. } => false,
            },
        };
        if !fits {
            return Err(self.damage(id, "the log has a symbolic link without its target"));
        }
        if extent.is_none() {
            let (inode, tree) = (id.objectid, id.tree);
            tracing::warn!(inode, %tree, "the log does not say where a symbolic link leads");
        }
        Ok(())
    }

    fn links(&self, id: InodeId) -> Result<u64> {
        let mut links = 0;
        let mut items = self.op.view.scan(id.tree, Key::new(id.objectid, kind::INODE_REF, 0));
        while let Some((key, bytes)) = items.next().fs()? {
            match key.kind {
                kind::INODE_REF => {
                    for name in InodeRef::iter(&bytes) {
                        name.fs()?;
                        links += 1;
                    }
                }
                kind::INODE_EXTREF => {
                    for name in InodeExtRef::iter(&bytes) {
                        name.fs()?;
                        links += 1;
                    }
                }
                _ => break,
            }
        }
        Ok(links)
    }
}
