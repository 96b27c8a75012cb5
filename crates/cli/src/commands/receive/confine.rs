//! `receive -C` and `-m` of an image, where neither has a mount to speak of.

use crate::error::{Error, Result, io_text};
use crate::image::{ImagePath, identity};
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, chroot};
use std::path::{Path, PathBuf};

/// The process has an empty root directory from now on, which nobody can put anything into since it
/// is deleted. What is open stays so.
pub(super) fn to_nothing() -> Result<()> {
    let dir = made()?;
    let about = |e: io::Error| Error::about(dir.display(), io_text(&e));
    let entered = std::env::set_current_dir(&dir);
    fs::remove_dir(&dir).map_err(about)?;
    entered.and_then(|()| chroot(".")).map_err(|e| {
        Error::new(format!("the root directory cannot be changed: {}", io_text(&e)))
            .remedy("-C is for root")
    })
}

/// A directory of a name that nobody can have taken before: who could would choose which streams are received.
fn made() -> Result<PathBuf> {
    const MOST: u32 = 100;
    for _ in 0..MOST {
        let number = RandomState::new().hash_one("receive");
        let dir = std::env::temp_dir().join(format!("spinney-receive-{number:016x}"));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::about(dir.display(), io_text(&e))),
            Ok(()) => return Ok(dir),
        }
    }
    Err(Error::new("there is no free name for an empty directory"))
}

/// Whether what is said to be the mount is the image itself.
pub(super) fn is_image(said: &Path, image: &Path) -> Result<()> {
    let (name, path) = match ImagePath::parse(said.as_os_str()) {
        Some(inside) => (inside.image, inside.path),
        None => (said.to_owned(), b"/".to_vec()),
    };
    match path == b"/" && identity(&name)? == identity(image)? {
        true => Ok(()),
        false => Err(Error::usage(format!("{} is not {}", said.display(), image.display()))),
    }
}
