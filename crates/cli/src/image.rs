//! Images and devices on the command line: `disk.img`, `disk.img:/path`; opening them,
//! alone, and closing them again.
//!
//! Invariant: what is opened to be changed is locked against every other Spinney, and
//! refused if the kernel has it mounted; what is opened to be read is locked against
//! writers. `Access::Peek` looks without asking anybody, for tools that show raw bytes.

mod in_use;

use crate::error::{Error, Result, io_text, say_error};
use crate::inside::Losses;
use crate::mounts::{self, MountEntry};
use blockdev::{BlockDevice, FileDevice, Sticky};
use btrfs_fs::{BtrfsFs, Options, Subvol};
use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{Errno, FileSystem, FsError};

pub use in_use::{holder, is_source, written_by_kernel};

/// How long something may be busy before that is an error.
const PATIENCE: Duration = Duration::from_millis(500);

/// `disk.img:/path`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImagePath {
    pub image: PathBuf,
    /// Starts with `/`.
    pub path: Vec<u8>,
}

impl ImagePath {
    /// `None` if the word names nothing in an image, that is, has no `:/` and no colon at
    /// its end. Where there are several, the first behind the name of an existing file
    /// counts. A path of this machine with `:/` in it can be written with `./` or `//`.
    pub fn parse(word: &OsStr) -> Option<ImagePath> {
        let bytes = word.as_bytes();
        let colons = (1..bytes.len())
            .filter(|&at| bytes[at] == b':' && matches!(bytes.get(at + 1), None | Some(b'/')));
        let candidates: Vec<ImagePath> = colons.map(|at| ImagePath::split(bytes, at)).collect();
        let existing = candidates.iter().position(|c| c.image.is_file() || is_block(&c.image));
        candidates.into_iter().nth(existing.unwrap_or(0))
    }

    fn split(bytes: &[u8], at: usize) -> ImagePath {
        let image = PathBuf::from(OsString::from_vec(bytes[..at].to_vec()));
        let path = if at + 1 == bytes.len() { b"/".to_vec() } else { bytes[at + 1..].to_vec() };
        ImagePath { image, path }
    }

    /// As `parse`, for words that must be in an image.
    pub fn expect(word: &OsStr) -> Result<ImagePath> {
        ImagePath::parse(word).ok_or_else(|| {
            let word = word.to_string_lossy();
            Error::usage(format!("{word} is not a path in an image; write {word}:/PATH"))
        })
    }

    pub fn show(&self) -> String {
        format!("{}:{}", self.image.display(), String::from_utf8_lossy(&self.path))
    }
}

pub fn is_block(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To be changed, by nobody else meanwhile.
    Write,
    /// To be read while nobody changes it.
    Read,
    /// To be read, whatever others do.
    Peek,
    /// As `Write`, but a mount of ours will hold the block device exclusively.
    Mount,
}

/// An open image or device. After a failed write it takes no more of them.
pub struct Medium {
    pub device: Arc<Sticky<FileDevice>>,
    path: PathBuf,
    /// Holds a reader's shared lock.
    _lock: Option<File>,
}

impl Medium {
    pub fn open(path: &Path, access: Access) -> Result<Medium> {
        let meta = path.metadata().map_err(|e| Error::io(path, &e))?;
        if !meta.is_file() && !is_block(path) {
            return Err(Error::about(path.display(), "neither an image nor a block device"));
        }
        let lock = match access {
            Access::Read => Some(lock_shared(path)?),
            _ => None,
        };
        if access != Access::Peek
            && let Some(holder) = holder(path, access == Access::Read)
        {
            return Err(in_use_by_us(path).unwrap_or_else(|| {
                Error::about(path.display(), format!("in use: {holder}"))
                    .remedy("unmount it first; two systems writing one volume destroy it")
            }));
        }
        let read_only = matches!(access, Access::Read | Access::Peek);
        let device = patiently(|| FileDevice::open(path, read_only, access == Access::Mount));
        let device = device.map_err(|e| opening(path, &e))?;
        Ok(Medium { device: Arc::new(Sticky::new(device)), path: path.to_owned(), _lock: lock })
    }

    /// As what the library takes.
    pub fn block_device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn lock_shared(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|e| opening(path, &e))?;
    let locked = patiently(|| match file.try_lock_shared() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(ErrorKind::ResourceBusy.into()),
        Err(TryLockError::Error(error)) => Err(error),
    });
    locked.map(|()| file).map_err(|e| opening(path, &e))
}

/// Tries again for a moment while something is busy: after umount(8) a server needs some
/// milliseconds to end.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(e) if e.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(PATIENCE / 25);
            }
            other => return other,
        }
    }
}

/// Spinney itself has it mounted, here.
fn in_use_by_us(path: &Path) -> Option<Error> {
    let ours =
        |entry: &MountEntry| entry.kind.ends_with(".spinney") && is_source(path, &entry.source);
    let entry = mounts::all().unwrap_or_default().into_iter().find(ours)?;
    let (image, place) = (path.display(), entry.point.display());
    let told = Error::about(image, format!("in use: Spinney has it mounted on {place}"));
    Some(told.remedy(format!("use that, or `spinney umount {place}` first")))
}

