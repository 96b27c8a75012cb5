//! How a command names a quota group: LEVEL/NUMBER, a number of level 0, or the path of the subvolume whose it is.
//!
//! What it does not know: whether there is such a group.

use crate::args;
use crate::commands::subvolume::place::{self, Open, VolumePath};
use crate::commands::subvolume::words;
use crate::error::{Error, Exit, Result};
use btrfs_disk::TreeId;
use btrfs_fs::Subvol;
use spinney::QgroupId;
use std::ffi::OsStr;

pub(super) enum Group {
    Number(QgroupId),
    Of(VolumePath),
}

impl Group {
    /// What can be a number is one, whatever lies there.
    pub(super) fn named(word: &OsStr) -> Result<Group> {
        match args::text(word.to_owned()).and_then(|text| words::group(&text)) {
            Ok(id) => Ok(Group::Number(id)),
            Err(_) if VolumePath::exists(word) => Ok(Group::Of(VolumePath::parse(word))),
            Err(error) => Err(error),
        }
    }

    /// For a command about the volume of `place`. A subvolume of another one has the number of some group of this one,
    /// and nothing to do with it.
    pub(super) fn id(&self, open: &Open<'_>, place: &VolumePath) -> Result<QgroupId> {
        match self {
            Group::Number(id) => Ok(*id),
            Group::Of(other) if !open.same_volume(other, place)? => {
                let what = format!("not in the volume of {}", place.show());
                Err(Error::about(other.show(), what))
            }
            Group::Of(place) => Ok(QgroupId(open.rooted(place)?.id.0)),
        }
    }
}

/// Changes groups of the volume that a place is in; where they are named by paths these are open as well.
pub(super) fn change(
    place: &VolumePath,
    groups: &[&Group],
    work: impl FnOnce(&Open<'_>) -> Result<()>,
) -> Result<Exit> {
    let mut places = vec![place.clone()];
    places.extend(groups.iter().filter_map(|group| match group {
        Group::Of(place) => Some(place.clone()),
        Group::Number(_) => None,
    }));
    place::at(&places, Subvol::Id(TreeId::FS), true, |open, _| work(open))
}
