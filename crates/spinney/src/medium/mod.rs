//! Images and devices of this machine, opened alone.
//!
//! Invariant: what is opened to be changed is locked against every other Spinney, and
//! refused if the kernel has it mounted; what is opened to be read is locked against
//! writers. [`Access::Peek`] looks without asking anybody, for tools that show raw bytes.
//! What somebody else hands over as an open file is only locked. Of a part of an image the same
//! holds for the bytes of the part: other parts are others'.

mod below;
mod claim;
mod disk;
mod in_use;
mod mount_table;

use crate::error::{Cause, Error, Result};
use blockdev::{BlockDevice, FileDevice, OwnWriter, Slice, Span, Sticky};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use below::{Ground, Place};
pub use claim::{Claim, claim};
pub use disk::{Disk, Partition, part_of};
pub use in_use::devices_over;

/// How long something may be busy before that is an error.
/// Chosen, not measured.
const PATIENCE: Duration = Duration::from_millis(500);

/// For what an image or device is opened, and who else may have it meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
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

/// An open image or block device of this machine. After a failed write it takes no more of them.
pub struct Medium {
    device: Arc<Sticky<Slice<FileDevice>>>,
    path: PathBuf,
    /// Holds a reader's shared lock.
    _lock: Option<File>,
}

impl Medium {
    /// Opens an image or a block device that exists.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Medium> {
        Medium::open_for(path.as_ref(), path.as_ref(), None, access)
    }

    /// Opens the bytes of `part` alone, which are called `name`. They are locked, and others are not; but of
    /// a block device who writes to a part holds all.
    pub fn open_part(
        path: impl AsRef<Path>,
        name: impl AsRef<Path>,
        part: Span,
        access: Access,
    ) -> Result<Medium> {
        Medium::open_for(path.as_ref(), name.as_ref(), Some(part), access)
    }

    fn open_for(path: &Path, name: &Path, part: Option<Span>, access: Access) -> Result<Medium> {
        let meta = image_at(path)?;
        let lock = match access {
            Access::Read => Some(lock_shared(path, name, part)?),
            _ => None,
        };
        if access != Access::Peek
            && let Some(holder) = in_use::holder(path, part, access == Access::Read)
        {
            return Err(Error::new(name.display(), Cause::InUse(Some(holder))));
        }
        let read_only = matches!(access, Access::Read | Access::Peek);
        if !read_only && is_block_device(path) && takes_no_writes(&meta) {
            return Err(Error::refused(name.display(), "the device is read-only"));
        }
        let device = patiently(|| match part {
            None => FileDevice::open(path, read_only, access == Access::Mount).map(Slice::whole),
            Some(part) => FileDevice::open_part(path, read_only, part)
                .and_then(|device| Slice::new(device, part, name.display().to_string())),
        });
        Ok(Medium::on(device.map_err(|e| opening(name, e))?, name, lock))
    }

    fn on(device: Slice<FileDevice>, name: &Path, lock: Option<File>) -> Medium {
        Medium { device: Arc::new(Sticky::new(device)), path: name.to_owned(), _lock: lock }
    }

    /// Makes (or empties) an image of `bytes` bytes, all holes.
    pub fn create(path: impl AsRef<Path>, bytes: u64) -> Result<Medium> {
        let path = path.as_ref();
        if path.exists()
            && let Some(holder) = in_use::holder(path, None, false)
        {
            return Err(Error::new(path.display(), Cause::InUse(Some(holder))));
        }
        let device = FileDevice::create(path, bytes).map_err(|e| opening(path, e))?;
        Ok(Medium::on(Slice::whole(device), path, None))
    }

    /// Takes an open file, whatever has it open beside. It must have been opened to be read,
    /// and to be written if `write`.
    pub fn of_file(file: File, name: impl AsRef<Path>, write: bool) -> Result<Medium> {
        let name = name.as_ref();
        let device = FileDevice::of_file(file, name, !write).map_err(|e| opening(name, e))?;
        Ok(Medium::on(Slice::whole(device), name, None))
    }

    /// The bytes of it.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    /// The same file or device once more, to be read whatever others do, whatever its path leads to by now.
    pub fn peek(&self) -> Result<Medium> {
        let part = self.device.device();
        let again = part.device().again().and_then(|device| part.of_another(device));
        Ok(Medium::on(again.map_err(|e| opening(&self.path, e))?, &self.path, None))
    }

    /// Gives the file that the image is `bytes` bytes, whatever its path leads to by now. The medium keeps the
    /// length that it had when it was opened.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        let set = self.device.device().device().set_file_len(bytes);
        set.map_err(|e| Error::host(&self.path, e))
    }

    /// The same with `bytes` bytes, which the file is given, whatever its path leads to by now. It stays locked all
    /// the while.
    pub fn with_len(self, bytes: u64) -> Result<Medium> {
        self.set_len(bytes)?;
        self.share()
    }

    /// The same file or device once more, as this one is open, whatever its path leads to by now; with the length
    /// that the file has now. It stays locked until both are gone.
    pub fn share(&self) -> Result<Medium> {
        let part = self.device.device();
        let device = part.device().with_file_len().and_then(|device| part.of_another(device));
        let lock = self._lock.as_ref().map(File::try_clone).transpose();
        let (device, lock) =
            device.and_then(|device| Ok((device, lock?))).map_err(|e| opening(&self.path, e))?;
        Ok(Medium::on(device, &self.path, lock))
    }

    /// Where on this machine its bytes lie, as far down as is known.
    pub(crate) fn place(&self) -> Option<Place> {
        let part = self.device.device();
        let ground = Ground::of(&part.device().metadata().ok()?)?;
        Some(Place::of(ground, part.part()))
    }

    /// Why it takes no writes any more, if one failed.
    pub fn failure(&self) -> Option<&str> {
        self.device.failure()
    }

    /// If one failed, the machine forgets what it has cached, as when the medium is dropped: for who ends without
    /// that.
    pub fn forget_failed(&self) {
        self.device.forget_failed();
    }

    /// Where it was opened, or how it was called.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What is to be opened as an image: nothing else is, which may keep the opener waiting, as a pipe, or do something
/// when it is opened, as a watchdog.
fn image_at(path: &Path) -> Result<Metadata> {
    let meta = path.metadata().map_err(|e| Error::host(path, e))?;
    match meta.is_file() || is_block_device(path) {
        true => Ok(meta),
        false => Err(Error::refused(path.display(), "neither an image nor a block device")),
    }
}

/// Whether `path` is a block device of this machine.
pub fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Of a block device that is read-only to all: it can be opened to be written, and refuses each write.
#[cfg(target_os = "linux")]
fn takes_no_writes(meta: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = meta.rdev();
    let flag = format!("/sys/dev/block/{}:{}/ro", libc::major(device), libc::minor(device));
    std::fs::read(flag).is_ok_and(|text| text.starts_with(b"1"))
}

/// Elsewhere the first write tells.
#[cfg(not(target_os = "linux"))]
fn takes_no_writes(_: &Metadata) -> bool {
    false
}

fn lock_shared(path: &Path, name: &Path, part: Option<Span>) -> Result<File> {
    let file = File::open(path).map_err(|e| opening(name, e))?;
    let locked = patiently(|| blockdev::lock(&file, false, part));
    locked.map(|()| file).map_err(|e| opening(name, e))
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

fn opening(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::ResourceBusy => {
            let own = OwnWriter::is_in(&error).then(|| OwnWriter.to_string());
            Error::new(path.display(), Cause::InUse(own))
        }
        _ => Error::host(path, error),
    }
}
