//! The subvolume that a deletion is about: found before anything of it is deleted, and deleted by what it was
//! found by.
//!
//! Invariants: a path is resolved once, and what is deleted is what it led to, or nothing; by its number where the caller
//! may, as others can exchange names. What lies in a subvolume is not touched before the engine has said that the
//! subvolume itself may go.
//!
//! What it does not know: who may delete what. The engine does.

use super::place::{Open, VolumePath};
use crate::door::Door;
use crate::error::{Error, Result};
use crate::mounts;
use spinney::{SubvolId, SubvolumeInfo, Volume};
use std::path::Path;

pub(super) struct Doomed<'a> {
    pub(super) id: SubvolId,
    place: &'a VolumePath,
    by: By<'a>,
    /// Of the mount; what the door is at may be gone later.
    device: Option<u64>,
}

/// What it was found by.
enum By<'a> {
    Image(&'a Volume),
    /// Its number; the door is anywhere in the mount.
    Number(Door),
    /// Its name, in the directory that the door is at.
    Name(Door, Vec<u8>),
}

impl<'a> Doomed<'a> {
    /// The subvolume of this number in the volume of `place`; without one, that at the place.
    pub(super) fn find(
        open: &'a Open<'_>,
        place: &'a VolumePath,
        number: Option<SubvolId>,
    ) -> Result<Doomed<'a>> {
        let (id, by) = match (place, number) {
            (VolumePath::Image(inside), number) => {
                let id = match number {
                    Some(id) => id,
                    None => open.rooted(place)?.id,
                };
                (id, By::Image(open.volume(inside)?))
            }
            (VolumePath::Mount(path), Some(id)) => (id, By::Number(Door::open(path)?)),
            (VolumePath::Mount(path), None) => {
                let id = open.rooted(place)?.id;
                (id, named(path, id)?)
            }
        };
        let device = match &by {
            By::Image(_) => None,
            By::Number(door) | By::Name(door, _) => door.device(),
        };
        Ok(Doomed { id, place, by, device })
    }

    /// It goes. False: other subvolumes lie in it, and nothing else forbids it.
    pub(super) fn try_delete(&self) -> Result<bool> {
        match &self.by {
            By::Image(volume) => in_image(volume, self.id),
            By::Number(door) => door.delete_by_id(self.id),
            By::Name(door, name) => match door.delete_numbered(name, self.id)? {
                Some(gone) => Ok(gone),
                None => self.by_name(door, name),
            },
        }
    }

    /// Who may exchange the names meanwhile has the server delete another subvolume: one that the caller may delete
    /// by his own rights.
    fn by_name(&self, door: &Door, name: &[u8]) -> Result<bool> {
        match door.leads_to(name, self.id)? {
            true => door.delete(name),
            false => Err(Error::about(self.place.show(), "is another subvolume by now")),
        }
    }

    pub(super) fn delete(&self) -> Result<()> {
        self.whole(self.try_delete()?, &self.place.show())
    }

    /// One that lies in it.
    pub(super) fn delete_inside(&self, info: &SubvolumeInfo) -> Result<()> {
        let gone = match &self.by {
            By::Image(volume) => in_image(volume, info.id)?,
            By::Number(door) | By::Name(door, _) => door.delete_by_id(info.id)?,
        };
        self.whole(gone, &format!("subvolume {}", info.id.0))
    }

    fn whole(&self, gone: bool, what: &str) -> Result<()> {
        match gone {
            true => Ok(()),
            false => Err(Error::about(what, "directory not empty: other subvolumes lie in it")
                .remedy("-R deletes those first")),
        }
    }

    pub(super) fn sync(&self) -> Result<()> {
        match &self.by {
            By::Image(volume) => Ok(volume.sync()?),
            By::Number(door) | By::Name(door, _) => door.sync(),
        }
    }

    pub(super) fn same_volume(&self, other: &Doomed<'_>) -> bool {
        match (&self.by, &other.by) {
            (By::Image(one), By::Image(two)) => std::ptr::eq(*one, *two),
            _ => self.device.is_some() && self.device == other.device,
        }
    }

    /// Refuses where what it is to be deleted with stays whatever is deleted before: the top of the volume, the default
    /// subvolume, and that which the mount begins in.
    pub(super) fn refuse_what_stays(
        &self,
        open: &Open<'_>,
        inside: &[&SubvolumeInfo],
    ) -> Result<()> {
        let (default, begin) = (open.default(self.place)?, begin(open, self.place)?);
        for id in inside.iter().map(|info| info.id).chain([self.id]) {
            let why = match id {
                SubvolId::TOP_LEVEL => "is the top of the volume",
                id if id == default => "is the default subvolume",
                id if Some(id) == begin => "is what is mounted",
                _ => continue,
            };
            let what = format!("subvolume {} {why}, and cannot be deleted", id.0);
            return Err(Error::about(self.place.show(), what));
        }
        Ok(())
    }
}

/// By the name that it has in the directory above, where links and dots lead to.
fn named<'a>(path: &Path, id: SubvolId) -> Result<By<'a>> {
    let failed = |e| Error::io(path, &e);
    let real = path.canonicalize().map_err(failed)?;
    // Where there is no /proc nobody can tell; what is mounted there is not deleted all the same.
    let entry = mounts::around(&real).ok().flatten();
    if entry.is_some_and(|entry| entry.point == real) {
        return Err(Error::about(path.display(), "is mounted there, and cannot be deleted"));
    }
    let (door, name) = Door::above(&real)?;
    match door.leads_to(&name, id)? {
        true => Ok(By::Name(door, name)),
        false => Err(Error::about(path.display(), "is another subvolume by now")),
    }
}

fn in_image(volume: &Volume, id: SubvolId) -> Result<bool> {
    match volume.delete_subvolume_by_id(id) {
        Err(error) if error.errno() == Some(libc::ENOTEMPTY) => Ok(false),
        gone => Ok(gone.map(|()| true)?),
    }
}

/// The subvolume that the mount or the opened volume begins in; `None` where nobody can tell.
fn begin(open: &Open<'_>, place: &VolumePath) -> Result<Option<SubvolId>> {
    let top = match place {
        VolumePath::Image(inside) => {
            let top = crate::image::ImagePath { path: b"/".to_vec(), image: inside.image.clone() };
            VolumePath::Image(top)
        }
        VolumePath::Mount(path) => match mounts::around(path).ok().flatten() {
            Some(entry) => VolumePath::Mount(entry.point),
            None => return Ok(None),
        },
    };
    Ok(open.around(&top).ok().map(|(info, _)| info.id))
}
