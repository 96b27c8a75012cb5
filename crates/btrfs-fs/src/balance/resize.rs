//! The device becomes larger or smaller.
//!
//! Invariants: the size is on the volume when nothing lies behind it; an error leaves the old one.
//!
//! What it does not know: how block groups are emptied, and who makes a device longer.

use super::{BalanceReport, Balancer};
use crate::error::IntoFs;
use std::time::Instant;
use vfs::{Errno, FsError, Result};

/// No volume is made smaller than this; the kernel makes none, either. What one has beyond its last whole
/// sector may go all the same: nothing is there, and the kernel wants none.
const LEAST: u64 = 256 << 20;

/// What a device is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NewSize {
    /// So many bytes.
    Bytes(u64),
    /// So many more than now.
    Plus(u64),
    /// So many fewer than now.
    Minus(u64),
    /// All that the device has.
    Max,
}

impl Balancer {
    /// How large the volume is now, and what it would be by `size`. ENODEV: there is no such device.
    pub(crate) fn sizes(&self, devid: u64, size: NewSize) -> Result<(u64, u64)> {
        if devid != self.core.volume.superblock().fields.dev_item.devid {
            return Err(Errno::ENODEV.into());
        }
        self.core.volume.grow_device().fs()?;
        let now = self.core.space.device_bytes();
        let new = match size {
            NewSize::Bytes(bytes) => Some(bytes),
            NewSize::Plus(bytes) => Some(now.checked_add(bytes).ok_or(Errno::ERANGE)?),
            NewSize::Minus(bytes) => now.checked_sub(bytes),
            NewSize::Max => Some(self.core.volume.device_len()),
        };
        Ok((now, new.ok_or(Errno::EINVAL)?))
    }

    /// The volume takes `total` bytes of its device, rounded down to whole sectors. What lies behind a
    /// nearer end moves.
    pub(crate) fn resize(&self, total: u64) -> Result<BalanceReport> {
        let _one = self.resizing.lock();
        self.core.health.may_go_on().fs()?;
        let (start, mut report) = (Instant::now(), BalanceReport::default());
        let total = total / self.core.sector() * self.core.sector();
        let space = &self.core.space;
        let now = space.device_bytes();
        self.core.volume.grow_device().fs()?;
        if total > self.core.volume.device_len() {
            return Err(Errno::EFBIG.into());
        }
        if total >= now {
            space.grow(total).fs()?;
            self.record_grown(now, total)?;
        } else if total < LEAST && now - total >= self.core.sector() {
            return Err(Errno::EINVAL.into());
        } else {
            space.will_shrink(total).fs()?;
            if let Err(error) = self.clear_behind(total, &mut report) {
                space.do_not_shrink();
                return Err(error);
            }
            self.record(total).inspect_err(|_| self.back_to(now))?;
        }
        report.time = start.elapsed();
        Ok(report)
    }

    /// A commit with the size, or an error: also where none was made, since the mount became read-only meanwhile.
    fn record(&self, total: u64) -> Result<()> {
        self.committer.commit_written_back()?;
        match self.core.volume.superblock().fields.dev_item.total_bytes == total {
            true => Ok(()),
            false => Err(FsError::ReadOnly("remounted read-only".into())),
        }
    }

    /// Nobody has room behind the old end before a commit has the new one, so that it can be taken back; unless
    /// that commit finds no other.
    fn record_grown(&self, old: u64, total: u64) -> Result<()> {
        let space = &self.core.space;
        let recorded = self.record(total).or_else(|error| match error {
            FsError::Posix(Errno::ENOSPC) => {
                space.grown();
                self.record(total)
            }
            error => Err(error),
        });
        match recorded {
            Ok(()) => space.grown(),
            Err(_) if !space.not_grown(old).fs()? => {
                let why = "its device was to be larger, and no commit says so of what lies there";
                self.core.health.poison(why);
            }
            Err(_) => {}
        }
        recorded
    }

    /// No commit has the smaller size, and none is to have it.
    fn back_to(&self, old: u64) {
        if let Err(error) = self.core.space.grow(old) {
            self.core.health.poison(&format!("its device was to be smaller: {error}"));
        }
        self.core.space.grown();
    }

    fn clear_behind(&self, total: u64, report: &mut BalanceReport) -> Result<()> {
        let space = &self.core.space;
        // Deleted content may be all that is there.
        self.committer.commit_what_lands()?;
        // Whoever pauses or cancels a balance does not mean this.
        let behind = space.behind(total);
        behind.iter().try_for_each(|group| self.empty(group, report, || false).map(drop))?;
        space.shrink().fs()
    }
}
