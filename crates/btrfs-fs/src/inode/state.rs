//! One inode in memory.
//!
//! Invariants:
//! * `State` is read and changed only under the inode's lock; an operation on several
//!   inodes locks them in ascending (tree, object id);
//! * a change of `item` goes to the delta before the lock is released, except size and
//!   times of buffered writes, which follow when the data lands (`item_dirty`);
//! * `loaded` is false only while the loader holds the lock, or after loading failed.

use super::{DirNames, Dirty, ErrorSeen, Gaps, ReportedBlocks};
use crate::ino::InodeId;
use crate::options::Method;
use btrfs_disk::items::{InodeItem, inode_flags};
use locks::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use orphans::Slot;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vfs::{Errno, Ino, Result};

/// How often a thread found an inode locked, over all volumes of the process.
pub(crate) static LOCK_WAITS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Inode {
    pub id: InodeId,
    pub ino: Ino,
    /// In the engine's list of inodes with unwritten data; the list's alone to change.
    pub(super) queued: AtomicBool,
    /// In writeback's list of files to be compressed soon; the list's alone to change.
    pub(crate) is_looked_after: AtomicBool,
    /// Found in the table since that was last asked.
    used: AtomicBool,
    pub(super) state: RwLock<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub loaded: bool,
    /// The inode's items are gone from the volume; nothing may touch it any more.
    pub erased: bool,
    /// Some of its items are gone, and the others go: nobody comes to it any more.
    pub(crate) erasing: bool,
    pub item: InodeItem,
    /// What a directory knows of its names.
    pub(crate) dir: DirNames,
    /// Where an inline item of the content ends, in whole sectors; 0: there is none; `None`: not looked up yet.
    pub(crate) inline_end: Option<u64>,
    /// Where an extent item of the file once began: that which content was stored in last, so
    /// the place to look first for what lies before the next.
    pub near: Option<u64>,
    /// Content that no extent holds yet.
    pub dirty: Option<Box<Dirty>>,
    /// Size up to which content has landed; what the volume may say.
    pub landed_size: u64,
    /// While a part of `dirty` is being stored: where the rest of it begins.
    pub pending_from: Option<u64>,
    /// Whether there may be a `security.capability` attribute; `None`: not looked up yet.
    pub capability: Option<bool>,
    /// Whether a directory has a default ACL; `None`: not looked up yet.
    pub(crate) default_acl: Option<bool>,
    /// No content lies behind the end; `false`: nobody has looked since the inode was loaded.
    pub(crate) clean_behind_end: bool,
    /// The next writeback must not make the content inline.
    pub no_inline: bool,
    /// The next writeback compresses the content so, unless it is content that never is.
    pub(crate) compress_next: Option<Method>,
    /// `item` differs from what the delta or the tree says.
    pub item_dirty: bool,
    /// The device refused content of this file, and there may be who has not heard of it.
    pub(crate) refused: Option<Box<ErrorSeen>>,
    /// Of a file that may only grow: what the kernel's cache has passed over.
    pub(crate) gaps: Option<Box<Gaps>>,
    /// The kernel's cache has sent content whose times it has not told yet.
    pub(crate) times_due: bool,
    /// It becomes a file with fs-verity: its content stays as it is.
    pub(crate) making_verity: bool,
    /// Made without a name (`O_TMPFILE`): `link` may give it its first one.
    pub linkable: bool,
    /// The block count that callers may remember.
    pub reported: ReportedBlocks,
    /// What is kept of an inode without a name, for who mounts the volume after a crash.
    pub orphan: Orphan,
}

/// How an inode without a name is known as such.
#[derive(Default)]
pub(crate) enum Orphan {
    /// It has one.
    #[default]
    No,
    /// An ORPHAN_ITEM stands for it.
    Item,
    /// It has a slot in the table, and gets an item when its epoch is committed.
    Slot(Slot),
}

impl Orphan {
    pub(crate) fn is_one(&self) -> bool {
        !matches!(self, Orphan::No)
    }
}

/// Where the inode's lock stands among all: by tree, then by object id.
fn place_of(id: InodeId) -> u128 {
    u128::from(id.tree.0) << 64 | u128::from(id.objectid)
}

impl Inode {
    pub(crate) fn new(id: InodeId, ino: Ino, state: State) -> Inode {
        Inode {
            id,
            ino,
            queued: AtomicBool::new(false),
            is_looked_after: AtomicBool::new(false),
            used: AtomicBool::new(false),
            state: RwLock::numbered(Rank::Inode, place_of(id), state),
        }
    }

