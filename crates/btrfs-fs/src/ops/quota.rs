//! Quotas on and off, counted anew, and what their status says.
//!
//! All of it is one item, the status, in the quota tree. The commit does the rest: where the item comes it
//! makes the tree and the groups of all subvolumes, where it goes they go, and where it says that
//! a rescan begins the commit and those after it count (`btrfs-space/src/quota`).

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::reserve::cost;
use btrfs_disk::items::{QgroupStatus, qgroup_status};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_txn::ObjectId;
use vfs::{Errno, FsError, Result};

/// What the status says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaStatus {
    /// A rescan is under way: what lies at this address and behind is not counted yet.
    pub rescan: Option<u64>,
    /// The numbers are not to be trusted before a rescan.
    pub inconsistent: bool,
}

/// `None`: there are no quotas.
pub(crate) fn status(engine: &Engine) -> Result<Option<QuotaStatus>> {
    let key = Key::new(0, kind::QGROUP_STATUS, 0);
    let Some(data) = engine.core.view().get(TreeId::QUOTA, &key).fs()? else { return Ok(None) };
    let item = QgroupStatus::read(&data).map_err(btrfs_disk::Error::from).fs()?;
    let has = |flag| item.flags & flag != 0;
    Ok(has(qgroup_status::ON).then(|| QuotaStatus {
        rescan: has(qgroup_status::RESCAN).then_some(item.rescan),
        inconsistent: has(qgroup_status::INCONSISTENT),
    }))
}

/// Begins to keep quotas, and returns when the rescan that this needs has begun. Nothing where
/// they are kept.
pub(crate) fn enable(engine: &Engine) -> Result<()> {
    if status(engine)?.is_some() {
        return Ok(());
    }
    begin_rescan(engine, true)
}

/// Begins to count all anew. EINVAL without quotas, EINPROGRESS where that is under way.
pub(crate) fn rescan(engine: &Engine) -> Result<()> {
    match status(engine)? {
        None => Err(Errno::EINVAL.into()),
        Some(QuotaStatus { rescan: Some(_), .. }) => Err(FsError::Posix(Errno::EINPROGRESS)),
        Some(_) => begin_rescan(engine, false),
    }
}

/// Returns when no rescan is under way: each commit goes a step on.
pub(crate) fn wait_for_rescan(engine: &Engine) -> Result<()> {
    while status(engine)?.is_some_and(|status| status.rescan.is_some()) {
        engine.committer.commit_written_back()?;
        engine.core.health.changeable().fs()?;
    }
    Ok(())
}

/// Ends quotas; all groups go.
pub(crate) fn disable(engine: &Engine) -> Result<()> {
    if status(engine)?.is_none() {
        return Ok(());
    }
    engine.core.health.changeable().fs()?;
    let reservation = engine.reserver.reserve_removal(cost::remove_orphan_item())?;
    let op = engine.core.begin();
    op.delete(ObjectId::new(TreeId::QUOTA, 0), kind::QGROUP_STATUS, 0);
    drop((op, reservation));
    engine.committer.commit_written_back()
}

fn begin_rescan(engine: &Engine, all_groups: bool) -> Result<()> {
    engine.core.health.changeable().fs()?;
    let flags = qgroup_status::ON | qgroup_status::RESCAN | qgroup_status::INCONSISTENT;
    let item = QgroupStatus { version: 1, flags, ..QgroupStatus::default() };
    let subvolumes = engine.core.roots().trees.sum().trees;
    let groups = if all_groups { subvolumes } else { 0 };
    let reservation = engine.reserver.reserve(cost::quota_groups(groups))?;
    let op = engine.core.begin();
    let value = item.to_vec().into();
    op.put(ObjectId::new(TreeId::QUOTA, 0), kind::QGROUP_STATUS, 0, value);
    drop((op, reservation));
    engine.committer.commit_written_back()
}
