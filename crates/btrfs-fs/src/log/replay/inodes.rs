//! The first stage: logged inodes come into being or get their logged attributes, after
//! what was deleted since the commit is gone.

use super::Replay;
use crate::error::IntoFs;
use crate::ino::InodeId;
use btrfs_disk::items::{DirItem, InodeItem};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key};
use vfs::Result;

impl Replay<'_> {
    pub(super) fn inodes(&mut self) -> Result<()> {
        for item in self.everything() {
            let item = item.fs()?;
            if item.key().kind != kind::INODE_ITEM {
                continue;
            }
            let logged = InodeItem::read(item.data()).fs()?;
            // Nothing of an inode without names is replayed: the directories that lost
            // them are in the log, too.
            if logged.nlink > 0 {
                self.inode(self.id(item.key().objectid), logged)?;
            }
        }
        Ok(())
    }

    fn inode(&mut self, id: InodeId, logged: InodeItem) -> Result<()> {
        self.done.inodes += 1;
        self.done.items += 1;
        let old = self.item(id)?;
        if let Some(old) = &old {
            if old.mode & vfs::mode::S_IFMT != logged.mode & vfs::mode::S_IFMT {
                return Err(self.damage(id, "the log makes another kind of inode of it"));
            }
            self.drop_xattrs(id)?;
            if logged.mode & vfs::mode::S_IFMT == vfs::mode::S_IFDIR {
                self.drop_names(id)?;
            }
        }
        // Names that were dropped have changed it.
        let old = self.item(id)?;
        self.put_logged(id, old, logged);
        let only_exists = logged.generation == 0 && logged.size == 0;
        if logged.mode & vfs::mode::S_IFMT == vfs::mode::S_IFREG && !only_exists {
            self.cut(id)?;
        }
        self.fix.insert(id);
        Ok(())
    }

    /// `nbytes`, and the size of a directory, follow from the items that are replayed.
    /// Generation 0 says that the inode is logged only so that it exists: one that does
    /// already keeps what it has, but for the size of a file that was logged before.
    fn put_logged(&self, id: InodeId, old: Option<InodeItem>, logged: InodeItem) {
        let is_dir = logged.mode & vfs::mode::S_IFMT == vfs::mode::S_IFDIR;
        let item = match old {
            Some(old) if logged.generation == 0 => {
                if logged.mode & vfs::mode::S_IFMT != vfs::mode::S_IFREG || logged.size == 0 {
                    return;
                }
                InodeItem { size: logged.size, ..old }
            }
            Some(old) => InodeItem {
                nbytes: old.nbytes,
                size: if is_dir { old.size } else { logged.size },
                ..logged
            },
            None => InodeItem {
                generation: match logged.generation {
                    0 => self.op.generation().0,
                    known => known,
                },
                nbytes: 0,
                size: if is_dir { 0 } else { logged.size },
                ..logged
            },
        };
        self.op.put(id, kind::INODE_ITEM, 0, item.to_boxed());
    }

    /// Extents behind the logged size go now: preallocated ones there are in the log.
    fn cut(&mut self, id: InodeId) -> Result<()> {
        let mut state = self.state(id)?;
        let sector = self.core.sector();
        let from = state.item.size.next_multiple_of(sector);
        if self.drop_extents(id, &mut state, from, u64::MAX)? {
            self.put(id, state);
        }
        Ok(())
    }

    /// Attributes that the log does not have were removed: it always has all of them.
    fn drop_xattrs(&mut self, id: InodeId) -> Result<()> {
        let mut changes = Vec::new();
        let mut items = self.op.view.scan(id.tree, Key::new(id.objectid, kind::XATTR_ITEM, 0));
        while let Some((key, bytes)) = items.next().fs()? {
            if key.kind != kind::XATTR_ITEM {
                break;
            }
            let logged = self.logged_item(&key)?;
            let logged = logged.as_ref().map_or(&[][..], |item| item.data());
            let mut rest = Vec::new();
            for entry in DirItem::iter(&bytes) {
                let entry = entry.fs()?;
                if has_name(logged, entry.name)? {
                    entry.append_to(&mut rest);
                }
            }
            if rest.len() != bytes.len() {
                changes.push((key.offset, rest));
            }
        }
        for (hash, rest) in changes {
            match rest.is_empty() {
                true => self.op.delete(id, kind::XATTR_ITEM, hash),
                false => self.op.put(id, kind::XATTR_ITEM, hash, rest.into()),
            }
        }
        Ok(())
    }

    /// The attributes of one hash, as logged.
    pub(super) fn xattrs(&mut self, id: InodeId, hash: u64, data: &[u8]) -> Result<()> {
        self.state(id)?;
        self.op.put(id, kind::XATTR_ITEM, hash, data.into());
        Ok(())
    }
}

fn has_name(entries: &[u8], name: &[u8]) -> Result<bool> {
    for entry in DirItem::iter(entries) {
        if entry.fs()?.name == name {
            return Ok(true);
        }
    }
    Ok(false)
}
