//! Quotas of the volume that a place is in: in an image by the library, in a mount by its server.

use crate::commands::subvolume::place::{Open, VolumePath};
use crate::door::{Door, Switch};
use crate::error::{Error, Result};
use spinney::{LimitChange, Qgroup, QgroupId, QuotaStatus};
use std::thread::sleep;
use std::time::Duration;

/// How often a mount is asked how far it is.
const PAUSE: Duration = Duration::from_millis(50);

impl Open<'_> {
    pub fn quota_status(&self, place: &VolumePath) -> Result<Option<QuotaStatus>> {
        match place {
            VolumePath::Image(inside) => Ok(self.volume(inside)?.quota_status()?),
            VolumePath::Mount(path) => Door::open(path)?.quota_status(),
        }
    }

    /// In an image all is counted when this returns; a mount goes on to count.
    pub fn switch_quotas(&self, place: &VolumePath, to: Switch) -> Result<()> {
        let inside = match place {
            VolumePath::Image(inside) => inside,
            VolumePath::Mount(path) => return Door::open(path)?.switch_quotas(to),
        };
        let volume = self.volume(inside)?;
        match to {
            Switch::On => volume.enable_quotas()?,
            Switch::Simple => volume.enable_simple_quotas()?,
            Switch::Off => volume.disable_quotas()?,
        }
        Ok(())
    }

    /// The same of counting anew; false: that is under way already.
    pub fn begin_rescan(&self, place: &VolumePath) -> Result<bool> {
        match place {
            VolumePath::Image(inside) => Ok(self.volume(inside)?.rescan_quotas().map(|()| true)?),
            VolumePath::Mount(path) => Door::open(path)?.begin_rescan(),
        }
    }

    /// Where a rescan is.
    pub fn rescan(&self, place: &VolumePath) -> Result<Option<u64>> {
        match place {
            VolumePath::Image(_) => Ok(self.quota_status(place)?.and_then(|status| status.rescan)),
            VolumePath::Mount(path) => Door::open(path)?.rescan(),
        }
    }

    /// Until none is under way. An error where one was that ended without numbers.
    pub fn wait_for_rescan(&self, place: &VolumePath) -> Result<()> {
        let mut waited = false;
        while self.rescan(place)?.is_some() {
            waited = true;
            match place {
                VolumePath::Image(_) => self.begin_rescan(place).map(drop)?,
                VolumePath::Mount(_) => sleep(PAUSE),
            }
        }
        if waited && self.quota_status(place)?.is_some_and(|status| status.inconsistent) {
            let why = "what groups hold could not be counted";
            let remedy = "`spinney check` tells what cannot be read";
            return Err(Error::new(format!("{}: {why}", place.show())).remedy(remedy));
        }
        Ok(())
    }

    pub fn qgroups(&self, place: &VolumePath) -> Result<Vec<Qgroup>> {
        match place {
            VolumePath::Image(inside) => Ok(self.volume(inside)?.qgroups()?),
            VolumePath::Mount(path) => Door::open(path)?.qgroups(),
        }
    }

    pub fn create_qgroup(&self, place: &VolumePath, id: QgroupId) -> Result<()> {
        match place {
            VolumePath::Image(inside) => Ok(self.volume(inside)?.create_qgroup(id)?),
            VolumePath::Mount(path) => Door::open(path)?.qgroup(id, true),
        }
    }

    pub fn destroy_qgroup(&self, place: &VolumePath, id: QgroupId) -> Result<()> {
        match place {
            VolumePath::Image(inside) => Ok(self.volume(inside)?.destroy_qgroup(id)?),
            VolumePath::Mount(path) => Door::open(path)?.qgroup(id, false),
        }
    }

    /// Puts a group into another, or takes it out; false: only a rescan makes the numbers right again.
    pub fn relate_qgroups(
        &self,
        place: &VolumePath,
        (child, parent): (QgroupId, QgroupId),
        comes: bool,
    ) -> Result<bool> {
        match place {
            VolumePath::Image(inside) if comes => {
                Ok(self.volume(inside)?.assign_qgroup(child, parent)?)
            }
            VolumePath::Image(inside) => Ok(self.volume(inside)?.remove_qgroup(child, parent)?),
            VolumePath::Mount(path) => {
                let door = Door::open(path)?;
                let right = |status: Option<QuotaStatus>| {
                    status.is_none_or(|s| !s.inconsistent || s.rescan.is_some())
                };
                door.assign_qgroup(child, parent, comes)?;
                Ok(right(door.quota_status()?))
            }
        }
    }

    pub fn limit_qgroup(
        &self,
        place: &VolumePath,
        id: QgroupId,
        change: &LimitChange,
    ) -> Result<()> {
        match place {
            VolumePath::Image(inside) => Ok(self.volume(inside)?.limit_qgroup(id, change)?),
            VolumePath::Mount(path) => Door::open(path)?.limit_qgroup(id, change),
        }
    }
}
