//! Subvolumes as programs see them: what there are, and making, snapshotting and deleting them.
//!
//! The face alone: what these calls do stands in `ops/subvolume`, what a commit makes of it in
//! `btrfs_txn::commit`. Rules of who may are the kernel's, told in [`Caller`]'s terms: neither
//! FUSE nor a control door checks the permissions of the directories that such a call names.

use crate::error::IntoFs;
use crate::fs::BtrfsFs;
use crate::ops::subvolume::{self, Deleted};
use crate::subvol::{Caller, Delete, NewSubvolume, ReceivedFrom, Sending, SubvolId, SubvolumeInfo};
use btrfs_disk::TreeId;
use std::time::Duration;
use vfs::{Entry, Errno, Ino, Result};

impl BtrfsFs {
    /// Where the mount begins, and the path to it from the root; that is empty unless it was opened with
    /// `Options::from_top`.
    pub fn begin(&self) -> (Ino, &[u8]) {
        (self.engine.begin.ino, &self.engine.begin.path)
    }

    /// Makes an empty subvolume `name` in the directory `parent`. It is there for everybody when
    /// this returns, and durable with the next commit (`sync`), as a new directory is.
    /// The entry is its root directory's, with one lookup reference as `mkdir` gives it.
    ///
    /// EEXIST, ENOTDIR, ENAMETOOLONG, EINVAL (a name that none may have), EACCES (no right to
    /// write in `parent`), EROFS (read-only volume or subvolume), ENOSPC.
    pub fn create_subvolume(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> Result<(SubvolId, Entry)> {
        self.create_subvolume_in(caller, &NewSubvolume { parent, name, groups: &[] })
    }

    /// The same, and puts it into quota groups. Also ENOENT and EINVAL: there is no such group, it
    /// is one of a subvolume.
    pub fn create_subvolume_in(
        &self,
        caller: &Caller,
        new: &NewSubvolume<'_>,
    ) -> Result<(SubvolId, Entry)> {
        let (tree, entry) = subvolume::create(self.open()?, caller, new)?;
        Ok((SubvolId(tree.0), entry))
    }

    /// Makes `name` in the directory `parent` a snapshot of the subvolume whose root directory is
    /// `source`. It has what was completed before the call (and perhaps some of what was under way),
    /// content in memory included, and is durable when this returns: one commit.
    ///
    /// As [`BtrfsFs::create_subvolume`]; EPERM: the source belongs to somebody else. EINVAL also:
    /// `source` is no subvolume's root directory.
    pub fn snapshot(
        &self,
        caller: &Caller,
        source: Ino,
        parent: Ino,
        name: &[u8],
        read_only: bool,
    ) -> Result<(SubvolId, Entry)> {
        let new = NewSubvolume { parent, name, groups: &[] };
        self.snapshot_in(caller, source, &new, read_only)
    }

    /// The same, and puts the snapshot into quota groups; see [`BtrfsFs::create_subvolume_in`].
    pub fn snapshot_in(
        &self,
        caller: &Caller,
        source: Ino,
        new: &NewSubvolume<'_>,
        read_only: bool,
    ) -> Result<(SubvolId, Entry)> {
        let made = subvolume::snapshot(self.open()?, caller, source, new, read_only);
        made.map(|(tree, entry)| (SubvolId(tree.0), entry))
    }

    /// While what it gives lives a subvolume is neither deleted nor made writable: a stream is made of it, or of what
    /// differs from it. ENOENT: there is none.
    pub fn hold_for_send(&self, id: SubvolId) -> Result<Sending> {
        let engine = self.open()?;
        let _nobody_changes_it = engine.still_subvolumes();
        let subvolume = engine.subvols.get(TreeId(id.0)).ok_or(Errno::ENOENT)?;
        Ok(subvolume.sending())
    }

    /// Takes the name of a subvolume away at once, with all that is in it; its space comes back in
    /// the background ([`BtrfsFs::sync_deleted`]). Durable with the next commit (`sync`). Who has
    /// something open in it hears ESTALE. A read-only subvolume can be deleted by privileged callers alone (EROFS).
    ///
    /// ENOENT; EINVAL: no subvolume's root directory; ENOTEMPTY: subvolumes lie in it; EPERM: it is
    /// the default subvolume, or a stream is made of it ([`BtrfsFs::hold_for_send`]), or the caller is not
    /// privileged and the volume was not opened with `user_subvol_rm_allowed`; EACCES: no right to write in the
    /// directory or in the subvolume; EBUSY: the mount begins in it.
    pub fn delete_subvolume(&self, caller: &Caller, which: Delete<'_>) -> Result<SubvolId> {
        self.take_subvolume(caller, which).map(|gone| SubvolId(gone.tree.0))
    }

    /// As `delete_subvolume`; says the name that is gone, too.
    pub(crate) fn take_subvolume(&self, caller: &Caller, which: Delete<'_>) -> Result<Deleted> {
        subvolume::delete(self.open()?, caller, which)
    }

    /// All subvolumes by number, the top level and those being deleted among them.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        subvolume::all(self.open()?)
    }

