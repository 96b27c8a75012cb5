//! What is known of an inode from outside: numbers, modes and times.
//!
//! Invariant: `Attr::perm` never carries file-type bits; the type is `Attr::kind`.

use crate::mode::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An inode number, unique in one mount and stable across mounts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ino(pub u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    File,
    Dir,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
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
    pub secs: i64,
    pub nanos: u32,
}

impl Timestamp {
    pub fn now() -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
    }
}

/// What `stat` and `statx` tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileKind,
    /// The lower twelve mode bits.
    pub perm: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Linux `dev_t` of a device node in the 32-bit "new" encoding, else 0.
    pub rdev: u32,
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    pub blksize: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
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
    pub attr: Attr,
    /// Tells reuses of one inode number apart.
    pub generation: u64,
}

/// One name of a directory as `readdir` delivers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    pub ino: Ino,
    pub kind: FileKind,
    pub name: &'a [u8],
    /// Pass this as `offset` to go on behind this entry.
    pub next: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    Now,
    At(Timestamp),
}

/// The members that are `Some` are changed, in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    pub perm: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub ctime: Option<Timestamp>,
    /// Clear set-user-ID (and set-group-ID where group execution is allowed) as
    /// a write, truncation or change of owner by an ordinary user must.
    pub kill_priv: bool,
    /// With `kill_priv`: set-group-ID goes without group execution too, as it must where
    /// the caller is not in the inode's group.
    pub kill_sgid: bool,
}

/// What `statfs` tells; blocks are of `block_size` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    pub block_size: u32,
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    /// 0 where inodes are not counted, as in btrfs.
    pub files: u64,
    pub files_free: u64,
    pub name_max: u32,
}
