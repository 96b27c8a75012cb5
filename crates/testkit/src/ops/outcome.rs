//! What an operation answered, in a form that two file systems can agree on: no inode
//! numbers, and of the times only those that were set on purpose.

use std::fmt;

use vfs::{Attr, FileKind, FsError, Timestamp};

/// A time that was set explicitly, or one that the clock gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeView {
    Exact(Timestamp),
    Recent,
}

impl TimeView {
    /// The generator sets no times from 2020 to 2096; the clock gives no others.
    pub fn of(time: Timestamp) -> TimeView {
        match time.secs {
            1_577_836_800..4_000_000_000 => TimeView::Recent,
            _ => TimeView::Exact(time),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatView {
    pub kind: FileKind,
    pub perm: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
    pub attributes: u64,
    pub atime: TimeView,
    pub mtime: TimeView,
}

impl StatView {
    pub fn of(attr: &Attr) -> StatView {
        StatView {
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            // COMPRESSED, IMMUTABLE, APPEND, NODUMP; others depend on the mount.
            attributes: attr.attributes & 0x74,
            atime: TimeView::of(attr.atime),
            mtime: TimeView::of(attr.mtime),
        }
    }
}

/// Bytes that print as their length, start and hash.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

/// FNV-1a over 64 bits: quick, and good enough to tell contents apart in a report.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = &self.0[..self.0.len().min(8)];
        write!(f, "Bytes(len {}, {start:02x?}, hash {:016x})", self.0.len(), hash(&self.0))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Done,
    Error(Code),
    Stat(StatView),
    Data(Bytes),
    Count(u64),
    Position(u64),
    Flags(u32),
    /// Names and kinds, in order of names; `.` and `..` included.
    Names(Vec<(Bytes, FileKind)>),
    XattrNames(Vec<Bytes>),
}

/// An errno that prints with its text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, std::io::Error::from_raw_os_error(self.0))
    }
}

impl From<FsError> for Outcome {
    fn from(error: FsError) -> Outcome {
        Outcome::Error(Code(error.errno()))
    }
}

/// Which times of an inode an operation moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    pub mtime: bool,
    pub ctime: bool,
}

/// An operation's answer, and its effect on the times of what it touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    pub outcome: Outcome,
    /// As `Op::touches`; `None` where nothing was there before. Empty unless asked for.
    pub moved: Vec<Option<Moved>>,
}
