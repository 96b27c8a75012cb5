//! `spinney property ...`: what `btrfs property` has of subvolumes.

pub mod get;
pub mod set;

use crate::error::{Error, Result};

/// The one property that there is.
const READ_ONLY: &str = "ro";

fn of_subvolumes(kind: &str) -> Result<()> {
    match kind {
        "subvol" | "s" | "subvolume" => Ok(()),
        _ => Err(Error::usage(format!("-t {kind}: only subvolumes (subvol) have properties here"))),
    }
}

fn known(name: &str) -> Result<()> {
    match name {
        READ_ONLY => Ok(()),
        _ => Err(Error::usage(format!("there is no property {name}: ro is the one"))),
    }
}
