//! Names: what directories list, what inodes say of their names, and what has to go.
//!
//! A name is in the log twice at most: in its directory (DIR_INDEX) and in its inode
//! (INODE_REF, INODE_EXTREF). Either is enough to make it; the inode's word is the later
//! one. A directory's ranges (DIR_LOG_INDEX) say where its DIR_INDEX items are all there
//! are: what the subvolume has more was deleted or renamed.

use super::super::read::range;
use super::Replay;
use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::inode::kind_of;
use crate::names::{self, Target};
use btrfs_disk::checksum::extref_hash;
use btrfs_disk::items::{DirItem, InodeExtRef, InodeItem, InodeRef};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key};
use btrfs_txn::Defect;
use vfs::Result;

/// A name of an inode.
struct Name<'a> {
    dir: InodeId,
    index: u64,
    name: &'a [u8],
}

impl Replay<'_> {
    /// The second stage: names that directories list.
    pub(super) fn listed_names(&mut self) -> Result<()> {
        let mut ignored = None;
        for item in self.everything() {
            let item = item.fs()?;
            let key = item.key();
            if key.kind == kind::INODE_ITEM && InodeItem::read(item.data()).fs()?.nlink == 0 {
                ignored = Some(key.objectid);
            }
            if key.kind != kind::DIR_INDEX || ignored == Some(key.objectid) {
                continue;
            }
            let dir = self.id(key.objectid);
            for entry in DirItem::iter(item.data()) {
                let entry = entry.fs()?;
                self.listed(&entry, &Name { dir, index: key.offset, name: entry.name })?;
            }
            self.done.items += 1;
        }
        Ok(())
    }

    /// One name that a directory lists. Names of what does not exist are passed over: an
    /// fsync of a directory does not make the files in it durable.
    fn listed(&mut self, entry: &DirItem<'_>, at: &Name<'_>) -> Result<()> {
        self.dir(at.dir)?;
        if entry.location.kind != kind::INODE_ITEM {
            return Ok(()); // Making or deleting a subvolume is never logged.
        }
        let target = self.id(entry.location.objectid);
        if self.item(target)?.is_none() {
            return Ok(());
        }
        match names::lookup(&self.op.view, at.dir, at.name)? {
            Some(found) if found.location == entry.location => return Ok(()),
            Some(_) => self.unlink(at.dir, at.name)?,
            None => {}
        }
        if self.has_logged_ref(target, at.dir.objectid, at.name)? {
            return Ok(());
        }
        self.link(target, at)
    }

    /// Names in ranges that the log knows wholly, and not in the log, are gone.
    pub(super) fn drop_names(&mut self, dir: InodeId) -> Result<()> {
        let first = Key::new(dir.objectid, kind::DIR_LOG_INDEX, 0);
        let last = Key::new(dir.objectid, kind::DIR_LOG_INDEX, u64::MAX);
        let mut from = 0;
        for item in self.logged(first, last) {
            let item = item.fs()?;
            let (start, end) = range(&item.key(), item.data()).fs()?;
            for name in self.unlogged(dir, start.max(from), end)? {
                self.unlink(dir, &name)?;
            }
            self.done.items += 1;
            from = from.max(end.saturating_add(1));
        }
        Ok(())
    }

    /// Names of the subvolume with indexes from `start` to `end` that the log has not.
    fn unlogged(&self, dir: InodeId, start: u64, end: u64) -> Result<Vec<Vec<u8>>> {
        let mut gone = Vec::new();
        let mut items = self.op.view.scan(dir.tree, Key::new(dir.objectid, kind::DIR_INDEX, start));
        while let Some((key, bytes)) = items.next().fs()? {
            if key.kind != kind::DIR_INDEX || key.offset > end {
                break;
            }
            let logged = self.logged_item(&key)?;
            for entry in DirItem::iter(&bytes) {
                let name = entry.fs()?.name;
                if logged.as_ref().is_none_or(|item| !names_it(item.data(), name)) {
                    gone.push(name.to_vec());
                }
            }
        }
        Ok(gone)
    }

    /// All names of a directory that has none itself any more.
    pub(super) fn empty(&mut self, dir: InodeId) -> Result<()> {
        let mut names = Vec::new();
        let mut items = self.op.view.scan(dir.tree, Key::new(dir.objectid, kind::DIR_INDEX, 0));
        while let Some((key, bytes)) = items.next().fs()? {
            if key.kind == kind::DIR_INDEX {
                for entry in DirItem::iter(&bytes) {
                    names.push(entry.fs()?.name.to_vec());
                }
            }
        }
        names.iter().try_for_each(|name| self.unlink(dir, name))
    }

    /// Names of `id` in the directory `parent`, as the inode says.
    pub(super) fn refs(&mut self, id: InodeId, parent: u64, data: &[u8]) -> Result<()> {
        self.state(id)?;
        if parent == id.objectid {
            return Ok(()); // The root directory's "..".
        }
        let dir = self.id(parent);
        let key = Key::new(id.objectid, kind::INODE_REF, parent);
        if let Some(old) = self.op.view.get(id.tree, &key).fs()? {
            for old in InodeRef::iter(&old) {
                self.drop_unless_logged(id, dir, old.fs()?.name)?;
            }
        }
        for name in InodeRef::iter(data) {
            let InodeRef { index, name } = name.fs()?;
            self.referred(id, &Name { dir, index, name })?;
        }
        Ok(())
    }

    /// As `refs`, for names that found no room there; all of one hash.
    pub(super) fn extrefs(&mut self, id: InodeId, hash: u64, data: &[u8]) -> Result<()> {
        self.state(id)?;
        let key = Key::new(id.objectid, kind::INODE_EXTREF, hash);
        if let Some(old) = self.op.view.get(id.tree, &key).fs()? {
            for old in InodeExtRef::iter(&old) {
                let InodeExtRef { parent, name, .. } = old.fs()?;
                self.drop_unless_logged(id, self.id(parent), name)?;
            }
        }
        for name in InodeExtRef::iter(data) {
            let InodeExtRef { parent, index, name } = name.fs()?;
            self.referred(id, &Name { dir: self.id(parent), index, name })?;
        }
        Ok(())
    }

    fn drop_unless_logged(&mut self, id: InodeId, dir: InodeId, name: &[u8]) -> Result<()> {
        match self.has_logged_ref(id, dir.objectid, name)? {
            true => Ok(()),
            false => self.unlink(dir, name),
        }
    }

    /// One name that an inode says it has. Where its directory does not exist it has not:
    /// not all parents must be in the log.
    fn referred(&mut self, id: InodeId, at: &Name<'_>) -> Result<()> {
        if self.item(at.dir)?.is_none() {
            return Ok(());
        }
        self.dir(at.dir)?;
        let location = Key::new(id.objectid, kind::INODE_ITEM, 0);
        if let Some(found) = names::lookup(&self.op.view, at.dir, at.name)? {
            if found.location == location && self.listed_at(at)? {
                return Ok(());
            }
            self.unlink(at.dir, at.name)?;
        }
        self.link(id, at)
    }

    /// Whether the directory has the name at its index.
    fn listed_at(&self, at: &Name<'_>) -> Result<bool> {
        let key = Key::new(at.dir.objectid, kind::DIR_INDEX, at.index);
        let found = self.op.view.get(at.dir.tree, &key).fs()?;
        Ok(found.is_some_and(|bytes| names_it(&bytes, at.name)))
    }

    /// Makes a name that the directory does not have.
    fn link(&mut self, id: InodeId, at: &Name<'_>) -> Result<()> {
        if self.core.injection.has(Defect::ReplaySkipsNames) {
            return Ok(());
        }
        names::check_index(at.dir, at.index)?;
        names::check_room(&self.op.view, at.dir, at.name, self.core.geometry.max_item_size())?;
        self.vacate(at.dir, at.index)?;
        let target = Target {
            location: Key::new(id.objectid, kind::INODE_ITEM, 0),
            kind: names::dir_type_of(kind_of(&self.state(id)?.item).fs()?),
        };
        names::add(&self.op, at.dir, at.name, target, at.index)?;
        let mut dir = self.dir(at.dir)?;
        dir.item.size = dir.item.size.saturating_add(2 * at.name.len() as u64);
        self.put(at.dir, dir);
        self.fix.insert(id);
        Ok(())
    }

    /// An index is used again when the last names of a directory went and its counter was
    /// looked up anew: what stands there in the subvolume was deleted.
    fn vacate(&mut self, dir: InodeId, index: u64) -> Result<()> {
        let key = Key::new(dir.objectid, kind::DIR_INDEX, index);
        let Some(bytes) = self.op.view.get(dir.tree, &key).fs()? else { return Ok(()) };
        for entry in DirItem::iter(&bytes) {
            self.unlink(dir, entry.fs()?.name)?;
        }
        Ok(())
    }

    /// Takes a name away; the inode's links are counted in the end. Times stay: the log has
    /// those of the directory, if it was synced.
    fn unlink(&mut self, dir: InodeId, name: &[u8]) -> Result<()> {
        let mut state = self.dir(dir)?;
        let Some(target) = names::lookup(&self.op.view, dir, name)? else {
            return Err(self.damage(dir, "an index without its DIR_ITEM"));
        };
        if target.is_subvolume() {
            return Err(self.damage(dir, "the log deletes a subvolume's name"));
        }
        names::remove(&self.op, (dir, state.dir.given()), name, target)?;
        state.item.size = state.item.size.saturating_sub(2 * name.len() as u64);
        self.put(dir, state);
        self.fix.insert(self.id(target.location.objectid));
        Ok(())
    }

    /// Whether the log has this name among the inode's references.
    fn has_logged_ref(&self, id: InodeId, parent: u64, name: &[u8]) -> Result<bool> {
        if let Some(item) = self.logged_item(&Key::new(id.objectid, kind::INODE_REF, parent))? {
            for found in InodeRef::iter(item.data()) {
                if found.fs()?.name == name {
                    return Ok(true);
                }
            }
        }
        let hash = extref_hash(parent, name);
        let Some(item) = self.logged_item(&Key::new(id.objectid, kind::INODE_EXTREF, hash))? else {
            return Ok(false);
        };
        for found in InodeExtRef::iter(item.data()) {
            let found = found.fs()?;
            if found.parent == parent && found.name == name {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn names_it(entries: &[u8], name: &[u8]) -> bool {
    DirItem::iter(entries).flatten().any(|entry| entry.name == name)
}
