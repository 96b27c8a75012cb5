//! The property `compression`: how content of a file is compressed, or of what is made in a
//! directory. It is the attribute `btrfs.compression`.

use crate::commands::subvolume::place::{Open, VolumePath};
use crate::error::Result;
use crate::mount::options::method;

pub(super) const NAME: &str = "compression";
const ATTRIBUTE: &str = "btrfs.compression";

pub(super) fn get(open: &Open<'_>, place: &VolumePath) -> Result<Option<String>> {
    let value = open.attribute(place, ATTRIBUTE)?;
    Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
}

/// `""` takes it away; `no` and `none` say that nothing is compressed.
pub(super) fn judge(value: &str) -> Result<()> {
    match value {
        "" | "no" | "none" => Ok(()),
        _ => method(NAME, value).map(drop),
    }
}

pub(super) fn set(open: &Open<'_>, place: &VolumePath, value: &str) -> Result<()> {
    open.set_attribute(place, ATTRIBUTE, value.as_bytes())
}
