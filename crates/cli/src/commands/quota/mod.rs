//! `spinney quota ...`: a command for each verb of `btrfs quota`, in images and in mounts.

mod rescan;
mod status;
mod switch;
pub mod volume;

use super::Command;
use super::subvolume::place::{self, Open, VolumePath};
use crate::error::{Exit, Result};
use btrfs_disk::TreeId;
use btrfs_fs::Subvol;

pub const COMMANDS: &[&Command] =
    &[&switch::ENABLE, &switch::DISABLE, &rescan::COMMAND, &status::COMMAND];

/// Works on the volume that a place is in.
pub fn on(
    place: &VolumePath,
    write: bool,
    work: impl FnOnce(&Open<'_>) -> Result<()>,
) -> Result<Exit> {
    let subvol = Subvol::Id(TreeId::FS);
    place::at(std::slice::from_ref(place), subvol, write, |open, _| work(open))
}
