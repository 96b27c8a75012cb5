//! Making volumes.

use crate::error::{Error, Result};
use crate::medium::Medium;
use blockdev::BlockDevice;
use btrfs_image::mkfs::{self, MkfsError, MkfsOptions, Profile, Quotas};
use std::path::Path;
use vfs::FsError;

/// A fresh volume: what `mkfs.btrfs` makes without options, unless more is said.
///
/// ```no_run
/// # fn main() -> spinney::Result<()> {
/// let volume = spinney::FormatOptions::new().label("backup").create("disk.img", 1 << 30)?;
/// # volume.close() }
/// ```
#[derive(Clone, Debug, Default)]
pub struct FormatOptions(MkfsOptions);

impl FormatOptions {
    /// As `mkfs.btrfs` without options; the root directory belongs to user 0.
    pub fn new() -> FormatOptions {
        FormatOptions::default()
    }

    /// A name for people, of up to 255 bytes.
    pub fn label(mut self, label: impl AsRef<[u8]>) -> FormatOptions {
        self.0.label = label.as_ref().to_vec();
        self
    }

    /// The volume's UUID; random if none is given.
    pub fn uuid(mut self, uuid: [u8; 16]) -> FormatOptions {
        self.0.uuid = Some(uuid);
        self
    }

    /// One copy of the structures instead of two.
    pub fn single_metadata(mut self) -> FormatOptions {
        self.0.metadata_profile = Some(Profile::Single);
        self
    }

    /// Content and structures in the same block groups: for volumes of less than 256 MiB.
    pub fn mixed(mut self) -> FormatOptions {
        self.0.mixed = true;
        self
    }

    /// Quota groups that are there from the start, so that nothing has to be counted later: as
    /// `mkfs.btrfs -O quota`, and as
    /// [`enable_quotas`](crate::Volume::enable_quotas) on a volume that is fresh.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// use spinney::{FormatOptions, MemDevice, VolumeOptions};
    ///
    /// let device = std::sync::Arc::new(MemDevice::new(256 << 20));
    /// FormatOptions::new().quotas().format(&*device)?;
    /// let volume = VolumeOptions::new().write(true).open_device(device)?;
    /// assert!(volume.quota_status()?.is_some_and(|status| !status.simple));
    /// # volume.close() }
    /// ```
    pub fn quotas(mut self) -> FormatOptions {
        self.0.quotas = Some(Quotas::Full);
        self
    }

    /// The same with simple quotas
    /// ([`enable_simple_quotas`](crate::Volume::enable_simple_quotas)): as `mkfs.btrfs -O squota`.
    /// Kernels before 6.7 refuse the volume.
    pub fn simple_quotas(mut self) -> FormatOptions {
        self.0.quotas = Some(Quotas::Simple);
        self
    }

    /// To whom the root directory belongs.
    pub fn owner(mut self, user: u32, group: u32) -> FormatOptions {
        (self.0.root_uid, self.0.root_gid) = (user, group);
        self
    }

    /// The least bytes that such a volume needs.
    pub fn minimum_size(&self) -> Result<u64> {
        mkfs::minimum_size(&self.0).map_err(|e| failed(Path::new(""), e))
    }

    /// Makes the volume on `device`, which may be that of an open file
    /// ([`Medium::of_file`]). What was there is lost.
    pub fn format(&self, device: &dyn BlockDevice) -> Result<()> {
        let name = device.name();
        mkfs::make(device, &self.0).map(drop).map_err(|e| failed(Path::new(&name), e))
    }

    /// Makes an image of `bytes` bytes with a volume, and opens that to be changed. An image
    /// that is there already is lost.
    pub fn create(&self, path: impl AsRef<Path>, bytes: u64) -> Result<crate::Volume> {
        let minimum = self.minimum_size()?;
        if bytes < minimum {
            let too_small = MkfsError::TooSmall { minimum, have: bytes };
            return Err(failed(path.as_ref(), too_small));
        }
        let medium = Medium::create(path, bytes)?;
        self.format(&*medium.device())?;
        crate::VolumeOptions::new().write(true).open_medium(medium)
    }
}

fn failed(name: &Path, error: MkfsError) -> Error {
    match error {
        MkfsError::Io { context, source } => {
            Error::volume_said(name.display(), name, FsError::Io { context, source })
        }
        refused => Error::refused(name.display(), refused),
    }
}
