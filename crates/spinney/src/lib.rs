//! btrfs as a library: opens, reads, changes, checks and makes volumes of the Linux **btrfs**
//! file system in ordinary programs, without a kernel module and without root.
//!
//! | to | there is |
//! |---|---|
//! | open a volume | [`Volume::open`], [`Volume::open_writable`], [`VolumeOptions`] |
//! | make one | [`FormatOptions`] |
//! | read and write files | [`Volume::read`], [`Volume::write`], [`File`] |
//! | list | [`Volume::read_dir`], [`Volume::walk`] |
//! | make, move, link, remove | [`Volume::create_dir`], [`Volume::rename`], [`Volume::hard_link`], [`Volume::remove_dir_all`] |
//! | look at and change owners, times, attributes | [`Volume::metadata`], [`Volume::set_metadata`], [`Volume::set_xattr`] |
//! | change many things at once | [`Volume::transaction`] |
//! | make, snapshot, delete subvolumes | [`Volume::create_subvolume`], [`Volume::snapshot`], [`Volume::delete_subvolume`], [`Volume::subvolumes`] |
//! | copy directories of this machine in and out | [`Volume::import`], [`Volume::export`] |
//! | make changes durable | [`Volume::sync`], [`File::sync_all`], [`Volume::close`] |
//! | look for damage | [`check`], [`Volume::check`] |
//! | give up a log, put copies of the superblock right | [`rescue`] |
//!
//! ```no_run
//! use std::io::Write;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let volume = spinney::Volume::open_writable("disk.img")?;
//! for entry in volume.read_dir("/etc")? {
//!     println!("{}", entry.path().display());
//! }
//! let mut motd = volume.create("/etc/motd")?;
//! writeln!(motd, "made by a program")?;
//! drop(motd);
//! volume.close()?;
//! # Ok(()) }
//! ```
//!
//! # What a program may rely on
//!
//! * A commit is atomic, and a volume that is dropped is committed; if that fails, the log
//!   (`tracing`) has an error. What `std::process::exit`, `abort` or a crash takes away is what
//!   was not synced.
//! * No byte of content is returned whose checksum is wrong.
//! * No image makes this crate panic or run on for ever: what is damaged is an [`Error`].
//! * All handles are `Send` and `Sync`, and hold on to the volume that they are of.
//! * Nobody checks permissions: who may open the image may do everything in it.
//!
//! [`tree`] has what programs like the `spinney` command need beside that: nodes, walks, copies
//! with rules, and the file system itself, as the trait [`vfs::FileSystem`].
#![cfg_attr(not(test), deny(unreachable_pub))]
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod check;
mod dir;
mod error;
mod file;
mod format;
mod guard;
mod import;
mod medium;
mod metadata;
mod names;
mod options;
mod quota;
mod receive;
pub mod rescue;
mod send;
mod subvolume;
#[allow(unsafe_code)]
mod sys;
mod transaction;
pub mod tree;
mod volume;

pub use blockdev::{BlockDevice, MemDevice, Span};
pub use btrfs_fs::{
    Compress, Defragment, DeviceUsage, GroupUsage, LimitChange, Method as Compression, NewExtent,
    NoQgroupId, Qgroup, QgroupId, QuotaStatus, Rescue, SubvolId, SubvolumeInfo, Usage, VerityWish,
};
pub use check::{CheckReport, Finding, Severity, check};
pub use dir::{DirEntry, Walk, WalkEntry};
pub use error::{Cause, Error, Result};
pub use file::{File, FileOptions};
pub use format::FormatOptions;
pub use fs_verity::{
    Descriptor as VerityDescriptor, HashAlgorithm as VerityHash, Params as VerityParams,
};
pub use import::Copied;
pub use medium::{
    Access, Claim, Disk, Medium, Partition, claim, devices_over, is_block_device, part_of,
};
pub use metadata::{FileType, Metadata, SetMetadata};
pub use options::VolumeOptions;
#[doc(hidden)]
pub use receive::receive_live;
pub use receive::{ReceiveOptions, Receiving};
pub use send::SendOptions;
pub use subvolume::SnapshotOptions;
pub use transaction::Transaction;
pub use vfs;
pub use vfs::FsError;
pub use volume::{Space, Volume};
