//! What is known of an inode from outside: numbers, modes and times.
//!
//! Invariant: `Attr::perm` never carries file-type bits; the type is `Attr::kind`.

use crate::mode::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An inode number, unique in one mount and stable across mounts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ino(pub u64);

/// What sort of thing an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: POSIX has no other, and formats, stat(2) and FUSE have a number for each.
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A character device node.
    CharDevice,
    /// A block device node.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
}

impl FileKind {
    /// The `S_IFMT` bits of this kind.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => S_IFREG,
            FileKind::Dir => S_IFDIR,
            FileKind::Symlink => S_IFLNK,
            FileKind::CharDevice => S_IFCHR,
            FileKind::BlockDevice => S_IFBLK,
            FileKind::Fifo => S_IFIFO,
            FileKind::Socket => S_IFSOCK,
        }
    }

    /// The kind that the `S_IFMT` bits of `mode` name, if any.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & S_IFMT {
            S_IFREG => FileKind::File,
            S_IFDIR => FileKind::Dir,
            S_IFLNK => FileKind::Symlink,
            S_IFCHR => FileKind::CharDevice,
            S_IFBLK => FileKind::BlockDevice,
            S_IFIFO => FileKind::Fifo,
            S_IFSOCK => FileKind::Socket,
            _ => return None,
        })
    }

    /// The `DT_*` value of `readdir`.
    pub fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// Seconds since 1970 and nanoseconds below one second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Since the beginning of 1970 (UTC); negative before.
    pub secs: i64,
    /// 0 to 999,999,999, counted forward also where `secs` is negative.
    pub nanos: u32,
}

impl Timestamp {
    /// The system's time. Engines take theirs from a clock that is a parameter.
    pub fn now() -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
    }
}

/// What `stat` and `statx` tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// The number that `stat` shows.
    pub ino: Ino,
    /// The type bits of the mode.
    pub kind: FileKind,
    /// The lower twelve mode bits.
    pub perm: u16,
    /// Names of the inode; 1 for directories where the format does not count them.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// Linux `dev_t` of a device node in the 32-bit "new" encoding, else 0.
    pub rdev: u32,
    /// Bytes of content; of a symbolic link those of its target.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Bytes, as a hint: transfers of this size and more are cheap.
    pub blksize: u32,
    /// Last read, as far as it is kept (`FileSystem::keeps_atime`).
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content, attributes or names.
    pub ctime: Timestamp,
    /// When the inode was made.
    pub btime: Timestamp,
    /// Those of [`crate::attributes`] that are set.
    pub attributes: u64,
}

impl Attr {
    /// Type and permission bits together, as in `st_mode`.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.perm)
    }
}

/// A name that was resolved or made; the caller holds one lookup reference on it
/// and gives it back with `FileSystem::forget`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// As of the moment of the answer.
    pub attr: Attr,
    /// Tells reuses of one inode number apart.
    pub generation: u64,
}

/// One name of a directory as `readdir` delivers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// What the name stands for.
    pub ino: Ino,
    /// The type, without the permissions.
    pub kind: FileKind,
    /// 1 to 255 bytes.
    pub name: &'a [u8],
    /// Pass this as `offset` to go on behind this entry.
    pub next: u64,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: utimensat(2) has no third.
pub enum SetTime {
    /// The implementation's own time.
    Now,
    /// This time.
    At(Timestamp),
}

/// The members that are `Some` are changed, in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// The lower twelve mode bits.
    pub perm: Option<u16>,
    /// The owner.
    pub uid: Option<u32>,
    /// The owner's group.
    pub gid: Option<u32>,
    /// Bytes: cut, or grown by a hole.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode; the implementation's own time where it is absent.
    pub ctime: Option<Timestamp>,
    /// When it was made, where the implementation lets that be said; no system call does.
    pub btime: Option<Timestamp>,
    /// Clear set-user-ID (and set-group-ID where group execution is allowed) as
    /// a write, truncation or change of owner by an ordinary user must.
    pub kill_priv: bool,
    /// With `kill_priv`: set-group-ID goes without group execution too, as it must where
    /// the caller is not in the inode's group.
    pub kill_sgid: bool,
    /// The times are those of content that a cache has sent: nobody asks for this change by itself.
    pub of_content: bool,
}

/// What `statfs` tells; blocks are of `block_size` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Bytes.
    pub block_size: u32,
    /// In all.
    pub blocks: u64,
    /// Not in use, those kept back for the volume itself included.
    pub blocks_free: u64,
    /// What ordinary users may still fill.
    pub blocks_available: u64,
    /// 0 where inodes are not counted, as in btrfs.
    pub files: u64,
    /// Inodes that can still be made; 0 where they are not counted.
    pub files_free: u64,
    /// Bytes of the longest name.
    pub name_max: u32,
}
