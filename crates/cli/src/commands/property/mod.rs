//! `spinney property ...`: what `btrfs property` has of subvolumes and files.

mod compression;
pub mod get;
pub mod set;

use crate::error::{Error, Result};

/// The property of subvolumes.
const READ_ONLY: &str = "ro";

fn of_subvolumes(kind: &str) -> Result<()> {
    match kind {
        "subvol" | "s" | "subvolume" | "inode" | "i" => Ok(()),
        _ => Err(Error::usage(format!("-t {kind}: properties are of a subvol or an inode here"))),
    }
}

fn known(name: &str) -> Result<()> {
    match name {
        READ_ONLY => Ok(()),
        _ => Err(Error::usage(format!("there is no property {name}: ro and compression are"))),
    }
}
