//! One file for each family of operations. Each follows the same order: check names and
//! permissions of the format, reserve, lock inodes, read, enter the epoch, change, leave.

pub mod access;
pub mod attr;
pub mod copy;
pub mod create;
pub(crate) mod defragment;
pub(crate) mod encoded;
pub mod fallocate;
pub mod flags;
pub mod io;
pub mod label;
pub mod link;
pub mod lookup;
pub(crate) mod quota;
pub mod readdir;
pub mod remount;
pub mod remove;
pub mod rename;
pub mod seek;
pub mod shutdown;
pub mod statfs;
pub mod subvolume;
pub mod sync;
pub mod trim;
pub mod truncate;
pub mod xattr;