fn in_use_by_other(path: &Path) -> Error {
    if let Some(error) = in_use_by_us(path) {
        return error;
    }
    let image = path.display();
    Error::about(&image, "in use by another program").remedy(format!(
        "if Spinney has it mounted, use the mount or `spinney umount` it; `fuser -v {image}` \
         names the program"
    ))
}

fn opening(path: &Path, error: &io::Error) -> Error {
    if error.kind() == ErrorKind::ResourceBusy {
        return in_use_by_other(path);
    }
    let told = Error::about(path.display(), io_text(error));
    match error.kind() {
        ErrorKind::PermissionDenied => told.remedy("you must be allowed to read and write it"),
        ErrorKind::ReadOnlyFilesystem => told.remedy("it can only be opened read-only (-o ro)"),
        _ => told,
    }
}

/// The engine could not open the volume in `image`.
pub fn opening_volume(image: &Path, subvol: &Subvol, error: &FsError) -> Error {
    let name = match subvol {
        Subvol::Path(path) => String::from_utf8_lossy(path).into_owned(),
        Subvol::Id(id) => format!("with the number {id}"),
        Subvol::Default => String::new(),
    };
    match error {
        FsError::Posix(Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL) if !name.is_empty() => {
            Error::about(image.display(), format!("there is no subvolume {name}"))
                .remedy("its path starts at the top of the volume, whatever the default is")
        }
        // `check` and `cp` would open it in the same way, and say the same.
        FsError::Corrupt { .. } => {
            let name = image.display();
            Error::about(&name, error).remedy(format!(
                "`spinney dump-super --all {name}` shows what is left of it; `btrfs restore \
                 {name} DIR` may get content out of it"
            ))
        }
        error => Error::fs(image.display(), image, error),
    }
}

/// A volume opened for one command. Changes are kept when `close` has returned.
pub struct Volume {
    pub fs: BtrfsFs,
    /// What could not be read while something was copied.
    pub losses: Losses,
    medium: Medium,
}

impl Volume {
    pub fn open(image: &Path, write: bool, subvol: &Subvol) -> Result<Volume> {
        let access = if write { Access::Write } else { Access::Read };
        let medium = Medium::open(image, access)?;
        let options = Options {
            read_only: !write,
            subvol: subvol.clone(),
            background: false,
            ..Options::default()
        };
        let fs = BtrfsFs::open_device(medium.block_device(), options)
            .map_err(|e| opening_volume(image, subvol, &e))?;
        match fs.read_only_reason() {
            Some(why) if write => {
                Err(Error::about(image.display(), format!("can only be read: {why}")))
            }
            why => {
                let not_whole =
                    |why: &&String| why.starts_with("truncated") || why.starts_with("a metadata");
                if let Some(why) = why.as_ref().filter(not_whole) {
                    say_error(&format!("spinney: {}: {why}", image.display()));
                }
                Ok(Volume { fs, losses: Losses::default(), medium })
            }
        }
    }

    /// The last commit, to be looked at whatever others do; `None` if it does not open.
    pub fn peek(image: &Path, subvol: &Subvol) -> Option<Volume> {
        let medium = Medium::open(image, Access::Peek).ok()?;
        let options = Options {
            read_only: true,
            ignore_log: true,
            subvol: subvol.clone(),
            background: false,
            ..Options::default()
        };
        let fs = BtrfsFs::open_device(medium.block_device(), options).ok()?;
        Some(Volume { fs, losses: Losses::default(), medium })
    }

    pub fn image(&self) -> &Path {
        self.medium.path()
    }

    /// Commits, if it was opened to be changed, and closes.
    pub fn close(self) -> Result<()> {
        let image = self.medium.path();
        self.fs.destroy().map_err(|e| Error::fs(image.display(), image, &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, String)> {
        let found = ImagePath::parse(OsStr::new(text))?;
        let path = String::from_utf8(found.path).unwrap();
        Some((found.image.display().to_string(), path))
    }

    #[test]
    fn words_split_at_the_colon() {
        let some = |image: &str, path: &str| Some((image.to_owned(), path.to_owned()));
        assert_eq!(parse("disk.img:/a/b"), some("disk.img", "/a/b"));
        assert_eq!(parse("disk.img:"), some("disk.img", "/"));
        assert_eq!(parse("a:b/disk.img:/x:/y"), some("a:b/disk.img", "/x:/y"));
        assert_eq!(parse("disk.img"), None);
        assert_eq!(parse(":/x"), None);
        assert_eq!(parse("/dev/disk/by-path/pci-0:1"), None);
        let me = std::env::current_exe().unwrap();
        let odd = format!("{}:/in", me.display());
        assert_eq!(parse(&odd), some(&me.display().to_string(), "/in"));
    }
}
