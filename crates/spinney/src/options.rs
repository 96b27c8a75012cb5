//! How a volume is opened.

use crate::error::Result;
use crate::guard::HEADROOM;
use crate::medium::{Access, Medium};
use crate::volume::{Origin, Volume};
use blockdev::BlockDevice;
use btrfs_disk::TreeId;
use btrfs_fs::{Compress, Options, Rescue, Subvol};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vfs::Context;

impl Volume {
    /// Opens the volume in an image or on a block device, to be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Volume> {
        VolumeOptions::new().open(path)
    }

    /// Opens the volume in an image or on a block device, to be read and changed.
    pub fn open_writable(path: impl AsRef<Path>) -> Result<Volume> {
        VolumeOptions::new().write(true).open(path)
    }

    /// Opens the volume in an open file, to be read; for more see [`VolumeOptions::open_file`].
    pub fn open_file(file: File) -> Result<Volume> {
        VolumeOptions::new().open_file(file, "volume")
    }
}

/// How a volume is opened; a new one opens to be read.
///
/// ```no_run
/// # fn main() -> spinney::Result<()> {
/// let volume = spinney::VolumeOptions::new().write(true).subvolume("home").open("disk.img")?;
/// # volume.close() }
/// ```
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    write: bool,
    ignore_log: bool,
    rescue: Rescue,
    subvol: Subvol,
    cache_bytes: u64,
    transaction_bytes: u64,
    compress: Option<Compress>,
    context: Context,
}

impl Default for VolumeOptions {
    fn default() -> VolumeOptions {
        VolumeOptions::new()
    }
}

impl VolumeOptions {
    /// To be read, from the volume's default subvolume.
    pub fn new() -> VolumeOptions {
        let (uid, gid) = crate::sys::user_and_group();
        VolumeOptions {
            write: false,
            ignore_log: false,
            rescue: Rescue::default(),
            subvol: Subvol::Default,
            cache_bytes: 64 << 20,
            transaction_bytes: 192 << 20,
            compress: None,
            context: Context { uid, gid, pid: std::process::id(), umask: 0o022 },
        }
    }

    /// The volume may be changed. Where that is not possible, it does not open.
    pub fn write(mut self, write: bool) -> VolumeOptions {
        self.write = write;
        self
    }

    /// The root is this subvolume, named by its path from the top of the volume.
    pub fn subvolume(mut self, path: impl AsRef<Path>) -> VolumeOptions {
        self.subvol = Subvol::Path(path.as_ref().as_os_str().as_bytes().to_vec());
        self
    }

    /// The root is the subvolume of this number; 5 is the top of the volume.
    pub fn subvolume_id(mut self, id: u64) -> VolumeOptions {
        self.subvol = Subvol::Id(TreeId(id));
        self
    }

    /// Shows the last commit, without what was synced since then before a crash. Only for
    /// volumes that are read.
    pub fn ignore_log(mut self, ignore: bool) -> VolumeOptions {
        self.ignore_log = ignore;
        self
    }

    /// What is made do with of a damaged volume. Only for volumes that are read: others do not open.
    pub fn rescue(mut self, rescue: Rescue) -> VolumeOptions {
        self.rescue = rescue;
        self
    }

    /// Bytes of memory for the volume's structures that were read (64 MiB).
    pub fn cache(mut self, bytes: u64) -> VolumeOptions {
        self.cache_bytes = bytes;
        self
    }

    /// Bytes of memory for changes that are not committed (192 MiB). Outside transactions more
    /// of them begin a commit; in a [`Transaction`](crate::Transaction) they are refused.
    /// Names and attributes count, content of files does not.
    pub fn transaction_limit(mut self, bytes: u64) -> VolumeOptions {
        self.transaction_bytes = bytes;
        self
    }

    /// New content is compressed, where a file or its directory does not say otherwise
    /// (`btrfs.compression`). By default only where they ask for it.
    pub fn compress(mut self, compress: Option<Compress>) -> VolumeOptions {
        self.compress = compress;
        self
    }

    /// Who owns what is made in the volume: by default the user and group of this process.
    pub fn owner(mut self, user: u32, group: u32) -> VolumeOptions {
        (self.context.uid, self.context.gid) = (user, group);
        self
    }

    /// The permission bits that new files and directories do not get (0o022).
    pub fn umask(mut self, bits: u32) -> VolumeOptions {
        self.context.umask = (bits & 0o777) as u16;
        self
    }

    /// Opens the volume in an image or on a block device.
    ///
    /// One that is to be written is locked against other programs of Spinney, and refused
    /// while the kernel has it mounted.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Volume> {
        let access = if self.write { Access::Write } else { Access::Read };
        self.open_medium(Medium::open(path, access)?)
    }

    /// Opens the volume in an open file, which is called `name` in messages. A volume that is
    /// to be written is locked; whether the kernel has it mounted is not looked at. A file that is
    /// not open to be read and written, or is open to append, is refused then. Two copies of one
    /// [`File`] (`try_clone`) are one file, and the second that is to be written is in use
    /// ([`Cause::InUse`](crate::Cause::InUse)) until the first volume is closed. The volume reads and writes at
    /// offsets; the place that all copies share is not left where it was.
    pub fn open_file(&self, file: File, name: impl AsRef<Path>) -> Result<Volume> {
        self.open_medium(Medium::of_file(file, name, self.write)?)
    }

    /// Opens the volume on what was opened before.
    pub fn open_medium(&self, medium: Medium) -> Result<Volume> {
        let name = medium.path().to_owned();
        self.start(medium.device(), name, Some(medium))
    }

    /// Opens the volume on any device: in memory, in a file of a format of your own, behind a
    /// network. Nobody else may write to it meanwhile.
    pub fn open_device(&self, device: Arc<dyn BlockDevice>) -> Result<Volume> {
        let name = PathBuf::from(device.name());
        self.start(device, name, None)
    }

    fn start(
        &self,
        device: Arc<dyn BlockDevice>,
        name: PathBuf,
        medium: Option<Medium>,
    ) -> Result<Volume> {
        let options = Options {
            read_only: !self.write,
            ignore_log: self.ignore_log,
            rescue: self.rescue,
            subvol: self.subvol.clone(),
            // Each part has a bound of its own here.
            memory_bytes: u64::MAX,
            cache_bytes: self.cache_bytes,
            delta_bytes: self.transaction_bytes.saturating_add(HEADROOM),
            // Commits come when somebody asks for one, and never in the middle of something.
            background: false,
            compress: self.compress,
            ..Options::default()
        };
        Volume::start(Arc::new(Origin {
            device,
            medium,
            name,
            context: self.context,
            limit: self.transaction_bytes,
            engine: options,
        }))
    }
}
