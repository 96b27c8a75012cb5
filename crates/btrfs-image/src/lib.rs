//! Whole images: making a fresh volume, and copying trees between it and the host.
//!
//! `mkfs` writes a volume's bytes from nothing; `copy` carries trees in and out through
//! any [`vfs::FileSystem`] and knows nothing of the format below it.
#![cfg_attr(not(test), deny(unreachable_pub))]
#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod copy;
pub mod mkfs;

pub use copy::{
    CopyError, CopyOptions, CopyReport, Event, ExportLinks, HostDir, HostPlace, HostStat,
    ImportLinks, Lost, Piece, Tried, export_attributes, export_contents, export_tree,
    export_tree_at, import_attributes, import_content, import_contents, import_tree,
    import_tree_at, is_of_all, is_of_subvolume, read_around, settled, unverified,
};
