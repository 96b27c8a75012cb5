//! Where the subvolumes are that a command is about: in an image, or in a mount. What a word
//! means, and what both can do.

use crate::door::{Door, NO_GROUP, NOT_THAT_GROUP};
use crate::error::{Error, Exit, Result};
use crate::image::{ImagePath, is_image};
use crate::inside::{Failures, Scope, Volumes};
use crate::sys;
use btrfs_fs::{Defragment, Subvol, VerityWish, same_subvolume};
use fs_verity::HashAlgorithm;
use spinney::{NewExtent, QgroupId, SnapshotOptions, SubvolId, SubvolumeInfo, Volume};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vfs::Ino;

/// A path, and what it is a path of.
#[derive(Clone, Debug)]
pub enum VolumePath {
    Image(ImagePath),
    Mount(PathBuf),
}

impl VolumePath {
    /// `IMAGE:/PATH`, `IMAGE` for its top, or a path of a mount.
    pub fn parse(word: &OsStr) -> VolumePath {
        let path = Path::new(word);
        if is_image(path) {
            return VolumePath::Image(ImagePath { image: path.into(), path: b"/".to_vec() });
        }
        match ImagePath::parse(word) {
            Some(inside) => VolumePath::Image(inside),
            None => VolumePath::Mount(path.into()),
        }
    }

    /// The same where a file can be meant for itself: one that lies in a mount is that, and no image.
    pub fn of_any_file(word: &OsStr) -> VolumePath {
        let path = Path::new(word);
        match path.is_file() && Door::open(path).is_ok() {
            true => VolumePath::Mount(path.into()),
            false => VolumePath::parse(word),
        }
    }

    /// A path of this machine, or one in an image.
    pub fn exists(word: &OsStr) -> bool {
        Path::new(word).exists() || ImagePath::parse(word).is_some()
    }

    pub fn all(words: &[OsString]) -> Vec<VolumePath> {
        words.iter().map(|word| VolumePath::parse(word)).collect()
    }

    pub fn show(&self) -> String {
        match self {
            VolumePath::Image(inside) => inside.show(),
            VolumePath::Mount(path) => path.display().to_string(),
        }
    }

    /// The same as the bytes that it is, for what others read.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            VolumePath::Image(inside) => inside.bytes(),
            VolumePath::Mount(path) => path.as_os_str().as_bytes().to_vec(),
        }
    }

    /// The same with `name` behind it.
    pub fn join(&self, name: &[u8]) -> VolumePath {
        match self {
            VolumePath::Image(inside) => {
                let path = crate::inside::path::join(&inside.path, name);
                VolumePath::Image(ImagePath { path, image: inside.image.clone() })
            }
            VolumePath::Mount(path) => VolumePath::Mount(path.join(OsStr::from_bytes(name))),
        }
    }

    /// Its last name; `None` for the top of an image, `.` and `..`.
    pub fn name(&self) -> Option<Vec<u8>> {
        let name = |path: &Path| path.file_name().map(|name| name.as_bytes().to_vec());
        match self {
            VolumePath::Image(inside) => name(Path::new(&OsString::from_vec(inside.path.clone()))),
            VolumePath::Mount(path) => name(path),
        }
    }
}

/// The volumes in images that are among the places; mounts are asked when it comes to them.
pub struct Open<'v>(&'v Volumes);

/// Opens what must be, to be changed if `write`, works, and closes.
pub fn at(
    places: &[VolumePath],
    subvol: Subvol,
    write: bool,
    work: impl FnOnce(&Open<'_>, &Failures) -> Result<()>,
) -> Result<Exit> {
    let mut scope = Scope::new(subvol);
    for place in places {
        if let VolumePath::Image(inside) = place {
            scope.add(inside, write);
        }
    }
    scope.run(|volumes, failures| work(&Open(volumes), failures))
}

/// Where groups were named, what is not there or does not fit may be one of them.
fn in_groups(error: spinney::Error, place: &VolumePath, groups: &[QgroupId]) -> Error {
    let low = groups.iter().any(|group| group.level() == 0);
    match error.errno() {
        Some(libc::EINVAL) if low => Error::about(place.show(), NOT_THAT_GROUP),
        Some(libc::ENOENT) if !groups.is_empty() => {
            Error::about(place.show(), format!("{NO_GROUP}, or no such directory"))
        }
        _ => error.into(),
    }
}

fn path(inside: &ImagePath) -> &Path {
    Path::new(OsStr::from_bytes(&inside.path))
}

/// Regular files below a directory of the host, in the same subvolume, as they are met. What vanishes meanwhile is
/// passed over, and what cannot be read told.
fn host_files(
    top: &Path,
    failures: &Failures,
    visit: &mut dyn FnMut(&VolumePath) -> Result<()>,
) -> Result<()> {
    let failed = |path: &Path, error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {}
        _ => failures.tell(&Error::io(path, &error)),
    };
    let meta = std::fs::symlink_metadata(top).map_err(|e| Error::io(top, &e))?;
    let (device, ino) = (meta.dev(), Ino(meta.ino()));
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) => {
                failed(&dir, error);
                continue;
            }
        };
        for entry in entries {
            let found = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)));
            match found {
                Ok((path, meta)) if meta.is_dir() => {
                    if meta.dev() == device && same_subvolume(ino, Ino(meta.ino())) {
                        dirs.push(path);
                    }
                }
                Ok((path, meta)) if meta.is_file() => visit(&VolumePath::Mount(path))?,
                Ok(_) => {}
                Err(error) => failed(&dir, error),
            }
        }
    }
    Ok(())
}