    pub(super) fn use_now(&self) {
        // Mostly it is known, and the line stays as it is.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was found since this was last asked.
    pub(super) fn was_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) && self.used.swap(false, Ordering::Relaxed)
    }

    /// It leaves memory by `seal`, if loading it again gives all that memory has of it now. Nobody changes it
    /// in between: who took its last name away and let go of it would find that it is claimed still, and
    /// who gives the last claim back would find no inode to erase.
    pub(super) fn leaves_by(&self, seal: &dyn Fn() -> bool) -> bool {
        self.state.try_read().is_some_and(|state| state.is_as_stored() && seal())
    }

    /// Shared access; ESTALE if the inode is gone.
    pub(crate) fn read(&self) -> Result<RwLockReadGuard<'_, State>> {
        let state = self.state.read_or_count(|| _ = LOCK_WAITS.fetch_add(1, Ordering::Relaxed));
        state.usable()?;
        Ok(state)
    }

    /// Whether it waits to be erased once nobody refers to it, or is being erased.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.state.read().is_unnamed()
    }

    /// For who erases it; `None`: it is not [`Inode::is_unnamed`].
    pub(crate) fn write_to_erase(&self) -> Option<RwLockWriteGuard<'_, State>> {
        let state = self.state.write();
        state.is_unnamed().then_some(state)
    }

    /// Exclusive access; ESTALE if the inode is gone.
    pub(crate) fn write(&self) -> Result<RwLockWriteGuard<'_, State>> {
        let state = self.state.write_or_count(|| _ = LOCK_WAITS.fetch_add(1, Ordering::Relaxed));
        state.usable()?;
        Ok(state)
    }
}

impl State {
    /// It has items; perhaps not all of them.
    pub(super) fn has_items(&self) -> bool {
        self.loaded && !self.erased
    }

    /// It has no name, and only who refers to it keeps it.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.has_items() && self.item.nlink == 0 && self.orphan.is_one()
    }

    fn usable(&self) -> Result<()> {
        if self.has_items() && !self.erasing { Ok(()) } else { Err(Errno::ESTALE.into()) }
    }

    /// EPERM: content stays as it is for good; ETXTBSY: for now.
    pub(crate) fn content_changes(&self) -> Result<()> {
        if self.item.flags & (inode_flags::IMMUTABLE | inode_flags::RO_VERITY) != 0 {
            return Err(Errno::EPERM.into());
        }
        if self.making_verity { Err(Errno::ETXTBSY.into()) } else { Ok(()) }
    }

    /// Content is written over or goes; EPERM, too: it may only grow.
    pub(crate) fn content_is_replaced(&self) -> Result<()> {
        if self.item.flags & inode_flags::APPEND != 0 {
            return Err(Errno::EPERM.into());
        }
        self.content_changes()
    }

    fn is_as_stored(&self) -> bool {
        let has_name = self.item.nlink > 0 && !self.orphan.is_one() && !self.linkable;
        let has_landed = self.dirty.is_none() && self.pending_from.is_none() && !self.item_dirty;
        let settled = self.refused.is_none() && !self.no_inline && !self.making_verity;
        self.usable().is_ok() && has_name && has_landed && settled && self.gaps.is_none()
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.item.mode & vfs::mode::S_IFMT == vfs::mode::S_IFDIR
    }

    pub(crate) fn is_file(&self) -> bool {
        self.item.mode & vfs::mode::S_IFMT == vfs::mode::S_IFREG
    }

    /// The item as the volume may see it: its size never covers data in flight.
    pub(crate) fn item_for_disk(&self) -> InodeItem {
        let mut item = self.item;
        if self.is_file() {
            item.size = self.disk_size();
        }
        item
    }

    /// The part of the size behind which all content has landed.
    pub(crate) fn disk_size(&self) -> u64 {
        let dirty = self.dirty.as_ref().and_then(|d| d.first_from(self.landed_size));
        let rest = self.pending_from.filter(|from| *from >= self.landed_size);
        match dirty.into_iter().chain(rest).min() {
            Some(start) => self.item.size.min(start.max(self.landed_size)),
            None => self.item.size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_in_memory_is_small() {
        assert!(size_of::<Inode>() <= 512, "{} bytes", size_of::<Inode>());
    }
}
