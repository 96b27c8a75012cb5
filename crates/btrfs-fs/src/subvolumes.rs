//! Subvolumes as programs see them: what there are, and making, snapshotting and deleting them.
//!
//! The face alone: what these calls do stands in `ops/subvolume`, what a commit makes of it in
//! `btrfs_txn::commit`. Rules of who may are the kernel's, told in [`Caller`]'s terms: neither
//! FUSE nor a control door checks the permissions of the directories that such a call names.

use crate::fs::BtrfsFs;
use std::time::Duration;
use vfs::{Entry, FsError, Ino, Result};

/// A subvolume's number: that of its tree. 5 is the top level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubvolId(pub u64);

impl SubvolId {
    /// What mkfs makes, above all others.
    pub const TOP_LEVEL: SubvolId = SubvolId(5);
}

/// Who asks, as far as it decides what is allowed.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// Owner and group of what is made.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Mode bits that a new subvolume's directory does not get.
    pub umask: u16,
    /// May do everything, as `CAP_SYS_ADMIN` (and `CAP_DAC_OVERRIDE`) may.
    pub privileged: bool,
}

impl Caller {
    /// The user root; also for programs that own the image.
    pub fn root() -> Caller {
        Caller { umask: 0o022, privileged: true, ..Caller::default() }
    }
}

/// A point in time: seconds since 1970, nanoseconds. Zeros: never.
pub type Time = (i64, u32);

/// What the volume says of one subvolume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubvolumeInfo {
    /// Its number.
    pub id: SubvolId,
    /// The subvolume that its name lies in; `None` for the top level, and for what is being
    /// deleted.
    pub parent: Option<SubvolId>,
    /// The directory in `parent` that has its name, by its number there.
    pub directory: u64,
    /// Its name in that directory.
    pub name: Vec<u8>,
    /// The way from the top level, without a slash in front; `None` where none leads to it.
    pub path: Option<Vec<u8>>,
    /// Its root directory's number in this mount.
    pub root: Ino,
    /// Of the last change of its tree.
    pub generation: u64,
    /// Of the commit that made it.
    pub created: u64,
    /// Its own UUID; zeros where an old kernel made it.
    pub uuid: [u8; 16],
    /// Of what it is a snapshot of, or zeros.
    pub parent_uuid: [u8; 16],
    /// Of what it was sent from, or zeros.
    pub received_uuid: [u8; 16],
    /// Nothing in it can be changed.
    pub read_only: bool,
    /// `flags` as the root item has them.
    pub flags: u64,
    /// When it changed last, was made, sent, and received; and by which commits.
    pub ctime: Time,
    /// See `ctime`.
    pub otime: Time,
    /// See `ctime`.
    pub stime: Time,
    /// See `ctime`.
    pub rtime: Time,
    /// See `ctime`.
    pub ctransid: u64,
    /// See `ctime`.
    pub otransid: u64,
    /// See `ctime`.
    pub stransid: u64,
    /// See `ctime`.
    pub rtransid: u64,
    /// Commits that snapshotted it or made it as a snapshot, the last one.
    pub last_snapshot: u64,
    /// It has no name any more, and its tree is being dropped.
    pub deleted: bool,
}

/// What leads to a subvolume that is to be deleted.
#[derive(Clone, Copy, Debug)]
pub enum Delete<'a> {
    /// The entry of a directory.
    Name(Ino, &'a [u8]),
    /// Its number; for privileged callers.
    Id(SubvolId),
}

fn todo<T>() -> Result<T> {
    Err(FsError::Unsupported("subvolumes cannot be changed yet".into()))
}

impl BtrfsFs {
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
        let _ = (caller, parent, name);
        todo()
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
        let _ = (caller, source, parent, name, read_only);
        todo()
    }

    /// Takes the name of a subvolume away at once, with all that is in it; its space comes back in
    /// the background ([`BtrfsFs::sync_deleted`]). Durable with the next commit (`sync`). Who has
    /// something open in it hears ESTALE. A read-only subvolume can be deleted, too.
    ///
    /// ENOENT; EINVAL: no subvolume's root directory; ENOTEMPTY: subvolumes lie in it; EPERM: it is
    /// the default subvolume, or the caller is not privileged and the volume was not opened with
    /// `user_subvol_rm_allowed`; EACCES: no right to write in the directory or in the subvolume;
    /// EBUSY: the mount begins in it.
    pub fn delete_subvolume(&self, caller: &Caller, which: Delete<'_>) -> Result<SubvolId> {
        let _ = (caller, which);
        todo()
    }

    /// All subvolumes by number, the top level and those being deleted among them.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        todo()
    }

    /// One of them. ENOENT: there is none.
    pub fn subvolume_info(&self, id: SubvolId) -> Result<SubvolumeInfo> {
        let _ = id;
        todo()
    }

    /// The subvolume that an inode lies in, and whether it is its root directory.
    pub fn subvolume_of(&self, ino: Ino) -> Result<(SubvolId, bool)> {
        let _ = ino;
        todo()
    }

    /// Where a mount begins that says nothing else.
    pub fn default_subvolume(&self) -> Result<SubvolId> {
        todo()
    }

    /// Changes that; durable with the next commit. EPERM: for privileged callers alone. ENOENT.
    pub fn set_default_subvolume(&self, caller: &Caller, id: SubvolId) -> Result<()> {
        let _ = (caller, id);
        todo()
    }

    /// Nothing in the subvolume can be changed any more, or it can again. What was written before is
    /// in it; the call commits. EPERM: the root directory is somebody else's.
    pub fn set_read_only(&self, caller: &Caller, id: SubvolId, read_only: bool) -> Result<()> {
        let _ = (caller, id, read_only);
        todo()
    }

    /// Waits until all of `ids` (empty: all that are being deleted now) are gone, with all that only they
    /// had; false: `timeout` passed before. Without background threads it does their work.
    pub fn sync_deleted(&self, ids: &[SubvolId], timeout: Option<Duration>) -> Result<bool> {
        let _ = (ids, timeout);
        todo()
    }
}
