//! `PosixFs`: a directory of this machine (a kernel or FUSE mount) as a `FileSystem`,
//! by system calls. With it the same operations, snapshots and comparisons serve
//! engines and mounts.
//!
//! Every inode that a caller holds a reference on is an `O_PATH` descriptor here, so
//! that unlinked inodes stay reachable. Data operations open it anew through
//! `/proc/self/fd`, which repeats the kernel's open-time checks each time, as a
//! `FileSystem` without handles does.
//!
//! Needs root (`O_PATH` reopening, other owners). Not known here: what is mounted.

mod cred;
mod fs;
mod sys;
mod table;

pub use fs::PosixFs;
