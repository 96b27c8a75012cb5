//! Quotas on and off, counted anew, and what their status says.
//!
//! All of it is one item, the status, in the quota tree. The commit does the rest: where the item comes it
//! makes the tree and the groups of all subvolumes, where it goes they go, where it says that quotas are simple
//! it notes since when, and where it says that a rescan begins the commit and those after it count (`btrfs-space/src/quota`).
//! Who hears that a commit found no room has changed it all the same, with a later one: put back, an item would mean
//! something else to a commit than what was there.

pub(crate) mod groups;

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::qgroup::QuotaStatus;
use crate::reserve::cost;
use btrfs_disk::items::{QgroupStatus, qgroup_status};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_txn::ObjectId;
use vfs::{Errno, FsError, Result};

/// `None`: there are no quotas.
pub(crate) fn status(engine: &Engine) -> Result<Option<QuotaStatus>> {
    QuotaStatus::of(&engine.core.view()).fs()
}

/// Begins to keep quotas, and returns when the rescan that this needs has begun. Nothing where
/// they are kept.
pub(crate) fn enable(engine: &Engine) -> Result<()> {
    let _one_at_a_time = engine.lock_subvolumes()?;
    if status(engine)?.is_some() {
        return Ok(());
    }
    begin_rescan(engine, subvolumes(engine))
}

/// Begins simple quotas, which count what comes from now on. Nothing where quotas are kept.
pub(crate) fn enable_simple(engine: &Engine) -> Result<()> {
    let _one_at_a_time = engine.lock_subvolumes()?;
    match status(engine)? {
        Some(_) => Ok(()),
        None => {
            let flags = qgroup_status::ON | qgroup_status::SIMPLE;
            put_status(engine, flags, subvolumes(engine))
        }
    }
}

fn subvolumes(engine: &Engine) -> u64 {
    engine.core.roots().trees.sum().trees
}

/// Begins to count all anew, with a group for each subvolume that has none. ENOTCONN without quotas, EINPROGRESS where that is under way, EINVAL where
/// they are simple.
pub(crate) fn rescan(engine: &Engine) -> Result<()> {
    let _one_at_a_time = engine.lock_subvolumes()?;
    match status(engine)? {
        None => Err(Errno::ENOTCONN.into()),
        Some(QuotaStatus { simple: true, .. }) => Err(Errno::EINVAL.into()),
        Some(QuotaStatus { rescan: Some(_), .. }) => Err(FsError::Posix(Errno::EINPROGRESS)),
        Some(_) => begin_rescan(engine, without_group(engine)),
    }
}

/// How many subvolumes may have no group.
fn without_group(engine: &Engine) -> u64 {
    let (roots, view) = (engine.core.roots(), engine.core.view());
    let alive =
        roots.trees.iter().filter(|(id, root)| id.is_subvolume() && !root.item.is_deleted());
    let group = |id: TreeId| Key::new(0, kind::QGROUP_INFO, id.0);
    let has_one = |id| view.get(TreeId::QUOTA, &group(id)).is_ok_and(|info| info.is_some());
    alive.filter(|(id, _)| !has_one(*id)).count() as u64
}

/// Returns when no rescan is under way: each commit goes a step on. EUCLEAN where numbers are not right then. What
/// `hold` gives is held for each step, a look and its commit.
pub(crate) fn wait_for_rescan<H>(engine: &Engine, hold: impl Fn() -> Result<H>) -> Result<()> {
    loop {
        let _held = hold()?;
        if rescan_step(engine)? {
            return Ok(());
        }
    }
}

/// A commit, if a rescan is under way; true if none is. EUCLEAN where numbers are not right then.
pub(crate) fn rescan_step(engine: &Engine) -> Result<bool> {
    let Some(status) = status(engine)? else { return Ok(true) };
    match (status.rescan, status.inconsistent) {
        (Some(_), _) => engine.core.health.may_go_on().fs()?,
        (None, true) => return Err(Errno::EUCLEAN.into()),
        (None, false) => return Ok(true),
    }
    engine.committer.commit_written_back()?;
    Ok(false)
}

/// Ends quotas; all groups go.
pub(crate) fn disable(engine: &Engine) -> Result<()> {
    let _one_at_a_time = engine.lock_subvolumes()?;
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

fn begin_rescan(engine: &Engine, groups: u64) -> Result<()> {
    let flags = qgroup_status::ON | qgroup_status::RESCAN | qgroup_status::INCONSISTENT;
    put_status(engine, flags, groups)?;
    // It goes on in the background.
    engine.core.requests.wake_for_chunks();
    Ok(())
}

/// Commits a status; so many groups of subvolumes come with it.
fn put_status(engine: &Engine, flags: u64, groups: u64) -> Result<()> {
    engine.core.health.changeable().fs()?;
    let item = QgroupStatus { version: 1, flags, ..QgroupStatus::default() };
    let reservation = engine.reserver.reserve(cost::quota_groups(groups))?;
    let op = engine.core.begin();
    let value = item.to_vec().into();
    op.put(ObjectId::new(TreeId::QUOTA, 0), kind::QGROUP_STATUS, 0, value);
    drop((op, reservation));
    engine.committer.commit_written_back()
}

#[cfg(test)]
mod tests {
    use crate::reserve::tests::volume;
    use vfs::FileSystem;

    /// As docs/SEMANTICS.md says it.
    #[test]
    fn what_hears_that_its_commit_found_no_room_comes_with_a_later_one() {
        let fs = volume(256, 16384);
        let are_on = || fs.quota_status().expect("a status").is_some();
        for comes in [true, false] {
            let space = &fs.engine.core.space;
            space.fail_allocations(space.allocations()..u64::MAX);
            let told = if comes { fs.enable_quotas() } else { fs.disable_quotas() };
            assert_eq!(told.expect_err("no room").errno(), libc::ENOSPC);
            assert_eq!(are_on(), comes);
            space.fail_allocations(0..0);
            fs.sync().expect("commit");
            assert_eq!(are_on(), comes);
        }
        fs.destroy().expect("close");
    }
}
