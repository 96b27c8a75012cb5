//! The kernel side of the conversation: records, operation numbers and flag bits of
//! the FUSE protocol up to version 7.45, as the public interface of Linux defines them.
//!
//! Only numbers and layouts live here. What a request means is the dispatcher's
//! business, how it travels the loops'.

// Where bytes become numbers a cut one is a wrong answer.
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod opcode;
pub mod record;
pub mod wire;

pub use opcode::Opcode;
pub use wire::Wire;

pub const MAJOR: u32 = 7;
pub const MINOR: u32 = 45;
pub const ROOT_ID: u64 = 1;
/// The kernel refuses reads of the device with a smaller buffer.
pub const MIN_READ_BUFFER: usize = 8192;

/// Flags of INIT; bits from 32 up travel in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `SetattrIn::valid`.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `OpenOut::open_flags`.
pub mod fopen {
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
}

/// `WriteIn::write_flags`.
pub mod write_flags {
    /// The kernel writes its cached pages back: nobody waits for this write as such.
    pub const CACHE: u32 = 1 << 0;
    /// Set on writes from a caller's memory, not on those from pages.
    pub const LOCKOWNER: u32 = 1 << 1;
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// `ReadIn::read_flags`.
pub mod read_flags {
    /// Set on reads into a caller's memory, not on those into pages.
    pub const LOCKOWNER: u32 = 1 << 1;
}

/// `SetxattrIn::setxattr_flags`.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `FsyncIn::fsync_flags`.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;

/// Codes of messages that the server sends unasked.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
}

/// Commands in the SQE of the io_uring transport.
pub mod uring_cmd {
    pub const REGISTER: u32 = 1;
    pub const COMMIT_AND_FETCH: u32 = 2;
}

/// Layout of the header buffer that a ring entry registers.
pub mod uring_header {
    /// The fixed record of the operation; in front of it, from the start, lies
    /// `InHeader` on the way in and `OutHeader` on the way out.
    pub const OP: usize = 128;
    pub const OP_LEN: usize = 128;
    /// `UringEntInOut`.
    pub const ENT: usize = 256;
    pub const LEN: usize = 288;
}
