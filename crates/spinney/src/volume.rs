//! An open volume: one engine, shared by all handles that came from it, and its end.
//!
//! Invariant: nothing ends silently. Whoever is the last to let go of a volume commits it; if
//! that fails, it is told as an error of the log (`tracing`), since a destructor can tell nobody
//! else. [`Volume::close`] tells its caller.

use crate::error::{Cause, Error, Result};
use crate::guard::Guard;
use crate::medium::{Medium, Place};
use blockdev::BlockDevice;
use btrfs_fs::{BtrfsFs, Options, Stored};
use locks::{Rank, RwLock};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vfs::{Context, FileSystem, FsError, Ino};

/// An open btrfs volume.
///
/// A `Volume` is a handle, as its clones are, and the files, transactions and walks that come
/// from it: all are of one open volume, from any number of threads, and it stays open until the
/// last of them is gone or [`close`](Volume::close) was called.
///
/// Changes are in memory until somebody asks for a commit: [`sync`](Volume::sync), `close`, or
/// the end of the last handle. A commit is atomic: after a crash the volume is in the state of
/// one, never between two. Nothing commits behind your back, but for two reasons: the changes
/// take more memory than
/// [`VolumeOptions::transaction_limit`](crate::VolumeOptions::transaction_limit), or the volume
/// is so full that only a commit gives room back. What must appear at once is a
/// [`transaction`](Volume::transaction).
///
/// Paths are paths in the volume and start at its root, with or without a `/` in front;
/// symbolic links are followed inside the volume.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// use spinney::{FormatOptions, MemDevice, VolumeOptions};
/// use std::sync::Arc;
///
/// let device = Arc::new(MemDevice::new(256 << 20));
/// FormatOptions::new().label("scratch").format(&*device)?;
/// let volume = VolumeOptions::new().write(true).open_device(device)?;
/// volume.create_dir("etc")?;
/// volume.write("etc/motd", b"hello\n")?;
/// assert_eq!(volume.read("etc/motd")?, b"hello\n");
/// volume.close()
/// # }
/// ```
#[derive(Clone)]
pub struct Volume(Arc<Inner>);

struct Inner {
    guard: Arc<Guard>,
    fs: Arc<dyn FileSystem>,
    origin: Arc<Origin>,
    on_loss: RwLock<Option<Arc<LossListener>>>,
    /// Another engine has the device since this one was given up.
    reopened: AtomicBool,
}

/// What a volume was opened from, and can be opened from again.
pub(crate) struct Origin {
    pub device: Arc<dyn BlockDevice>,
    /// Holds a lock against others, as long as anything is open. `None` of a device that is not ours to know.
    pub medium: Option<Medium>,
    pub name: PathBuf,
    pub context: Context,
    /// Bytes of changes that a transaction may have.
    pub limit: u64,
    pub engine: Options,
}

