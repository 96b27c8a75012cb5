//! What of quotas a mount's server is asked for.
//!
//! ENOTCONN is the kernel's word for quotas that are off, and FUSE's for a server that is gone:
//! so the server is asked which of both it is.

use super::Door;
use crate::error::{Error, Result};
use btrfs_fs::control::wire::Records;
use btrfs_fs::control::wire::quotas as wire;
use spinney::{LimitChange, Qgroup, QgroupId, QuotaStatus};
use std::io;

/// What quotas are switched to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    On,
    Simple,
    Off,
}

impl Door {
    fn quotas(&self, command: u32, record: Vec<u8>, subject: Option<QgroupId>) -> Result<Vec<u8>> {
        self.ask(command, record).map_err(|error| self.of_quotas(&error, subject))
    }

    fn of_quotas(&self, error: &io::Error, subject: Option<QgroupId>) -> Error {
        let place = self.path.display();
        let about = match subject {
            Some(id) => format!("{place}: group {id}"),
            None => place.to_string(),
        };
        let code = error.raw_os_error();
        let off = || matches!(self.quota_status(), Ok(None));
        match code {
            Some(libc::ENOTCONN) if off() => Error::about(place, "quotas are not enabled")
                .remedy("`spinney quota enable` begins to keep them"),
            Some(libc::ENOENT) => Error::about(about, "there is no such group"),
            Some(libc::EEXIST) => Error::about(about, "is there already"),
            Some(libc::EBUSY) => {
                Error::about(about, "has members, is that of a subvolume, or owns extents")
            }
            Some(libc::EINVAL) if subject.is_some() => {
                Error::about(about, "there is no such group, or its level does not fit")
            }
            Some(libc::EPERM) => {
                Error::about(place, "only root and who mounted the volume may do so")
            }
            _ => self.told(&about, error),
        }
    }

    pub fn quota_status(&self) -> Result<Option<QuotaStatus>> {
        let answer = self.ask(wire::QUOTA_STATUS, Vec::new()).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOTCONN) => self.told_of_itself(&error),
                _ => self.of_quotas(&error, None),
            }
        })?;
        wire::read_status(&answer).ok_or_else(|| self.odd())
    }

    pub fn switch_quotas(&self, to: Switch) -> Result<()> {
        let word = match to {
            Switch::On => wire::ENABLE,
            Switch::Simple => wire::ENABLE_SIMPLE,
            Switch::Off => wire::DISABLE,
        };
        self.quotas(wire::QUOTA_CTL, wire::record(&[word]), None).map(drop)
    }

    /// False: one is under way already.
    pub fn begin_rescan(&self) -> Result<bool> {
        match self.ask(wire::RESCAN, Vec::new()) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let why = "simple quotas cannot be counted anew";
                Err(Error::about(self.path.display(), why))
            }
            Err(error) => Err(self.of_quotas(&error, None)),
        }
    }

    /// Where a rescan is.
    pub fn rescan(&self) -> Result<Option<u64>> {
        let answer = self.quotas(wire::RESCAN_STATUS, Vec::new(), None)?;
        let [flags, at] = wire::numbers(&answer).ok_or_else(|| self.odd())?;
        Ok((flags != 0).then_some(at))
    }

    pub fn qgroups(&self) -> Result<Vec<Qgroup>> {
        let (mut all, mut from) = (Vec::<Qgroup>::new(), Some(0u64));
        while let Some(next) = from {
            let answer = self.quotas(wire::QGROUP_LIST, wire::record(&[next]), None)?;
            let more = Records::read::<Qgroup>(&answer).ok_or_else(|| self.odd())?;
            from = match more.last() {
                Some(last) if last.id.0 < next => return Err(self.odd()),
                Some(last) => last.id.0.checked_add(1),
                None => None,
            };
            all.extend(more);
        }
        Ok(all)
    }

    /// Makes a group, or takes it away.
    pub fn qgroup(&self, id: QgroupId, create: bool) -> Result<()> {
        let record = wire::record(&[create.into(), id.0]);
        self.quotas(wire::QGROUP_CREATE, record, Some(id)).map(drop)
    }

    /// Puts a group into another, or takes it out.
    pub fn assign_qgroup(&self, child: QgroupId, parent: QgroupId, comes: bool) -> Result<()> {
        let record = wire::record(&[comes.into(), child.0, parent.0]);
        self.quotas(wire::QGROUP_ASSIGN, record, Some(child)).map(drop)
    }

    pub fn limit_qgroup(&self, id: QgroupId, change: &LimitChange) -> Result<()> {
        self.quotas(wire::QGROUP_LIMIT, wire::limit_record(id, change), Some(id)).map(drop)
    }

    /// Makes `name` here a subvolume, or a snapshot of the one that `source` is the root of, in
    /// quota groups.
    pub(super) fn create_in(
        &self,
        source: Option<(&Door, bool)>,
        name: &[u8],
        groups: &[QgroupId],
    ) -> io::Result<()> {
        let source = match source {
            None => None,
            Some((door, read_only)) => Some((door.as_source()?, read_only)),
        };
        let args = wire::CreateIn { source, groups: groups.to_vec(), name };
        let record = args.write().ok_or(io::Error::from_raw_os_error(libc::ENAMETOOLONG))?;
        self.ask(wire::CREATE_IN, record).map(drop)
    }
}
