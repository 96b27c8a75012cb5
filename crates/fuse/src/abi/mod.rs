//! The kernel side of the conversation: records, operation numbers and flag bits of
//! the FUSE protocol up to version 7.45, as the public interface of Linux defines them.
//!
//! Only numbers and layouts live here. What a request means is the dispatcher's
//! business, how it travels the loops'.

// Where bytes become numbers a cut one is a wrong answer.
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod opcode;
pub(crate) mod record;
pub(crate) mod wire;

pub(crate) use opcode::Opcode;
pub(crate) use wire::Wire;

pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 45;
pub(crate) const ROOT_ID: u64 = 1;
/// The kernel refuses reads of the device with a smaller buffer.
pub(crate) const MIN_READ_BUFFER: usize = 8192;

/// Flags of INIT; bits from 32 up travel in `flags2`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const ALLOW_IDMAP: u64 = 1 << 40;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// `SetattrIn::valid`.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// `OpenOut::open_flags`.
pub(crate) mod fopen {
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const CACHE_DIR: u32 = 1 << 3;
    pub(crate) const NOFLUSH: u32 = 1 << 5;
}

/// `WriteIn::write_flags`.
pub(crate) mod write_flags {
    /// The kernel writes its cached pages back: nobody waits for this write as such.
    pub(crate) const CACHE: u32 = 1 << 0;
    /// Set on writes from a caller's memory, not on those from pages.
    pub(crate) const LOCKOWNER: u32 = 1 << 1;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 2;
}

/// `ReadIn::read_flags`.
pub(crate) mod read_flags {
    /// Set on reads into a caller's memory, not on those into pages.
    pub(crate) const LOCKOWNER: u32 = 1 << 1;
}

/// `SetxattrIn::setxattr_flags`.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `FsyncIn::fsync_flags`.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;

/// Codes of messages that the server sends unasked.
pub(crate) mod notify {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const STORE: i32 = 4;
}

/// Commands in the SQE of the io_uring transport.
pub(crate) mod uring_cmd {
    pub(crate) const REGISTER: u32 = 1;
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
}

/// Layout of the header buffer that a ring entry registers.
pub(crate) mod uring_header {
    /// The fixed record of the operation; in front of it, from the start, lies
    /// `InHeader` on the way in and `OutHeader` on the way out.
    pub(crate) const OP: usize = 128;
    pub(crate) const OP_LEN: usize = 128;
    /// `UringEntInOut`.
    pub(crate) const ENT: usize = 256;
    pub(crate) const LEN: usize = 288;
}
