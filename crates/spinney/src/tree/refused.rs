//! What takes no changes: one subvolume that is read-only, or has reached its limit, says nothing of those beside it.
//!
//! It does not know what was to be changed.

use super::node::Node;
use crate::volume::Volume;
use btrfs_image::is_of_subvolume;
use std::collections::HashSet;
use vfs::{FsError, Ino};

/// Subvolumes that refused a change. Each is told of once for a reason: all that is in it would say the same.
#[derive(Debug)]
pub struct Refused<'v> {
    volume: &'v Volume,
    /// With the number of the error.
    told: HashSet<(u64, i32)>,
}

impl<'v> Refused<'v> {
    /// None has refused anything yet.
    pub fn new(volume: &'v Volume) -> Refused<'v> {
        Refused { volume, told: HashSet::new() }
    }

    /// Whether `error`, which the change of `ino` ended with, was told of its subvolume before.
    pub fn was_told(&mut self, error: &FsError, ino: Ino) -> bool {
        let errno = error.errno();
        let subvolume = match is_of_subvolume(errno) {
            true => subvolume_of(self.volume, ino),
            false => None,
        };
        subvolume.is_some_and(|subvolume| !self.told.insert((subvolume, errno)))
    }
}

/// Whether what `path` leads to in the directory `dir` lies in another subvolume than that.
pub(super) fn is_elsewhere(volume: &Volume, dir: &Node, path: &[u8]) -> bool {
    let found = volume.find(path, true).ok();
    found.is_some_and(|node| lie_apart(volume, node.ino(), dir.ino()))
}

/// Whether both are known to lie in a subvolume, and not in the same.
pub(super) fn lie_apart(volume: &Volume, one: Ino, other: Ino) -> bool {
    match (subvolume_of(volume, one), subvolume_of(volume, other)) {
        (Some(one), Some(other)) => one != other,
        _ => false,
    }
}

fn subvolume_of(volume: &Volume, ino: Ino) -> Option<u64> {
    volume.guard().subvolume_of(ino).ok().map(|(id, _)| id.0)
}
