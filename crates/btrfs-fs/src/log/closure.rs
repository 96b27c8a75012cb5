//! Which inodes must be logged together.
//!
//! A replay puts the logged inodes over the last commit; everything else stays as that
//! commit has it. So that the outcome is a tree of directories in which each logged inode
//! has exactly the names that it has now, and no other inode loses its last one:
//!
//! * a new name needs its directory: one that the commit lacks is logged too;
//! * a name that is gone is cut out of its directory, which is logged for that;
//! * where a new name takes the place of another inode's, that one is logged under the
//!   names that it has now, or vanishes if it has none;
//! * a directory that is gone takes along what was in it, which must be gone, too;
//! * where something took the place of a name that is gone, be it from the commit or from
//!   what was logged before, it is logged too;
//! * who took a name in a rename comes with the one that had it;
//! * a directory that moved needs all directories above it that moved, or a replay could
//!   put it below itself;
//! * a synced directory takes along what came into it and what left it, and so do the
//!   directories among that;
//! * who is synced and has other names than in the commit takes along what came into the
//!   directories of those names and what left them.
//!
//! The last two are what the kernel's log does, and so is a commit where a directory that shall
//! take along its entries was moved, or let go of something that was, or where an exchange of two
//! of them was the first change since the last commit (`Fallback::Moved`).
//! `tests/kept` holds all short sequences against the kernel.
//!
//! What was logged before and has changed its names since is logged again with whatever
//! is logged next, so all that the log says of names is of one moment.

use super::committed::{Committed, Name, entry_of, target_in};
use super::freeze::{Now, Work};
use super::state::LogState;
use super::{Fallback, Logged};
use crate::ino::InodeId;
use crate::names::MAX_DEPTH;
use btrfs_disk::checksum::name_hash;
use btrfs_disk::items::{DirFields, DirItem};
use btrfs_disk::key::kind;
use btrfs_disk::node::ITEM_SIZE;
use btrfs_disk::{Error, FixedSize, Key, Result, TreeId};
use btrfs_txn::delta::{Level, Pending, is_ref};
use std::collections::BTreeSet;

/// What the last commit has in directories that are gone, for one log write: from about
/// 1,500 on a commit is done sooner (docs/perf/journal.md).
const MOST_REMOVED: usize = 1500;

pub(crate) struct Closure<'a> {
    /// Largest item that fits a leaf.
    pub max_item: usize,
    pub committed: &'a Committed<'a>,
    /// For a look at what is not frozen: whatever it says of changes is frozen next.
    pub pending: Pending<'a>,
    pub state: &'a LogState,
    pub work: &'a mut Work,
    /// Entries of directories that are gone, in this round.
    pub removed: usize,
}