    /// The first `most` of them whose number is above `behind`.
    pub fn subvolumes_behind(&self, behind: u64, most: usize) -> Result<Vec<SubvolumeInfo>> {
        subvolume::behind(self.open()?, behind, most)
    }

    /// One of them. ENOENT: there is none.
    pub fn subvolume_info(&self, id: SubvolId) -> Result<SubvolumeInfo> {
        subvolume::one(self.open()?, TreeId(id.0))
    }

    /// The subvolume that an inode lies in, and whether it is its root directory.
    pub fn subvolume_of(&self, ino: Ino) -> Result<(SubvolId, bool)> {
        let (tree, is_root) = subvolume::of(self.open()?, ino)?;
        Ok((SubvolId(tree.0), is_root))
    }

    /// Where a mount begins that says nothing else.
    pub fn default_subvolume(&self) -> Result<SubvolId> {
        subvolume::default(self.open()?).map(|tree| SubvolId(tree.0))
    }

    /// Changes that; durable with the next commit. EPERM: for privileged callers alone. ENOENT.
    pub fn set_default_subvolume(&self, caller: &Caller, id: SubvolId) -> Result<()> {
        subvolume::set_default(self.open()?, caller, TreeId(id.0))
    }

    /// What was once made read-only so that the kernel does not heed it.
    pub(crate) fn mend_flags(&self) -> Result<()> {
        match subvolume::mend_flags(self.open()?) {
            Err(error) if error.errno() == libc::ENOSPC => {
                tracing::warn!("no room to mend flags of snapshots; the next mount tries again");
                Ok(())
            }
            other => other,
        }
    }

    /// Nothing in the subvolume can be changed any more, or it can again. What was written before is
    /// in it; the call commits. EPERM: the root directory is somebody else's.
    pub fn set_read_only(&self, caller: &Caller, id: SubvolId, read_only: bool) -> Result<()> {
        subvolume::set_read_only(self.open()?, caller, TreeId(id.0), read_only)
    }

    /// Lets a subvolume be known as what another was sent as, from now on. What was written before
    /// is durable with it. EROFS: it is read-only. EPERM: the root directory is somebody else's.
    pub fn set_received(&self, caller: &Caller, id: SubvolId, from: &ReceivedFrom) -> Result<()> {
        subvolume::set_received(self.open()?, caller, TreeId(id.0), from, false)
    }

    /// As `set_received`, of a subvolume that is whole: the same commit makes it read-only.
    pub fn complete_received(
        &self,
        caller: &Caller,
        id: SubvolId,
        from: &ReceivedFrom,
    ) -> Result<()> {
        subvolume::set_received(self.open()?, caller, TreeId(id.0), from, true)
    }

    /// Asked again and again, says when all of `ids` (empty: all that are being deleted now) are gone. `None`:
    /// there are none.
    pub(crate) fn when_gone(
        &self,
        ids: &[SubvolId],
    ) -> Result<Option<impl FnMut() -> Result<bool> + '_>> {
        let cleaner = &self.open()?.cleaner;
        let ids: Vec<TreeId> = ids.iter().map(|id| TreeId(id.0)).collect();
        let wanted = cleaner.wanted(&ids)?;
        let are_any = !wanted.is_empty();
        Ok(are_any.then_some(move || {
            let gone = cleaner.are_gone(&wanted)?;
            // None goes any more then.
            let writable = || self.open()?.core.health.writable().fs();
            if gone { Ok(true) } else { writable().map(|()| false) }
        }))
    }

    /// Waits until all of `ids` (empty: all that are being deleted now) are gone, with all that only they
    /// had; false: `timeout` passed before. Without background threads it does their work. EEXIST: one of them is not
    /// being deleted.
    pub fn sync_deleted(&self, ids: &[SubvolId], timeout: Option<Duration>) -> Result<bool> {
        self.sync_deleted_by(ids, timeout, || Ok(()))
    }

    /// The same in steps, for each of which `hold` gives what is held meanwhile: who keeps others from that ends
    /// it behind the step that is under way.
    pub fn sync_deleted_by<H>(
        &self,
        ids: &[SubvolId],
        timeout: Option<Duration>,
        hold: impl Fn() -> Result<H>,
    ) -> Result<bool> {
        let engine = self.open()?;
        let ids: Vec<TreeId> = ids.iter().map(|id| TreeId(id.0)).collect();
        engine.cleaner.wait_until_gone(&ids, timeout, !engine.options.background, hold)
    }
}
