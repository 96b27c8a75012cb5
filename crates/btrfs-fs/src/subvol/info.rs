//! What programs see of subvolumes, and who asks for changes of them.

use crate::qgroup::QgroupId;
use vfs::{Exempt, Ino, NOBODY};

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
    /// As of [`vfs::Who`].
    pub unknown: bool,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Mode bits that a new subvolume's directory does not get.
    pub umask: u16,
    /// May do what is for administrators, as `CAP_SYS_ADMIN` may. Of files that says nothing.
    pub privileged: bool,
    /// Which rules about files do not hold for him.
    pub exempt: Exempt,
}

impl Caller {
    /// The user root; also for programs that own the image.
    pub fn root() -> Caller {
        Caller { umask: 0o022, privileged: true, exempt: Exempt::ALL, ..Caller::default() }
    }

    /// What is stored as nobody's is nobody's.
    pub(crate) fn is(&self, uid: u32) -> bool {
        uid != NOBODY && uid == self.uid
    }

    pub(crate) fn is_in(&self, gid: u32) -> bool {
        gid != NOBODY && (gid == self.gid || self.groups.contains(&gid))
    }
}

/// What a subvolume was received as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedFrom {
    /// The sent subvolume's UUID, or what that was received as itself.
    pub uuid: [u8; 16],
    /// The sent one's last commit.
    pub stransid: u64,
    /// When it was sent; zeros where the sender does not say it.
    pub stime: Time,
}

/// A point in time: seconds since 1970, nanoseconds. Zeros: never.
pub type Time = (i64, u32);

/// Of `all` the read-only subvolume that was received as the one of this UUID, or is it; of several
/// the one whose transaction is the sent one's as well.
pub fn known_as(
    all: impl IntoIterator<Item = SubvolumeInfo>,
    uuid: [u8; 16],
    ctransid: u64,
) -> Option<SubvolumeInfo> {
    let fit = |info: &SubvolumeInfo| {
        let received = info.received_uuid == uuid;
        let same = if received { info.stransid } else { info.ctransid } == ctransid;
        (received, same)
    };
    let known = |info: &SubvolumeInfo| {
        info.read_only && !info.deleted && [info.uuid, info.received_uuid].contains(&uuid)
    };
    let all = all.into_iter().filter(known);
    (uuid != [0; 16]).then(|| all.max_by_key(fit)).flatten()
}

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

/// Where a new subvolume comes to lie, and the quota groups that it is put into.
#[derive(Clone, Copy, Debug)]
pub struct NewSubvolume<'a> {
    /// The directory that gets its name.
    pub parent: Ino,
    /// In that directory.
    pub name: &'a [u8],
    /// Of level 1 and higher. Where there are no quotas they are not looked at.
    pub groups: &'a [QgroupId],
}

/// What leads to a subvolume that is to be deleted.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Delete<'a> {
    /// The entry of a directory.
    Name(Ino, &'a [u8]),
    /// Its number; for privileged callers.
    Id(SubvolId),
}