impl Closure<'_> {
    /// One round over everything frozen. The work is done when it asks for nothing more.
    pub(crate) fn round(&mut self) -> Logged<()> {
        let ids: Vec<InodeId> = self.work.objects.keys().copied().collect();
        for id in ids {
            match self.work.now(self.committed, id)? {
                None | Some(Now::Gone) => self.gone(id)?,
                Some(Now::Here(item)) => {
                    let is_dir = item.mode & vfs::mode::S_IFMT == vfs::mode::S_IFDIR;
                    self.here(id, is_dir)?;
                }
            }
        }
        Ok(())
    }

    /// An inode without names: its old ones vanish, and so does what the log has of it.
    fn gone(&mut self, id: InodeId) -> Logged<()> {
        self.work.dropped.insert(id);
        if self.is_born(id) && !self.state.members.contains_key(&id) {
            // Neither the commit nor the log says anything of it. What took its names and what
            // it took them from are found by the names.
            return Ok(());
        }
        self.followers(id);
        self.unlogged(id, &BTreeSet::new())?;
        if self.is_born(id) {
            return Ok(());
        }
        let before = self.committed.inode(id)?;
        if before.is_some_and(|item| item.mode & vfs::mode::S_IFMT == vfs::mode::S_IFDIR) {
            self.emptied(id)?;
        }
        for name in self.committed.names(id)? {
            self.cut(id, &name)?;
        }
        Ok(())
    }

    /// A replay takes away whatever the commit has in a directory without names, and what
    /// that leaves without any. So all of it must be gone: of something that was moved
    /// elsewhere a replay would see two names until then, which a directory must not have.
    fn emptied(&mut self, dir: InodeId) -> Logged<()> {
        let inside = self.committed.entries(dir, MOST_REMOVED)?;
        self.removed += inside.len();
        if self.removed > MOST_REMOVED {
            return Err(Fallback::TooMany.into());
        }
        for target in inside {
            let child = inode_at(dir.tree, &target)?;
            self.work.want(child, Level::Inode);
            let known = self.work.objects.contains_key(&child);
            if known && matches!(self.work.now(self.committed, child)?, Some(Now::Here(_))) {
                return Err(Fallback::GoneDirectory.into());
            }
        }
        Ok(())
    }

    fn here(&mut self, id: InodeId, is_dir: bool) -> Logged<()> {
        let frozen = &self.work.objects[&id];
        let verity = (kind::VERITY_DESC_ITEM, 0)..=(kind::VERITY_MERKLE_ITEM, u64::MAX);
        if frozen.slots.range(verity).next().is_some() {
            return Err(Fallback::Verity.into());
        }
        let (born, renamed) = (frozen.born, frozen.has_refs());
        if renamed {
            if !born && !self.names_fit(id)? {
                return Err(Fallback::LongNames.into());
            }
            self.followers(id);
            let now = self.work.names(self.committed, id)?;
            let before = if born { BTreeSet::new() } else { self.committed.names(id)? };
            for name in now.difference(&before) {
                self.gained(id, name)?;
            }
            for name in before.difference(&now) {
                self.cut(id, name)?;
            }
            self.unlogged(id, &now)?;
            if is_dir && !born {
                self.above(id)?;
            }
        }
        if !born && self.work.asked.contains(&id) && self.pending.renames(id.tree, id.objectid) {
            self.beside(id)?;
        }
        if is_dir {
            if self.work.wanted.get(&id) == Some(&Level::Entries) && self.must_commit(id) {
                return Err(Fallback::Moved.into());
            }
            self.entries(id)?;
        }
        Ok(())
    }

    /// The directories that the commit has it in are logged with all that came and went.
    fn beside(&mut self, id: InodeId) -> Result<()> {
        for name in self.committed.names(id)? {
            self.work.want(InodeId::new(id.tree, name.parent), Level::Entries);
        }
        Ok(())
    }

    /// What went from one directory to another is in the log without its new directory's other
    /// entries: the kernel commits, unless the directory was in the log before.
    fn must_commit(&self, dir: InodeId) -> bool {
        let known = self.state.members.get(&dir).is_some_and(|member| member.entries);
        self.work.may_commit && !known && self.pending.was_moved(dir.tree, dir.objectid)
    }

    fn is_born(&self, id: InodeId) -> bool {
        match self.work.objects.get(&id) {
            Some(frozen) => frozen.born,
            None => self.pending.is_born(id.tree, id.objectid),
        }
    }

    /// A name that the commit does not have in this form.
    fn gained(&mut self, id: InodeId, name: &Name) -> Logged<()> {
        let parent = InodeId::new(id.tree, name.parent);
        if self.is_born(parent) {
            self.work.want(parent, Level::Inode);
            return Ok(());
        }
        let hash = name_hash(&name.name);
        let Some(item) = self.committed.get(parent, kind::DIR_ITEM, hash)? else { return Ok(()) };
        self.crowd((parent, hash), name, &item)?;
        let Some(other) = target_in(&item, &name.name)? else { return Ok(()) };
        let other = inode_at(id.tree, &other)?;
        if other == id {
            return Ok(());
        }
        let its = self.committed.names(other)?;
        match its.iter().find(|n| n.parent == name.parent && n.name == name.name) {
            Some(its) => self.cut(other, its),
            None => Ok(()),
        }
    }

    /// While a log is replayed, the item of a name's hash holds what the commit has there and what
    /// the log makes, and who replays it fails for good where that is more than fits. (What no
    /// commit has is the log's alone, of one moment, and fitted then.)
    fn crowd(&mut self, at: (InodeId, u64), name: &Name, item: &[u8]) -> Logged<()> {
        let mut committed = BTreeSet::new();
        for entry in DirItem::iter(item) {
            committed.insert(entry.map_err(Error::from)?.name);
        }
        if committed.iter().all(|other| *other == name.name) {
            return Ok(());
        }
        let made = self.work.crowded.entry(at).or_default();
        made.insert(name.name.clone());
        let before = self.state.crowded.get(&at).into_iter().flatten();
        let all = before.filter(|name| !made.contains(*name)).chain(made.iter());
        let more = all.filter(|name| !committed.contains(name.as_slice()));
        let bytes: usize = more.map(|name| DirFields::SIZE + name.len()).sum();
        match item.len() + bytes > self.max_item {
            true => Err(Fallback::LongNames.into()),
            false => Ok(()),
        }
    }

    /// A name of the commit that `id` has no more: its directory loses the entry, and `id`
    /// must come with the names that it has instead.
    fn cut(&mut self, id: InodeId, name: &Name) -> Logged<()> {
        let parent = InodeId::new(id.tree, name.parent);
        if !self.work.cuts.insert((parent, name.index)) {
            return Ok(());
        }
        self.work.want(parent, Level::Inode);
        self.work.want(id, Level::Inode);
        self.successor(parent, &name.name)
    }

    /// While the kernel replays, an item holds the names of the commit and the new ones: it
    /// fails for good where a leaf has no room for both.
    fn names_fit(&self, id: InodeId) -> Result<bool> {
        for (&(kind, offset), value) in &self.work.objects[&id].slots {
            let Some(new) = value.as_ref().filter(|_| is_ref(kind)) else { continue };
            let old = self.committed.get(id, kind, offset)?.map_or(0, |old| old.len());
            if old > 0 && old + new.len() + ITEM_SIZE > self.max_item {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A rename that took a name from `id` happened wholly or not at all.
    fn followers(&mut self, id: InodeId) {
        for follower in self.work.objects[&id].followers.clone() {
            self.work.want(InodeId::new(id.tree, follower), Level::Inode);
        }
    }

    /// Names that the log gave the inode and that it has no more.
    fn unlogged(&mut self, id: InodeId, now: &BTreeSet<Name>) -> Logged<()> {
        let Some(member) = self.state.members.get(&id) else { return Ok(()) };
        for name in member.names.difference(now) {
            self.successor(InodeId::new(id.tree, name.parent), &name.name)?;
        }
        Ok(())
    }

    /// What stands under a name that is cut has come in the same operation, maybe (an
    /// exchange, a whiteout): it comes along, or the name would be seen to stand for nothing.
    fn successor(&mut self, dir: InodeId, name: &[u8]) -> Logged<()> {
        let key = Key::new(dir.objectid, kind::DIR_ITEM, name_hash(name));
        let Some(Some(bytes)) = self.pending.get(dir.tree, &key) else { return Ok(()) };
        for entry in DirItem::iter(&bytes) {
            let entry = entry.map_err(Error::from)?;
            if entry.name != name {
                continue;
            }
            self.work.want(inode_at(dir.tree, &entry.location)?, Level::Inode);
        }
        Ok(())
    }

    /// Wants every directory above `id` that moved.
    fn above(&mut self, id: InodeId) -> Result<()> {
        let mut at = id;
        for _ in 0..MAX_DEPTH {
            let names = if self.work.objects.contains_key(&at) {
                self.work.names(self.committed, at)?
            } else if self.pending.renames(at.tree, at.objectid) {
                // Frozen in the next round, which walks on from there.
                self.work.want(at, Level::Inode);
                return Ok(());
            } else {
                self.committed.names(at)?
            };
            match names.first() {
                Some(name) if name.parent != at.objectid => {
                    at = InodeId::new(id.tree, name.parent);
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// A synced directory's entries: those that came, those that went. (Of a directory that
    /// nobody synced none were taken.)
    fn entries(&mut self, dir: InodeId) -> Logged<()> {
        for left in self.work.objects[&dir].left.clone() {
            self.work.want(InodeId::new(dir.tree, left), Level::Inode);
        }
        let all = (kind::DIR_INDEX, 0)..=(kind::DIR_INDEX, u64::MAX);
        let changed: Vec<(u64, Option<Box<[u8]>>)> = self.work.objects[&dir]
            .slots
            .range(all)
            .map(|(key, value)| (key.1, value.clone()))
            .collect();
        for (index, value) in changed {
            if let Some(bytes) = value
                && let Some((target, _)) = entry_of(&bytes)?
            {
                // Of a file there are no entries to be taken.
                self.work.want(inode_at(dir.tree, &target)?, Level::Entries);
            }
            let Some((old, name)) = self.committed.entry_at(dir, index)? else { continue };
            let old = inode_at(dir.tree, &old)?;
            let name = Name { parent: dir.objectid, index, name };
            let still = self.work.objects.contains_key(&old)
                && self.work.names(self.committed, old)?.contains(&name);
            if !still {
                self.cut(old, &name)?;
            }
        }
        Ok(())
    }
}

/// The inode that an entry leads to; of a subvolume no log says anything.
fn inode_at(tree: TreeId, target: &Key) -> std::result::Result<InodeId, Fallback> {
    match target.kind {
        kind::INODE_ITEM => Ok(InodeId::new(tree, target.objectid)),
        _ => Err(Fallback::Subvolume),
    }
}
