//! Trees between a host directory and a `FileSystem`, both ways.
//!
//! Carried: owners, permissions, times to the nanosecond, extended attributes with ACLs
//! and capabilities, hard links across the whole copy, holes, symbolic links, devices,
//! FIFOs and sockets. The order is by name, so that the same tree makes the same copy.
//! Not carried: `chattr` flags, shared extents, compression as stored.
//!
//! Neither side is trusted to be shallow: no recursion, one frame per open directory.
//! The host's paths end at the kernel's 4095 bytes, with an error that names them.
//! Nothing is made durable here; the caller syncs.

mod damage;
mod dirs;
mod error;
mod export;
#[allow(unsafe_code)]
mod host;
mod import;
mod links;
mod options;
mod tried;

/// Bytes of content that a copy has in memory at a time: calls cost little beside so many.
/// Chosen, not measured.
pub const BUFFER: usize = 1 << 20;

pub use damage::{Piece, read_around, unverified};
pub use error::{CopyError, is_of_all, is_of_subvolume};
pub use export::{export_attributes, export_contents, export_tree, export_tree_at};
pub use host::{HostDir, HostPlace, HostStat, settled};
pub use import::{import_attributes, import_content, import_contents, import_tree, import_tree_at};
pub use links::{ExportLinks, ImportLinks};
pub use options::{CopyOptions, CopyReport, Event, Lost};
pub use tried::Tried;
