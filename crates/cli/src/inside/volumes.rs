//! The volumes that one command works on: each opened once, all changes of the command
//! in one commit at the end.
//!
//! As in coreutils, a command goes on with the next path when one fails; what was done
//! stays done, and the exit code tells that something failed.

use super::Losses;
use crate::error::{Error, Exit, Result};
use crate::image::{self, ImagePath};
use crate::rescue_options::RescueOptions;
use btrfs_fs::{Compress, Subvol};
use spinney::{Span, Volume};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vfs::FsError;

/// Which volumes are needed, and how.
pub struct Scope {
    subvol: Subvol,
    compress: Option<Compress>,
    rescue: RescueOptions,
    images: Vec<(PathBuf, bool)>,
}

impl Scope {
    pub fn new(subvol: Subvol) -> Scope {
        Scope { subvol, compress: None, rescue: RescueOptions::default(), images: Vec::new() }
    }

    /// What is new in volumes that are changed is compressed.
    pub fn compress(&mut self, compress: Option<Compress>) {
        self.compress = compress;
    }

    /// Volumes may be damaged, and are read.
    pub fn rescue(mut self, rescue: RescueOptions) -> Scope {
        self.rescue = rescue;
        self
    }

    pub fn add(&mut self, path: &ImagePath, write: bool) {
        self.images.push((path.image.clone(), write));
    }

    /// The paths, all in volumes to be read or (`write`) changed.
    pub fn of(subvol: Subvol, paths: &[ImagePath], write: bool) -> Scope {
        let mut scope = Scope::new(subvol);
        paths.iter().for_each(|path| scope.add(path, write));
        scope
    }

    /// Opens, works, and closes, whatever came out.
    pub fn run(self, work: impl FnOnce(&Volumes, &Failures) -> Result<()>) -> Result<Exit> {
        let volumes = Volumes::open(&self)?;
        let failures = Failures::default();
        if let Err(error) = work(&volumes, &failures) {
            failures.tell(&error);
        }
        volumes.close(&failures);
        Ok(if failures.cut.get() { Exit::CUT } else { Exit::failed_if(failures.any()) })
    }
}

/// Errors that were told while the command went on.
#[derive(Default)]
pub struct Failures {
    any: Cell<bool>,
    /// Nobody took the rest.
    cut: Cell<bool>,
}

impl Failures {
    pub fn tell(&self, error: &Error) {
        error.print();
        self.any.set(true);
        self.cut.set(self.cut.get() || error.is_cut());
    }

    /// Keeps the value, or tells the error.
    pub fn keep<T>(&self, result: Result<T>) -> Option<T> {
        result.inspect_err(|error| self.tell(error)).ok()
    }

    pub fn any(&self) -> bool {
        self.any.get()
    }
}

/// Which bytes of this machine.
type Identity = (PathBuf, Option<Span>);

pub struct Volumes {
    open: Vec<(Identity, Volume, Arc<Losses>)>,
}

impl Volumes {
    fn open(scope: &Scope) -> Result<Volumes> {
        let mut wanted: Vec<(Identity, &Path, bool)> = Vec::new();
        for (image, write) in &scope.images {
            let real = image::identity(image)?;
            match wanted.iter_mut().find(|(known, ..)| *known == real) {
                Some((.., writes)) => *writes |= *write,
                None => wanted.push((real, image, *write)),
            }
        }
        let open = wanted.into_iter().map(|(real, image, write)| {
            let volume = match scope.compress {
                _ if !write => image::open_damaged(image, &scope.subvol, scope.rescue)?,
                _ if scope.rescue != RescueOptions::default() => {
                    return Err(Error::usage("--rescue is for volumes that are read"));
                }
                Some(compress) => image::open_compressing(image, &scope.subvol, compress)?,
                None => image::open_volume(image, write, &scope.subvol)?,
            };
            let losses = Arc::new(Losses::default());
            let teller = losses.clone();
            volume.on_loss(move |loss| teller.tell(loss));
            Ok((real, volume, losses))
        });
        Ok(Volumes { open: open.collect::<Result<_>>()? })
    }

    /// The volume that `path` lies in; it must have been in the scope.
    pub fn of(&self, path: &ImagePath) -> Result<&Volume> {
        let real = image::identity(&path.image)?;
        let found = self.open.iter().find(|(known, ..)| *known == real);
        found.map(|(_, volume, _)| volume).ok_or_else(|| Error::about(path.show(), "is not open"))
    }

    /// True if both lie in one volume.
    pub fn same(&self, a: &ImagePath, b: &ImagePath) -> bool {
        matches!((self.of(a), self.of(b)), (Ok(a), Ok(b)) if std::ptr::eq(a, b))
    }

    fn close(self, failures: &Failures) {
        for (_, volume, losses) in self.open {
            if let Some(lost) = losses.sum(volume.name()) {
                failures.tell(&lost);
            }
            failures.keep(volume.close_whole().map_err(Error::from));
        }
    }
}

/// Says of an engine's result which path of which volume it was about.
pub trait At<T> {
    fn at(self, volume: &Volume, path: &[u8]) -> Result<T>;
}

impl<T> At<T> for std::result::Result<T, FsError> {
    fn at(self, volume: &Volume, path: &[u8]) -> Result<T> {
        self.map_err(|error| {
            let image = volume.name();
            let subject = format!("{}:{}", image.display(), String::from_utf8_lossy(path));
            Error::fs(subject, image, &error)
        })
    }
}