type LossListener = dyn Fn(&Loss<'_>) + Send + Sync;

impl Volume {
    pub(crate) fn start(origin: Arc<Origin>) -> Result<Volume> {
        let (device, options) = (origin.device.clone(), origin.engine.clone());
        let writes = !options.read_only;
        let fs = BtrfsFs::open_device(device, options)
            .map_err(|e| Error::volume_said(origin.name.display(), &origin.name, e))?;
        if let Some(why) = fs.read_only_reason()
            && writes
        {
            let said = FsError::ReadOnly(why);
            return Err(Error::volume_said(origin.name.display(), &origin.name, said));
        }
        let guard = Arc::new(Guard::new(Arc::new(fs), origin.limit));
        let on_loss = RwLock::new(Rank::Leaf, None);
        Ok(Volume(Arc::new(Inner {
            fs: guard.clone(),
            guard,
            origin,
            on_loss,
            reopened: AtomicBool::new(false),
        })))
    }

    /// Opens the volume anew after a [`Transaction`](crate::Transaction) was given up, as it was
    /// before that one; the lock on its image is not let go meanwhile. All handles of before go
    /// on to answer errors.
    ///
    /// That is done once: of several threads that find the volume given up, one opens it, and the
    /// others hear that it is open again. A volume whose medium failed is to be looked after, and
    /// opened from its image again.
    pub fn reopen(&self) -> Result<Volume> {
        let refused = |why: String| Err(Error::refused(self.name().display(), why));
        if !self.0.guard.is_given_up() {
            return refused("it is open".into());
        }
        if let Some(why) = self.0.guard.failed() {
            return refused(format!("cannot be opened again: {why}"));
        }
        // Two engines would write over each other's trees.
        if self.0.reopened.swap(true, Ordering::AcqRel) {
            return refused("it was opened again already".into());
        }
        let opened = Volume::start(self.0.origin.clone());
        let volume = opened.inspect_err(|_| self.0.reopened.store(false, Ordering::Release))?;
        let listener = self.0.on_loss.read().clone();
        *volume.0.on_loss.write() = listener;
        Ok(volume)
    }

    /// Where it was opened, or how its device calls itself.
    pub fn name(&self) -> &Path {
        &self.0.origin.name
    }

    /// Whether opening it to write made a free-space tree for the volume, which had none that was
    /// valid (version 1 space cache): a lasting change; Linux 4.5 and newer write such volumes.
    pub fn made_free_space_tree(&self) -> bool {
        self.0.guard.btrfs.made_free_space_tree()
    }

    /// Why it takes no changes, if so: it was opened to be read, something of it is not
    /// supported, or its medium failed.
    pub fn read_only_reason(&self) -> Option<String> {
        self.0.guard.btrfs.read_only_reason()
    }

    /// The volume's label.
    pub fn label(&self) -> Result<Vec<u8>> {
        self.fs().label().map_err(|e| self.error(b"", e))
    }

    /// Gives it another one: at most 255 bytes without NUL. Durable when this returns; refused
    /// while a transaction is open.
    pub fn set_label(&self, label: impl AsRef<[u8]>) -> Result<()> {
        self.fs().set_label(self.context(), label.as_ref()).map_err(|e| self.not_durable(b"", e))
    }

    /// What it is made of, in numbers: devices, and block groups by what they are for.
    pub fn usage(&self) -> Result<btrfs_fs::Usage> {
        self.0.guard.usage().map_err(|e| self.error(b"", e))
    }

    /// How large it is, and how much is free.
    pub fn space(&self) -> Result<Space> {
        let told = self.fs().statfs().map_err(|e| self.error(b"", e))?;
        let bytes = |blocks: u64| blocks.saturating_mul(told.block_size.into());
        Ok(Space {
            total: bytes(told.blocks),
            free: bytes(told.blocks_free),
            available: bytes(told.blocks_available),
        })
    }

    /// Commits: everything done before the call is on the medium when it returns. Refused
    /// while a transaction is open.
    pub fn sync(&self) -> Result<()> {
        self.fs().sync().map_err(|e| self.not_durable(b"", e))
    }

    /// Commits what was changed, and closes: all other handles of the volume answer errors
    /// from then on. Refused while a transaction is open. Of several who close it all return when that
    /// is done, and hear how it went.
    ///
    /// `Ok`: all changes are on the medium. So it is an error where a [`Transaction`](crate::Transaction) was given up,
    /// also by another thread: what was changed since that began is lost, whoever changed it.
    ///
    /// A volume that is dropped is closed as well, but nobody hears whether that went well,
    /// except the log.
    pub fn close(self) -> Result<()> {
        self.fs().destroy().map_err(|e| self.not_durable(b"", e))
    }

    /// As [`close`](Volume::close), but all of what came after the last commit is kept, or nothing: where the
    /// medium refuses content of one file `close` keeps the changes of all others, and that file
    /// without what was to be in it.
    pub fn close_whole(self) -> Result<()> {
        let landed = self.guard().land_or_give_up().map_err(|e| self.not_durable(b"", e));
        landed.and(self.close())
    }

    /// The file system behind it, for what paths and handles do not say: it can be served by
    /// a mount, for one. It works as long as the volume is open; who calls its `destroy` has
    /// closed the volume.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.0.fs
    }

    /// To whom new things belong.
    pub fn context(&self) -> &Context {
        &self.0.origin.context
    }

    /// Who is told what could not be read while content or trees are copied: the copy has
    /// zeros there, or lacks it, and goes on. Without a listener such a copy ends with the
    /// error.
    pub fn on_loss(&self, listener: impl Fn(&Loss<'_>) + Send + Sync + 'static) {
        *self.0.on_loss.write() = Some(Arc::new(listener));
    }

    /// Tells, or ends with the error where nobody listens.
    pub(crate) fn lost(&self, path: &[u8], range: Option<(u64, u64)>, why: FsError) -> Result<()> {
        match self.tell_loss(path, range, &why, false) {
            true => Ok(()),
            false => Err(self.error(path, why)),
        }
    }

    /// False: nobody listens.
    pub(crate) fn tell_loss(
        &self,
        path: &[u8],
        range: Option<(u64, u64)>,
        why: &FsError,
        copied: bool,
    ) -> bool {
        let listener = self.0.on_loss.read().clone();
        if let Some(listener) = &listener {
            listener(&Loss { volume: self, path, range, why, copied });
        }
        listener.is_some()
    }

    pub(crate) fn has_listener(&self) -> bool {
        self.0.on_loss.read().is_some()
    }

    /// The same open volume.
    pub fn is(&self, other: &Volume) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.0.guard
    }

    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.0.origin.device
    }

    /// Where on this machine it lies, if it was opened there.
    pub(crate) fn place(&self) -> Option<Place> {
        self.0.origin.medium.as_ref().and_then(Medium::place)
    }

    pub(crate) fn stored(&self, ino: Ino) -> vfs::Result<Vec<Stored>> {
        self.0.guard.btrfs.stored(ino)
    }

    /// `IMAGE:/PATH`, or the image alone.
    pub(crate) fn show(&self, path: &[u8]) -> String {
        let name = self.name().display();
        match path {
            b"" => name.to_string(),
            path => format!("{name}:{}", String::from_utf8_lossy(path)),
        }
    }

    pub(crate) fn error(&self, path: &[u8], error: FsError) -> Error {
        Error::volume_said(self.show(path), self.name(), error)
    }

    /// The same of what makes something durable: EBUSY alone does not say that a transaction is in the way.
    pub(crate) fn not_durable(&self, path: &[u8], error: FsError) -> Error {
        match error {
            FsError::Posix(vfs::Errno::EBUSY) if self.guard().has_transaction() => {
                Error::transaction_open(self.show(path), self.name())
            }
            error => self.error(path, error),
        }
    }
}

