//! One file for each family of operations. Each follows the same order: check names and
//! permissions of the format, reserve, lock inodes, read, enter the epoch, change, leave.

pub(crate) mod access;
mod append;
pub(crate) mod attr;
mod behind_end;
pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod defragment;
pub(crate) mod encoded;
pub(crate) mod fallocate;
mod file;
pub(crate) mod flags;
mod in_place;
pub(crate) mod io;
pub(crate) mod label;
pub(crate) mod link;
mod long_item;
pub(crate) mod lookup;
pub(crate) mod quota;
pub(crate) mod readdir;
pub(crate) mod remount;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod seek;
pub(crate) mod shutdown;
pub(crate) mod statfs;
pub(crate) mod subvolume;
pub(crate) mod sync;
pub(crate) mod trim;
pub(crate) mod truncate;
pub(crate) mod verity;
mod writing;
pub(crate) mod xattr;
