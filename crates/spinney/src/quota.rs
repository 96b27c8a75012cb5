//! Quotas of a volume that is open.
//!
//! It does not know how groups are counted (`btrfs_fs`), nor how they are told.

use crate::error::{Error, Result};
use crate::volume::Volume;
use btrfs_fs::{LimitChange, Qgroup, QgroupId, QuotaStatus};
use vfs::{Errno, FsError};

/// # Quotas
///
/// Each subvolume has a quota group, `0/NUMBER`. It references what the subvolume reaches, and has
/// for itself what no other does. Groups of higher levels have subvolumes and groups as members and
/// count what all of those reach together. Both numbers can be limited.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// # use spinney::{FormatOptions, MemDevice, VolumeOptions};
/// # let device = std::sync::Arc::new(MemDevice::new(256 << 20));
/// # FormatOptions::new().format(&*device)?;
/// # let volume = VolumeOptions::new().write(true).open_device(device)?;
/// use spinney::{LimitChange, QgroupId};
///
/// let home = volume.create_subvolume("home")?;
/// volume.enable_quotas()?;
/// let group = QgroupId(home.0);
/// let limit = LimitChange { referenced: Some(Some(1 << 20)), ..LimitChange::default() };
/// volume.limit_qgroup(group, &limit)?;
/// assert!(volume.write("home/large", &vec![7; 2 << 20]).is_err());
///
/// let groups = volume.qgroups()?;
/// assert!(groups.iter().any(|other| other.id == group && other.referenced <= 1 << 20));
/// # volume.close() }
/// ```
impl Volume {
    /// Begins to keep quotas, and counts what there is. Where they are kept it counts only what is not
    /// counted yet, as after a count that failed.
    pub fn enable_quotas(&self) -> Result<()> {
        match self.quota_status()? {
            Some(kept) if !kept.simple && (kept.inconsistent || kept.rescan.is_some()) => {
                return self.rescan_quotas();
            }
            Some(_) => return Ok(()),
            None => {}
        }
        let guard = self.guard();
        guard.enable_quotas().map_err(|e| self.quota(e))?;
        self.counted(guard.wait_for_rescan())
    }

    /// Begins to keep simple quotas: an extent counts for the subvolume that wrote it first, as long as
    /// anybody has it, and what was written before does not count. Nothing where quotas are kept.
    pub fn enable_simple_quotas(&self) -> Result<()> {
        self.guard().enable_simple_quotas().map_err(|e| self.quota(e))
    }

    /// Ends quotas: all groups go.
    pub fn disable_quotas(&self) -> Result<()> {
        self.guard().disable_quotas().map_err(|e| self.quota(e))
    }

    /// Counts all anew; refused where quotas are simple.
    pub fn rescan_quotas(&self) -> Result<()> {
        let guard = self.guard();
        let begun = match guard.rescan_quotas() {
            // What was under way when the volume was used last goes on.
            Err(FsError::Posix(Errno::EINPROGRESS)) => Ok(()),
            begun => begun,
        };
        begun.map_err(|e| self.quota(e))?;
        self.counted(guard.wait_for_rescan())
    }

    /// A rescan ends also where something cannot be read, and leaves numbers that nobody can trust.
    fn counted(&self, waited: vfs::Result<()>) -> Result<()> {
        match waited {
            Err(FsError::Posix(Errno::EUCLEAN)) => {
                let why = "quotas are kept, but what groups hold could not be counted";
                Err(Error::refused(self.name().display(), why).remedied(
                    "`spinney check` tells what cannot be read; `spinney quota disable` ends quotas",
                ))
            }
            waited => waited.map_err(|e| self.quota(e)),
        }
    }

    /// `None`: no quotas are kept.
    pub fn quota_status(&self) -> Result<Option<QuotaStatus>> {
        self.guard().quota_status().map_err(|e| self.quota(e))
    }

    /// All groups, with numbers of the last commit. An error where no quotas are kept.
    pub fn qgroups(&self) -> Result<Vec<Qgroup>> {
        self.guard().qgroups().map_err(|e| self.quota(e))
    }

    /// Makes a group of a level above 0 that counts nothing.
    pub fn create_qgroup(&self, id: QgroupId) -> Result<()> {
        self.guard().create_qgroup(id).map_err(|e| self.qgroup(id, e))
    }

    /// Takes a group away that has no members and is no subvolume's.
    pub fn destroy_qgroup(&self, id: QgroupId) -> Result<()> {
        self.guard().destroy_qgroup(id).map_err(|e| self.qgroup(id, e))
    }

    /// Makes `child` a member of `parent`, whose level is higher. False: only
    /// [`rescan_quotas`](Volume::rescan_quotas) makes the numbers right again.
    pub fn assign_qgroup(&self, child: QgroupId, parent: QgroupId) -> Result<bool> {
        self.guard().assign_qgroup(child, parent, true).map_err(|e| self.qgroup(child, e))
    }

    /// The opposite.
    pub fn remove_qgroup(&self, child: QgroupId, parent: QgroupId) -> Result<bool> {
        self.guard().assign_qgroup(child, parent, false).map_err(|e| self.qgroup(child, e))
    }

    /// Limits a group, or no more.
    pub fn limit_qgroup(&self, id: QgroupId, change: &LimitChange) -> Result<()> {
        self.guard().limit_qgroup(id, change).map_err(|e| self.qgroup(id, e))
    }

    fn quota(&self, error: FsError) -> Error {
        match error {
            FsError::Posix(Errno::ENOTCONN) => {
                let name = self.name().display();
                Error::refused(name, "quotas are not enabled")
                    .remedied("`spinney quota enable` begins to keep them")
            }
            FsError::Posix(Errno::EINVAL) => {
                let why = "simple quotas cannot be counted anew";
                Error::refused(self.name().display(), why)
            }
            other => Error::volume_said(self.name().display(), self.name(), other),
        }
    }

    fn qgroup(&self, id: QgroupId, error: FsError) -> Error {
        let name = format!("{}: group {id}", self.name().display());
        let why = match error {
            FsError::Posix(Errno::ENOENT) => "there is no such group",
            FsError::Posix(Errno::EEXIST) => "is there already",
            FsError::Posix(Errno::EBUSY) => "has members, is that of a subvolume, or owns extents",
            FsError::Posix(Errno::EINVAL) => "there is no such group, or its level does not fit",
            other => return self.quota(other),
        };
        Error::refused(name, why)
    }
}