impl Open<'_> {
    /// The volume in an image that was named.
    pub fn volume(&self, inside: &ImagePath) -> Result<&Volume> {
        self.0.of(inside)
    }

    /// True if both lie in one volume.
    pub fn same_volume(&self, one: &VolumePath, other: &VolumePath) -> Result<bool> {
        Ok(match (one, other) {
            (VolumePath::Image(one), VolumePath::Image(other)) => self.0.same(one, other),
            (VolumePath::Mount(one), VolumePath::Mount(other)) => {
                let (one, other) = (Door::open(one)?.device(), Door::open(other)?.device());
                one.is_some() && one == other
            }
            _ => false,
        })
    }

    /// True for a directory.
    pub fn is_dir(&self, place: &VolumePath) -> Result<bool> {
        match place {
            VolumePath::Image(inside) => {
                let found = self.0.of(inside)?.find(&inside.path, true);
                Ok(found.is_ok_and(|node| node.is_dir()))
            }
            VolumePath::Mount(path) => Ok(path.is_dir()),
        }
    }

    /// Something has the name; of an image that nobody else changes it is not asked.
    pub fn is_there(&self, place: &VolumePath) -> bool {
        match place {
            VolumePath::Image(_) => true,
            VolumePath::Mount(path) => {
                let found = path.symlink_metadata();
                !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
            }
        }
    }

    /// Makes the directories above a place that are missing.
    pub fn make_above(&self, place: &VolumePath) -> Result<()> {
        match place {
            VolumePath::Image(inside) => match path(inside).parent() {
                Some(above) => Ok(self.0.of(inside)?.create_dir_all(above)?),
                None => Ok(()),
            },
            VolumePath::Mount(path) => match path.parent() {
                Some(above) => std::fs::create_dir_all(above).map_err(|e| Error::io(above, &e)),
                None => Ok(()),
            },
        }
    }

    pub fn create(&self, place: &VolumePath, groups: &[QgroupId]) -> Result<()> {
        match place {
            VolumePath::Image(inside) => {
                let made = self.0.of(inside)?.create_subvolume_in(path(inside), groups);
                made.map_err(|error| in_groups(error, place, groups))?;
                Ok(())
            }
            VolumePath::Mount(path) => {
                let (door, name) = Door::above(path)?;
                door.create(&name, groups)
            }
        }
    }

    pub fn snapshot(
        &self,
        source: &VolumePath,
        target: &VolumePath,
        read_only: bool,
        groups: &[QgroupId],
    ) -> Result<()> {
        match (source, target) {
            (VolumePath::Image(from), VolumePath::Image(to)) if self.0.same(from, to) => {
                let options = SnapshotOptions::new().read_only(read_only).qgroups(groups);
                let made = self.0.of(from)?.snapshot(path(from), path(to), &options);
                made.map_err(|error| in_groups(error, target, groups))?;
                Ok(())
            }
            (VolumePath::Mount(from), VolumePath::Mount(to)) => {
                self.rooted(source)?;
                let (door, name) = Door::above(to)?;
                door.snapshot(&Door::open(from)?, &name, read_only, groups)
            }
            _ => Err(Error::about(target.show(), "a snapshot lies in the volume of its source")),
        }
    }

    pub fn sync(&self, place: &VolumePath) -> Result<()> {
        match place {
            VolumePath::Image(inside) => Ok(self.0.of(inside)?.sync()?),
            VolumePath::Mount(path) => Door::open(path)?.sync(),
        }
    }

    /// Does the work of deletions in an image; in a mount its server does.
    pub fn work_off(&self, place: &VolumePath, ids: &[SubvolId]) -> Result<()> {
        if let VolumePath::Image(inside) = place {
            self.0.of(inside)?.wait_for_deleted(ids, None)?;
        }
        Ok(())
    }

    /// The subvolume around a place, and whether the place is its root directory.
    pub fn around(&self, place: &VolumePath) -> Result<(SubvolumeInfo, bool)> {
        match place {
            VolumePath::Image(inside) => {
                let volume = self.0.of(inside)?;
                let info = volume.subvolume_around(path(inside))?;
                let is_root = volume.subvolume(path(inside)).is_ok();
                Ok((info, is_root))
            }
            VolumePath::Mount(path) => Door::open(path)?.around(),
        }
    }

    /// The subvolume whose root directory a place is.
    pub fn rooted(&self, place: &VolumePath) -> Result<SubvolumeInfo> {
        match self.around(place)? {
            (info, true) => Ok(info),
            _ => Err(Error::about(place.show(), "is not a subvolume")),
        }
    }

    /// All subvolumes of the volume.
    pub fn all(&self, place: &VolumePath) -> Result<Vec<SubvolumeInfo>> {
        self.all_if_allowed(place)?.ok_or_else(|| {
            Error::about(place.show(), "only root and who mounted the volume may ask for all")
                .remedy("`spinney subvolume show` tells of one subvolume")
        })
    }

    pub fn all_if_allowed(&self, place: &VolumePath) -> Result<Option<Vec<SubvolumeInfo>>> {
        match place {
            VolumePath::Image(inside) => Ok(Some(self.0.of(inside)?.subvolumes()?)),
            VolumePath::Mount(path) => Door::open(path)?.all(),
        }
    }

    pub fn default(&self, place: &VolumePath) -> Result<SubvolId> {
        match place {
            VolumePath::Image(inside) => Ok(self.0.of(inside)?.default_subvolume()?.id),
            VolumePath::Mount(path) => Door::open(path)?.default_subvolume(),
        }
    }

    pub fn set_default(&self, place: &VolumePath, id: SubvolId) -> Result<()> {
        match place {
            VolumePath::Image(inside) => Ok(self.0.of(inside)?.set_default_subvolume(id)?),
            VolumePath::Mount(path) => Door::open(path)?.set_default(id),
        }
    }

    /// An extended attribute.
    pub fn attribute(&self, place: &VolumePath, name: &str) -> Result<Option<Vec<u8>>> {
        match place {
            VolumePath::Image(inside) => Ok(self.0.of(inside)?.xattr(path(inside), name)?),
            VolumePath::Mount(path) => match sys::get_xattr(path, name) {
                Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(None),
                other => other.map(Some).map_err(|e| Error::io(path, &e)),
            },
        }
    }

    pub fn set_attribute(&self, place: &VolumePath, name: &str, value: &[u8]) -> Result<()> {
        match place {
            VolumePath::Image(inside) => {
                Ok(self.0.of(inside)?.set_xattr(path(inside), name, value)?)
            }
            VolumePath::Mount(path) => {
                sys::set_xattr(path, name, value).map_err(|e| Error::io(path, &e))
            }
        }
    }

    /// Writes a file anew in fewer extents.
    pub fn defragment(&self, place: &VolumePath, wish: &Defragment) -> Result<()> {
        match place {
            VolumePath::Image(inside) => {
                Ok(self.0.of(inside)?.defragment(path(inside), wish).map(drop)?)
            }
            VolumePath::Mount(path) => Door::open(path)?.defragment(wish),
        }
    }

    /// Has reads of a file verified.
    pub(crate) fn enable_verity(&self, place: &VolumePath, wish: &VerityWish) -> Result<()> {
        match place {
            VolumePath::Image(inside) => {
                Ok(self.0.of(inside)?.enable_verity(path(inside), wish)?)
            }
            VolumePath::Mount(path) => Door::open(path)?.enable_verity(wish),
        }
    }

    /// What they are verified by.
    pub(crate) fn measure_verity(&self, place: &VolumePath) -> Result<(HashAlgorithm, Vec<u8>)> {
        match place {
            VolumePath::Image(inside) => {
                let found = self.0.of(inside)?.measure_verity(path(inside))?;
                Ok((found.params.algorithm(), found.digest().as_bytes().to_vec()))
            }
            VolumePath::Mount(path) => Door::open(path)?.measure_verity(),
        }
    }

    /// Each regular file below a directory, in the same subvolume. What cannot be read there is told, and the
    /// others are visited.
    pub fn files_below(
        &self,
        place: &VolumePath,
        failures: &Failures,
        visit: &mut dyn FnMut(&VolumePath) -> Result<()>,
    ) -> Result<()> {
        let inside = match place {
            VolumePath::Image(inside) => inside,
            VolumePath::Mount(top) => return host_files(top, failures, visit),
        };
        let mut walk = self.0.of(inside)?.walk(path(inside))?;
        let mut top = None;
        while let Some(entry) = walk.next() {
            let Some(entry) = failures.keep(entry.map_err(Error::from)) else { continue };
            let ino = Ino(entry.metadata().ino());
            if !same_subvolume(*top.get_or_insert(ino), ino) {
                walk.skip_dir();
            } else if entry.metadata().is_file() {
                let path = entry.path().as_os_str().as_bytes().to_vec();
                let image = inside.image.clone();
                visit(&VolumePath::Image(ImagePath { image, path }))?;
            }
        }
        Ok(())
    }

    pub fn set_read_only(&self, place: &VolumePath, read_only: bool) -> Result<()> {
        match place {
            VolumePath::Image(inside) => {
                Ok(self.0.of(inside)?.set_subvolume_read_only(path(inside), read_only)?)
            }
            VolumePath::Mount(path) => Door::open(path)?.set_read_only(read_only),
        }
    }

    pub fn find_new(&self, place: &VolumePath, since: u64) -> Result<(u64, Vec<NewExtent>)> {
        match place {
            VolumePath::Image(inside) => Ok(self.0.of(inside)?.find_new(path(inside), since)?),
            VolumePath::Mount(path) => Door::open(path)?.find_new(since),
        }
    }
}
