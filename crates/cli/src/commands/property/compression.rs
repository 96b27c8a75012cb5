//! The property `compression`: how content of a file is compressed, or of what is made in a
//! directory. It is the attribute `btrfs.compression`.

use crate::commands::subvolume::place::{self, Place};
use crate::error::{Exit, Result};
use crate::mount::options::method;
use crate::output::{Json, Out};
use btrfs_fs::Subvol;
use std::ffi::OsStr;

pub(super) const NAME: &str = "compression";
const ATTRIBUTE: &str = "btrfs.compression";

/// Prints nothing where there is none, as `btrfs property` does.
pub(super) fn get(place: &Place, subvol: Subvol, json: bool) -> Result<Exit> {
    place::at(std::slice::from_ref(place), subvol, false, |open, _| {
        let value = open.attribute(place, ATTRIBUTE)?;
        let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
        let mut out = Out::new();
        match (json, value) {
            (true, value) => out.line(Json::object(|o| {
                value.iter().for_each(|value| _ = o.text(NAME, value));
            }))?,
            (false, Some(value)) => out.line(format!("{NAME}={value}"))?,
            (false, None) => {}
        }
        out.finish()
    })
}

/// `""` takes it away; `no` and `none` say that nothing is compressed.
pub(super) fn set(place: &Place, subvol: Subvol, value: &OsStr) -> Result<Exit> {
    let value = value.to_string_lossy();
    if !matches!(&*value, "" | "no" | "none") {
        method(NAME, &value)?;
    }
    place::at(std::slice::from_ref(place), subvol, true, |open, _| {
        open.set_attribute(place, ATTRIBUTE, value.as_bytes())
    })
}
