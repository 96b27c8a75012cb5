//! What a file is: kind, owner, permissions, times; and changes of it.

use crate::error::Result;
use crate::volume::{At, Volume, bytes};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use vfs::{Attr, FileKind, SetAttr, SetTime, Timestamp};

/// What kind of file it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A device of characters.
    CharDevice,
    /// A device of blocks.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileType {
    pub(crate) fn of(kind: FileKind) -> FileType {
        match kind {
            FileKind::File => FileType::File,
            FileKind::Dir => FileType::Dir,
            FileKind::Symlink => FileType::Symlink,
            FileKind::CharDevice => FileType::CharDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
        }
    }

    /// A regular file.
    pub fn is_file(self) -> bool {
        self == FileType::File
    }

    /// A directory.
    pub fn is_dir(self) -> bool {
        self == FileType::Dir
    }

    /// A symbolic link.
    pub fn is_symlink(self) -> bool {
        self == FileType::Symlink
    }
}

/// What is known of a file beside its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata(Attr);

impl Metadata {
    pub(crate) fn of(attr: Attr) -> Metadata {
        Metadata(attr)
    }

    /// What kind of file it is.
    pub fn file_type(&self) -> FileType {
        FileType::of(self.0.kind)
    }

    /// A directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// A regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// A symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// The number of the inode, as a mount of the volume tells it.
    pub fn ino(&self) -> u64 {
        self.0.ino.0
    }

    /// The length of a file's content, or of a link's target.
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Without content.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the content takes on the volume.
    pub fn stored_bytes(&self) -> u64 {
        self.0.blocks.saturating_mul(512)
    }

    /// The twelve permission bits.
    pub fn permissions(&self) -> u32 {
        self.0.perm.into()
    }

    /// Kind and permissions as in `st_mode`.
    pub fn mode(&self) -> u32 {
        self.0.mode()
    }

    /// The owner's number.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The group's number.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// How many names it has.
    pub fn nlink(&self) -> u32 {
        self.0.nlink
    }

    /// The number of a device node, in the encoding of Linux; else 0.
    pub fn rdev(&self) -> u32 {
        self.0.rdev
    }

    /// When it was last read, where that is kept.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.atime)
    }

    /// When the content last changed.
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.mtime)
    }

    /// When content or attributes last changed.
    pub fn changed(&self) -> SystemTime {
        system_time(self.0.ctime)
    }

    /// When it was made.
    pub fn created(&self) -> SystemTime {
        system_time(self.0.btime)
    }
}

/// Times that this machine cannot say become its first.
fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let second = match time.secs >= 0 {
        true => UNIX_EPOCH.checked_add(whole),
        false => UNIX_EPOCH.checked_sub(whole),
    };
    let parts = Duration::from_nanos(time.nanos.into());
    second.and_then(|second| second.checked_add(parts)).unwrap_or(UNIX_EPOCH)
}

pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let whole = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => Timestamp { secs: -whole, nanos: 0 },
                nanos => Timestamp { secs: -whole - 1, nanos: 1_000_000_000 - nanos },
            }
        }
    }
}

/// Changes of a file's metadata, made in one step by [`Volume::set_metadata`].
///
/// ```no_run
/// # fn main() -> spinney::Result<()> {
/// # let volume = spinney::Volume::open_writable("disk.img")?;
/// use spinney::SetMetadata;
/// volume.set_metadata("etc/shadow", &SetMetadata::new().permissions(0o600).owner(0, 42))?;
/// # volume.close() }
/// ```
#[derive(Clone, Debug, Default)]
pub struct SetMetadata {
    set: SetAttr,
    no_follow: bool,
}

impl SetMetadata {
    /// Changes nothing yet.
    pub fn new() -> SetMetadata {
        SetMetadata::default()
    }

    /// These twelve permission bits.
    pub fn permissions(mut self, bits: u32) -> SetMetadata {
        self.set.perm = Some((bits & 0o7777) as u16);
        self
    }

    /// This user and this group.
    pub fn owner(mut self, user: u32, group: u32) -> SetMetadata {
        (self.set.uid, self.set.gid) = (Some(user), Some(group));
        self
    }

    /// Last read at this time.
    pub fn accessed(mut self, time: SystemTime) -> SetMetadata {
        self.set.atime = Some(SetTime::At(timestamp(time)));
        self
    }

    /// Content last changed at this time.
    pub fn modified(mut self, time: SystemTime) -> SetMetadata {
        self.set.mtime = Some(SetTime::At(timestamp(time)));
        self
    }

    /// Of a symbolic link itself, not of what it leads to.
    pub fn no_follow(mut self) -> SetMetadata {
        self.no_follow = true;
        self
    }
}

impl Volume {
    /// What `path` stands for, symbolic links followed.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let path = bytes(&path);
        self.find(path, true).map(|node| Metadata(node.attr)).at(self, path)
    }

    /// What `path` itself is, also if it is a symbolic link.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let path = bytes(&path);
        self.find(path, false).map(|node| Metadata(node.attr)).at(self, path)
    }

    /// Whether `path` stands for something.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        let path = bytes(&path);
        match self.find(path, true) {
            Ok(_) => Ok(true),
            Err(vfs::FsError::Posix(vfs::Errno::ENOENT | vfs::Errno::ENOTDIR)) => Ok(false),
            Err(error) => Err(self.error(path, error)),
        }
    }

    /// Changes what is known of `path`.
    pub fn set_metadata(&self, path: impl AsRef<Path>, changes: &SetMetadata) -> Result<()> {
        let path = bytes(&path);
        let node = self.find(path, !changes.no_follow).at(self, path)?;
        self.fs().setattr(self.context(), node.ino(), &changes.set).at(self, path).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_there_and_back() {
        for (secs, nanos) in [(0, 0), (0, 1), (-1, 0), (-1, 999_999_999), (-7, 1), (1 << 40, 5)] {
            let time = Timestamp { secs, nanos };
            assert_eq!(timestamp(system_time(time)), time);
        }
    }
}
