//! Where a subvolume lies in a mount that is there: what is bound when another subvolume of it is
//! asked for.
//!
//! Invariant: nothing is passed through but directories of that mount, by names alone. Where something
//! else is mounted on one of them, or a link is in the way, there is no such directory.

use crate::door::Door;
use crate::error::{Error, Result};
use crate::sys;
use btrfs_disk::TreeId;
use btrfs_fs::Subvol;
use spinney::SubvolId;
use std::fs::File;
use std::io;
use std::path::Path;

/// What became of the search.
pub enum Within {
    /// The top of the mount is the subvolume.
    Top,
    /// This directory is, by its path from the top of the volume.
    Below(File, Vec<u8>),
    /// No path leads there; why not.
    Nowhere(String),
    /// Nor can one, as the mount has not all of the volume.
    Beside(String),
}

/// Looks for a subvolume below `top`, which errors name `place`.
pub fn find(top: &File, place: &Path, wanted: &Subvol) -> Result<Within> {
    let top = directory(top, b"").map_err(|e| Error::io(place, &e))?;
    let door = Door::on(top.try_clone().map_err(|e| Error::io(place, &e))?, place);
    let (mounted, _) = door.around()?;
    let none = || Ok(Within::Nowhere(format!("and has no subvolume {}", told(wanted))));
    let Some(path) = path_of(&door, wanted)? else { return none() };
    let above = mounted.path.unwrap_or_default();
    let (above, names) = (names(&above), names(&path));
    let Some(below) = names.strip_prefix(&above[..]) else {
        let (above, path) = (shown(&above.join(&b'/')), shown(&path));
        return Ok(Within::Beside(format!("its subvolume {above}, in which {path} does not lie")));
    };
    if below.is_empty() {
        return Ok(Within::Top);
    }
    if below.contains(&&b".."[..]) {
        return none();
    }
    match directory(&top, &below.join(&b'/')) {
        Ok(found) if is_root(&found, place)? => Ok(Within::Below(found, names.join(&b'/'))),
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
            Ok(Within::Nowhere(format!("and something else is mounted over {}", shown(&path))))
        }
        _ => none(),
    }
}

fn directory(top: &File, path: &[u8]) -> io::Result<File> {
    sys::open_beneath(top, path, libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

fn is_root(dir: &File, place: &Path) -> Result<bool> {
    let dir = dir.try_clone().map_err(|e| Error::io(place, &e))?;
    Ok(Door::on(dir, place).around()?.1)
}

/// From the top of the volume; `None`: there is no such subvolume, or no path to it.
fn path_of(door: &Door, wanted: &Subvol) -> Result<Option<Vec<u8>>> {
    let id = match wanted {
        Subvol::Path(path) => return Ok(Some(path.clone())),
        Subvol::Id(id) if *id == TreeId(0) => SubvolId(TreeId::FS.0),
        Subvol::Id(id) => SubvolId(id.0),
        Subvol::Default => door.default_subvolume()?,
    };
    let all = door.all()?.unwrap_or_default();
    Ok(all.into_iter().find(|info| info.id == id).and_then(|info| info.path))
}

fn names(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect()
}

fn shown(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path).trim_start_matches('/'))
}

/// As the options name it.
fn told(wanted: &Subvol) -> String {
    match wanted {
        Subvol::Default => "that its default could be".into(),
        Subvol::Id(id) => format!("with the number {id}"),
        Subvol::Path(path) => shown(path),
    }
}
