//! Quotas of the volume that a place is in: in an image by the library, in a mount by its server.

use crate::commands::subvolume::place::{Open, Place};
use crate::door::{Door, Switch};
use crate::error::Result;
use spinney::{LimitChange, Qgroup, QgroupId, QuotaStatus};
use std::thread::sleep;
use std::time::Duration;

/// How often a mount is asked how far it is.
const PAUSE: Duration = Duration::from_millis(50);

impl Open<'_> {
    pub fn quota_status(&self, place: &Place) -> Result<Option<QuotaStatus>> {
        match place {
            Place::Image(inside) => Ok(self.volume(inside)?.quota_status()?),
            Place::Mount(path) => Door::open(path)?.quota_status(),
        }
    }

    /// In an image all is counted when this returns; a mount goes on to count.
    pub fn switch_quotas(&self, place: &Place, to: Switch) -> Result<()> {
        let inside = match place {
            Place::Image(inside) => inside,
            Place::Mount(path) => return Door::open(path)?.switch_quotas(to),
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
    pub fn begin_rescan(&self, place: &Place) -> Result<bool> {
        match place {
            Place::Image(inside) => Ok(self.volume(inside)?.rescan_quotas().map(|()| true)?),
            Place::Mount(path) => Door::open(path)?.begin_rescan(),
        }
    }

    /// Where a rescan is.
    pub fn rescan(&self, place: &Place) -> Result<Option<u64>> {
        match place {
            Place::Image(_) => Ok(self.quota_status(place)?.and_then(|status| status.rescan)),
            Place::Mount(path) => Door::open(path)?.rescan(),
        }
    }

    pub fn wait_for_rescan(&self, place: &Place) -> Result<()> {
        while self.rescan(place)?.is_some() {
            match place {
                Place::Image(_) => self.begin_rescan(place).map(drop)?,
                Place::Mount(_) => sleep(PAUSE),
            }
        }
        Ok(())
    }

    pub fn qgroups(&self, place: &Place) -> Result<Vec<Qgroup>> {
        match place {
            Place::Image(inside) => Ok(self.volume(inside)?.qgroups()?),
            Place::Mount(path) => Door::open(path)?.qgroups(),
        }
    }

    pub fn create_qgroup(&self, place: &Place, id: QgroupId) -> Result<()> {
        match place {
            Place::Image(inside) => Ok(self.volume(inside)?.create_qgroup(id)?),
            Place::Mount(path) => Door::open(path)?.qgroup(id, true),
        }
    }

    pub fn destroy_qgroup(&self, place: &Place, id: QgroupId) -> Result<()> {
        match place {
            Place::Image(inside) => Ok(self.volume(inside)?.destroy_qgroup(id)?),
            Place::Mount(path) => Door::open(path)?.qgroup(id, false),
        }
    }

    /// Puts a group into another, or takes it out; false: only a rescan makes the numbers right again.
    pub fn relate_qgroups(
        &self,
        place: &Place,
        (child, parent): (QgroupId, QgroupId),
        comes: bool,
    ) -> Result<bool> {
        match place {
            Place::Image(inside) if comes => {
                Ok(self.volume(inside)?.assign_qgroup(child, parent)?)
            }
            Place::Image(inside) => Ok(self.volume(inside)?.remove_qgroup(child, parent)?),
            Place::Mount(path) => {
                let door = Door::open(path)?;
                let right = |status: Option<QuotaStatus>| {
                    status.is_none_or(|s| !s.inconsistent || s.rescan.is_some())
                };
                door.assign_qgroup(child, parent, comes)?;
                Ok(right(door.quota_status()?))
            }
        }
    }

    pub fn limit_qgroup(&self, place: &Place, id: QgroupId, change: &LimitChange) -> Result<()> {
        match place {
            Place::Image(inside) => Ok(self.volume(inside)?.limit_qgroup(id, change)?),
            Place::Mount(path) => Door::open(path)?.limit_qgroup(id, change),
        }
    }
}
