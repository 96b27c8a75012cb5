//! The property `compression`: how content of a file is compressed, or of what is made in a
//! directory. It is the attribute `btrfs.compression`.

use crate::commands::subvolume::place::{self, Open, VolumePath};
use crate::error::{Exit, Result};
use crate::mount::options::method;
use btrfs_fs::Subvol;
use std::ffi::OsStr;

pub(super) const NAME: &str = "compression";
const ATTRIBUTE: &str = "btrfs.compression";

pub(super) fn get(open: &Open<'_>, place: &VolumePath) -> Result<Option<String>> {
    let value = open.attribute(place, ATTRIBUTE)?;
    Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
}

/// `""` takes it away; `no` and `none` say that nothing is compressed.
pub(super) fn set(place: &VolumePath, subvol: Subvol, value: &OsStr) -> Result<Exit> {
    let value = value.to_string_lossy();
    if !matches!(&*value, "" | "no" | "none") {
        method(NAME, &value)?;
    }
    place::at(std::slice::from_ref(place), subvol, true, |open, _| {
        open.set_attribute(place, ATTRIBUTE, value.as_bytes())
    })
}