/// How large a volume is, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Space {
    /// What files and structures can use at all.
    pub total: u64,
    /// What nothing uses.
    pub free: u64,
    /// What files can still have of it.
    pub available: u64,
}

/// Something that a volume could not give while it was copied.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Loss<'a> {
    /// The volume.
    pub volume: &'a Volume,
    /// The path in it.
    pub path: &'a [u8],
    /// Offset and length of the content; `None` if it is the thing itself, or what is in it.
    pub range: Option<(u64, u64)>,
    /// What the file system said.
    pub why: &'a FsError,
    /// The copy has it nevertheless, since [`VolumeOptions::rescue`](crate::VolumeOptions::rescue) asks for what
    /// is there; nothing vouches for it.
    pub copied: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.guard.is_closed() {
            return;
        }
        let closed = self.fs.destroy();
        // That is told already.
        if let Err(error) = closed
            && !self.guard.is_given_up()
        {
            let volume = self.origin.name.display();
            tracing::error!(%volume, %error, "dropped without being closed, and what was not \
                synced is lost");
        }
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("name", &self.0.origin.name).finish_non_exhaustive()
    }
}

/// Says of the engine's result which path of which volume it was about.
pub(crate) trait At<T> {
    fn at(self, volume: &Volume, path: &[u8]) -> Result<T>;
}

impl<T> At<T> for vfs::Result<T> {
    fn at(self, volume: &Volume, path: &[u8]) -> Result<T> {
        self.map_err(|error| volume.error(path, error))
    }
}

/// The bytes of a path.
pub(crate) fn bytes(path: &(impl AsRef<Path> + ?Sized)) -> &[u8] {
    path.as_ref().as_os_str().as_bytes()
}

/// A change that another call may be asked for instead.
pub(crate) fn is_errno(error: &Error, errno: vfs::Errno) -> bool {
    matches!(error.cause(), Cause::Volume(FsError::Posix(found)) if *found == errno)
}
