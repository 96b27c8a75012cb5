//! Quotas, behind the guard: what commits is refused while a transaction is open.

use super::Guard;
use btrfs_fs::{LimitChange, Qgroup, QgroupId, QuotaStatus};
use vfs::Result;

impl Guard {
    pub(crate) fn enable_quotas(&self) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.enable_quotas()
    }

    pub(crate) fn enable_simple_quotas(&self) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.enable_simple_quotas()
    }

    pub(crate) fn disable_quotas(&self) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.disable_quotas()
    }

    pub(crate) fn rescan_quotas(&self) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.rescan_quotas()
    }

    pub(crate) fn wait_for_rescan(&self) -> Result<()> {
        // Closing, and a transaction that begins, wait for one step alone: it ends then.
        self.there()?.wait_for_rescan_by(|| Ok((self.durable()?, self.change()?)))
    }

    pub(crate) fn quota_status(&self) -> Result<Option<QuotaStatus>> {
        self.there()?.quota_status()
    }

    pub(crate) fn qgroups(&self) -> Result<Vec<Qgroup>> {
        self.there()?.qgroups_from(QgroupId(0), usize::MAX)
    }

    pub(crate) fn create_qgroup(&self, id: QgroupId) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.create_qgroup(id)
    }

    pub(crate) fn destroy_qgroup(&self, id: QgroupId) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.destroy_qgroup(id)
    }

    pub(crate) fn assign_qgroup(
        &self,
        child: QgroupId,
        parent: QgroupId,
        comes: bool,
    ) -> Result<bool> {
        let _durable = self.durable()?;
        let fs = self.change()?;
        if comes { fs.assign_qgroup(child, parent) } else { fs.remove_qgroup(child, parent) }
    }

    pub(crate) fn limit_qgroup(&self, id: QgroupId, change: &LimitChange) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.limit_qgroup(id, change)
    }
}
