//! The format-neutral face of a file system: one trait, plain data, one errno table.
//!
//! Above it stand the FUSE server, the command line and the benchmarks; below it
//! stand the engines. Nothing here knows an on-disk format, a transport or a path
//! syntax. Names are bytes, never text.
#![cfg_attr(not(test), deny(unreachable_pub))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod attr;
pub mod attributes;
mod control;
mod error;
mod file_system;
pub mod mode;
pub mod posix_acl;

pub use attr::{Attr, DirEntry, Entry, FileKind, Ino, SetAttr, SetTime, StatFs, Timestamp};
pub use control::{Asker, Control, Controlled, Exempt, NOBODY, Who};
pub use error::{Damage, DamageKind, Errno, FsError, Result};
pub use file_system::{
    Context, Durable, FallocateMode, FileSystem, Observer, RenameMode, SeekWhence, Stat,
    WriteFlags, XattrMode, lookup_listed,
};

/// Longest name of one directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symlink that the kernel takes and follows, in bytes.
pub const TARGET_MAX: usize = 4095;
/// Longest name of an extended attribute, in bytes.
pub const XATTR_NAME_MAX: usize = 255;
