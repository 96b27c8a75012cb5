//! Where a subvolume lies in a mount that is there: what is bound when another subvolume of it is
//! asked for.
//!
//! Invariant: nothing is passed through but directories of that mount, by names alone, whatever else is mounted on
//! them. Where a link is in the way, there is no such directory.

use crate::door::Door;
use crate::error::{Error, Result};
use crate::sys;
use btrfs_disk::TreeId;
use btrfs_fs::Subvol;
use spinney::SubvolId;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What became of the search.
pub enum Within {
    /// The top of the mount is the subvolume.
    Top,
    /// This directory is, by its path from the top of the volume.
    Below(File, Vec<u8>),
    /// One is on which, or above which, something else is mounted: its paths from the top of the mount and of the
    /// volume.
    Covered(Vec<u8>, Vec<u8>),
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
    let id = number_of(&door, wanted)?;
    let top_level = (mounted.id == SubvolId::TOP_LEVEL).then(Vec::new);
    let above = mounted.path.or(top_level);
    if id == Some(mounted.id) {
        return if is_called(wanted, above.as_deref()) { Ok(Within::Top) } else { none() };
    }
    let Some(path) = path_of(&door, id, wanted)? else { return none() };
    let lost = || format!("its subvolume with the number {}, to which no path leads", mounted.id.0);
    let Some(above) = above else { return Ok(Within::Beside(lost())) };
    let (above, names) = (names(&above), names(&path));
    let Some(below) = names.strip_prefix(&above[..]) else {
        let (above, path) = (shown(&above.join(&b'/')), shown(&path));
        return Ok(Within::Beside(format!("its subvolume {above}, in which {path} does not lie")));
    };
    if below.is_empty() {
        return if id.is_none() { Ok(Within::Top) } else { none() };
    }
    if below.contains(&&b".."[..]) {
        return none();
    }
    let (below, path) = (below.join(&b'/'), names.join(&b'/'));
    match reached(&top, &below).map_err(|e| (e.raw_os_error(), e)) {
        Ok((dir, covered)) if is_it(&dir, id, place)? => Ok(match covered {
            true => Within::Covered(below, path),
            false => Within::Below(dir, path),
        }),
        Err((Some(libc::EXDEV), _)) => {
            Ok(Within::Nowhere(format!("and something else is mounted over {}", shown(&path))))
        }
        Ok(_) | Err((Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP), _)) => none(),
        Err((_, error)) => Err(Error::io(&place.join(OsStr::from_bytes(&below)), &error)),
    }
}

/// Whether `top`, which errors name `place`, is the root directory of that subvolume.
pub fn is(top: &File, place: &Path, wanted: &Subvol) -> Result<bool> {
    let dir = directory(top, b"").map_err(|e| Error::io(place, &e))?;
    Ok(matches!(find(top, place, wanted)?, Within::Top) && is_it(&dir, None, place)?)
}

/// And whether something else is mounted on it, or on the way.
fn reached(top: &File, path: &[u8]) -> io::Result<(File, bool)> {
    match directory(top, path) {
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
            uncovered(top, path).map(|dir| (dir, true))
        }
        found => found.map(|dir| (dir, false)),
    }
}

/// By a mount of its own, in which nothing else is mounted.
fn uncovered(top: &File, path: &[u8]) -> io::Result<File> {
    directory(&sys::mount_apart(top).map_err(covered_still)?, path)
}

/// Linux before 5.2 has no such mounts, and profiles of containers refuse them.
fn covered_still(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) => io::Error::from_raw_os_error(libc::EXDEV),
        _ => error,
    }
}

fn directory(top: &File, path: &[u8]) -> io::Result<File> {
    sys::open_beneath(top, path, libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

/// Whether it is the root directory of a subvolume, of that with the number if one was asked for: another may have its
/// path by now.
fn is_it(dir: &File, id: Option<SubvolId>, place: &Path) -> Result<bool> {
    let dir = dir.try_clone().map_err(|e| Error::io(place, &e))?;
    let (found, is_root) = Door::on(dir, place).around()?;
    Ok(is_root && id.is_none_or(|id| id == found.id))
}

/// `None`: it is asked for by its path.
fn number_of(door: &Door, wanted: &Subvol) -> Result<Option<SubvolId>> {
    Ok(match wanted {
        Subvol::Path(_) => None,
        Subvol::Id(id) if *id == TreeId(0) => Some(SubvolId::TOP_LEVEL),
        Subvol::Id(id) | Subvol::Both(id, _) => Some(SubvolId(id.0)),
        Subvol::Default => Some(door.default_subvolume()?),
    })
}

/// Where the path was asked for as well it must be that.
fn is_called(wanted: &Subvol, path: Option<&[u8]>) -> bool {
    match wanted {
        Subvol::Both(_, asked) => path.is_some_and(|path| names(path) == names(asked)),
        _ => true,
    }
}

/// From the top of the volume; `None`: there is no such subvolume, or no path to it.
fn path_of(door: &Door, id: Option<SubvolId>, wanted: &Subvol) -> Result<Option<Vec<u8>>> {
    if let Subvol::Path(path) | Subvol::Both(_, path) = wanted {
        return Ok(Some(path.clone()));
    }
    let all = door.all()?.unwrap_or_default();
    Ok(all.into_iter().find(|info| Some(info.id) == id).and_then(|info| info.path))
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
        Subvol::Both(id, path) => format!("{} with the number {id}", shown(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_uncovered_is_covered() {
        for (errno, told) in
            [(libc::EPERM, libc::EXDEV), (libc::ENOSYS, libc::EXDEV), (libc::ENOMEM, libc::ENOMEM)]
        {
            let error = covered_still(io::Error::from_raw_os_error(errno));
            assert_eq!(error.raw_os_error(), Some(told));
        }
    }
}
