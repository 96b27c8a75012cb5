//! `receive -C` and `-m` of an image, where neither has a mount to speak of.

use crate::error::{Error, Result, io_text};
use crate::image::{ImagePath, identity};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, chroot};
use std::path::Path;

/// The process has an empty root directory from now on, which nobody can put anything into since it
/// is deleted. What is open stays so.
pub(super) fn to_nothing() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("spinney-receive-{}", std::process::id()));
    let about = |e: std::io::Error| Error::about(dir.display(), io_text(&e));
    DirBuilder::new().mode(0o700).create(&dir).map_err(about)?;
    let entered = std::env::set_current_dir(&dir);
    fs::remove_dir(&dir).map_err(about)?;
    entered.and_then(|()| chroot(".")).map_err(|e| {
        Error::new(format!("the root directory cannot be changed: {}", io_text(&e)))
            .remedy("-C is for root")
    })
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
