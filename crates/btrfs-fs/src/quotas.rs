//! Quotas as programs see them: on and off, counted anew, and the groups.
//!
//! The face alone: what these calls do stands in `ops/quota`, what a commit counts in
//! `btrfs_space`. All of them are for privileged callers, whom their callers know.

use crate::fs::BtrfsFs;
use crate::ops::quota::{self, groups};
use crate::qgroup::{LimitChange, Qgroup, QgroupId, QuotaStatus};
use vfs::Result;

impl BtrfsFs {
    /// Begins to keep quotas; a rescan counts what there is, some of it in each commit.
    pub fn enable_quotas(&self) -> Result<()> {
        quota::enable(self.open()?)
    }

    /// Begins to keep simple quotas, which count what is written from now on; nothing where quotas are kept.
    pub fn enable_simple_quotas(&self) -> Result<()> {
        quota::enable_simple(self.open()?)
    }

    /// Ends quotas: all groups go.
    pub fn disable_quotas(&self) -> Result<()> {
        quota::disable(self.open()?)
    }

    /// Counts all anew. ENOTCONN without quotas, EINPROGRESS where that is under way, EINVAL where they are
    /// simple: nothing says what was written before they began.
    pub fn rescan_quotas(&self) -> Result<()> {
        quota::rescan(self.open()?)
    }

    /// Returns when no rescan is under way. EUCLEAN: numbers are INCONSISTENT then, as where something could not be read.
    pub fn wait_for_rescan(&self) -> Result<()> {
        self.wait_for_rescan_by(|| Ok(()))
    }

    /// The same in steps, for each of which `hold` gives what is held meanwhile: who keeps others from that ends
    /// it behind the step that is under way.
    pub fn wait_for_rescan_by<H>(&self, hold: impl Fn() -> Result<H>) -> Result<()> {
        quota::wait_for_rescan(self.open()?, hold)
    }

    /// A step of a rescan, which is a commit; true if none is under way.
    pub(crate) fn rescan_step(&self) -> Result<bool> {
        quota::rescan_step(self.open()?)
    }

    /// `None`: there are no quotas.
    pub fn quota_status(&self) -> Result<Option<QuotaStatus>> {
        quota::status(self.open()?)
    }

    /// The first `most` groups from `from` on, with numbers of the last commit. ENOTCONN without
    /// quotas, as all that follow.
    pub fn qgroups_from(&self, from: QgroupId, most: usize) -> Result<Vec<Qgroup>> {
        groups::from(self.open()?, from, most)
    }

    /// Makes a group that counts nothing. EEXIST; EINVAL: those of level 0 come with their subvolumes.
    pub fn create_qgroup(&self, id: QgroupId) -> Result<()> {
        groups::create(self.open()?, id)
    }

    /// Takes a group away. ENOENT; EBUSY: it has members, its subvolume is there, if only in part, or it has charges of simple
    /// quotas.
    pub fn destroy_qgroup(&self, id: QgroupId) -> Result<()> {
        groups::destroy(self.open()?, id)
    }

    /// Makes `child` a member of `parent`; commits. False: only a rescan makes the numbers right again.
    /// EEXIST; EINVAL: there is no such group, or `parent` is not of a higher level.
    pub fn assign_qgroup(&self, child: QgroupId, parent: QgroupId) -> Result<bool> {
        groups::assign(self.open()?, child, parent)
    }

    /// The opposite, answers the same. ENOENT: it is no member.
    pub fn remove_qgroup(&self, child: QgroupId, parent: QgroupId) -> Result<bool> {
        groups::remove(self.open()?, child, parent)
    }

    /// Limits a group, or no more; commits. ENOENT.
    pub fn limit_qgroup(&self, id: QgroupId, change: &LimitChange) -> Result<()> {
        groups::limit(self.open()?, id, change)
    }

    /// Whether limits are held against what all of the last commit's quota tree says.
    #[cfg(feature = "fault-injection")]
    pub fn limits_are_right(&self) -> Result<bool> {
        self.open()?.reservations.limits_are_right()
    }
}
