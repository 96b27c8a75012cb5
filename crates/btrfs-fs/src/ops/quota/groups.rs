//! Groups made, taken away, put into each other and limited.
//!
//! Operations write what a group is: its items, its limit, who is in whom. What it counts is the
//! commit's, which also sees which relations changed and what that makes of the numbers
//! (`btrfs-space/src/settle/quota/regroup.rs`), and takes items away whose group another commit took.
//! It also puts a group back that was taken away while another commit charged it.
//!
//! Invariant: who changes groups holds `Engine::subvolume_lock` from the checks on until the change is in the
//! epoch, so no group comes or goes in between, but for those that commits take away.

use super::status;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::qgroup::{LimitChange, Qgroup, QgroupId, QuotaStatus};
use crate::reserve::cost;
use btrfs_disk::items::{QgroupInfo, QgroupLimit, qgroup_limit};
use btrfs_disk::key::kind;
use btrfs_disk::{Error, FixedSize, Key, TreeId};
use btrfs_txn::{ObjectId, Op, View};
use vfs::{Errno, FsError, Result};

fn in_quota_tree(objectid: u64) -> ObjectId {
    ObjectId::new(TreeId::QUOTA, objectid)
}

fn item<T: FixedSize>(view: &View<'_>, kind: u8, id: QgroupId) -> Result<Option<T>> {
    let key = Key::new(0, kind, id.0);
    let Some(data) = view.get(TreeId::QUOTA, &key).fs()? else { return Ok(None) };
    T::read(&data).map(Some).map_err(|corrupt| Error::from(corrupt.key(key))).fs()
}

fn exists(view: &View<'_>, id: QgroupId) -> Result<bool> {
    Ok(view.get(TreeId::QUOTA, &Key::new(0, kind::QGROUP_INFO, id.0)).fs()?.is_some())
}

/// ENOTCONN, as the kernel says it.
fn enabled(engine: &Engine) -> Result<()> {
    status(engine)?.map(drop).ok_or(Errno::ENOTCONN.into())
}

/// Groups of level 0 come with the commit that has their subvolumes first. Who asks for groups need not
/// know that: the kernel has them with the subvolume.
fn with_new_subvolumes(engine: &Engine) -> Result<()> {
    enabled(engine)?;
    let may = engine.core.health.changeable().is_ok() && !engine.committer.is_held();
    if may && engine.subvols.any_new() { engine.committer.commit_written_back() } else { Ok(()) }
}

/// Parents and members.
fn related(view: &View<'_>, id: QgroupId) -> Result<Vec<QgroupId>> {
    let mut found = Vec::new();
    let mut relations = view.scan(TreeId::QUOTA, Key::new(id.0, kind::QGROUP_RELATION, 0));
    while let Some((key, _)) = relations.next().fs()? {
        if key.kind != kind::QGROUP_RELATION {
            break;
        }
        found.push(QgroupId(key.offset));
    }
    Ok(found)
}

/// The first `most` groups from `from` on. ENOTCONN: there are no quotas.
pub(crate) fn from(engine: &Engine, from: QgroupId, most: usize) -> Result<Vec<Qgroup>> {
    with_new_subvolumes(engine)?;
    let view = engine.core.view();
    let mut found = Vec::new();
    let mut infos = view.scan(TreeId::QUOTA, Key::new(0, kind::QGROUP_INFO, from.0));
    while let Some((key, data)) = infos.next().fs()? {
        if key.kind != kind::QGROUP_INFO || found.len() == most {
            break;
        }
        let id = QgroupId(key.offset);
        let info = QgroupInfo::read(&data).map_err(|c| Error::from(c.key(key))).fs()?;
        let limit: QgroupLimit = item(&view, kind::QGROUP_LIMIT, id)?.unwrap_or_default();
        let limited = |flag, most| (limit.flags & flag != 0).then_some(most);
        let mut parents = related(&view, id)?;
        parents.retain(|other| other.level() > id.level());
        found.push(Qgroup {
            id,
            referenced: info.referenced,
            exclusive: info.exclusive,
            max_referenced: limited(qgroup_limit::MAX_REFERENCED, limit.max_referenced),
            max_exclusive: limited(qgroup_limit::MAX_EXCLUSIVE, limit.max_exclusive),
            parents,
        });
    }
    Ok(found)
}

/// EINVAL for those of subvolumes, which come and go by themselves.
pub(crate) fn create(engine: &Engine, id: QgroupId) -> Result<()> {
    engine.core.health.changeable().fs()?;
    let _one_at_a_time = engine.lock_subvolumes()?;
    enabled(engine)?;
    if id.level() == 0 {
        return Err(Errno::EINVAL.into());
    }
    if exists(&engine.core.view(), id)? {
        return Err(Errno::EEXIST.into());
    }
    let _room = engine.reserver.reserve(cost::quota_groups(1))?;
    let op = engine.core.begin();
    let (info, limit) = (QgroupInfo::default().to_vec(), QgroupLimit::default().to_vec());
    op.put(in_quota_tree(0), kind::QGROUP_INFO, id.0, info.into());
    op.put(in_quota_tree(0), kind::QGROUP_LIMIT, id.0, limit.into());
    Ok(())
}

/// All that is there; ENOENT without the group, ENOTCONN where no quotas are kept.
fn view_with(engine: &Engine, id: QgroupId) -> Result<View<'_>> {
    with_new_subvolumes(engine)?;
    let view = engine.core.view();
    if exists(&view, id)? { Ok(view) } else { Err(Errno::ENOENT.into()) }
}

/// Also a subvolume that is deleted and not wholly gone: what it has still counts, and who takes the group from that
/// leaves numbers that nobody can make right but a rescan.
fn is_there(engine: &Engine, tree: TreeId) -> bool {
    engine.subvols.known(tree).is_some() || engine.core.roots().get(tree).is_some()
}

/// EBUSY: it has members, its subvolume is there, if only in part, or simple quotas have charges for it, which
/// somebody has to be credited with in the end.
pub(crate) fn destroy(engine: &Engine, id: QgroupId) -> Result<()> {
    engine.core.health.changeable().fs()?;
    let _one_at_a_time = engine.lock_subvolumes()?;
    let view = view_with(engine, id)?;
    if id.level() == 0 && is_there(engine, TreeId(id.0)) {
        return Err(Errno::EBUSY.into());
    }
    let info: QgroupInfo = item(&view, kind::QGROUP_INFO, id)?.unwrap_or_default();
    let simple = status(engine)?.is_some_and(|status| status.simple);
    if simple && id.level() == 0 && info.referenced != 0 {
        return Err(Errno::EBUSY.into());
    }
    let related = related(&view, id)?;
    if related.iter().any(|other| other.level() < id.level()) {
        return Err(Errno::EBUSY.into());
    }
    drop(view);
    let _room = engine.reserver.reserve_removal(cost::quota_relations(1 + related.len() as u64))?;
    let op = engine.core.begin();
    op.delete(in_quota_tree(0), kind::QGROUP_INFO, id.0);
    op.delete(in_quota_tree(0), kind::QGROUP_LIMIT, id.0);
    for parent in related {
        delete_relation(&op, id, parent);
    }
    Ok(())
}

fn delete_relation(op: &Op<'_>, child: QgroupId, parent: QgroupId) {
    op.delete(in_quota_tree(child.0), kind::QGROUP_RELATION, parent.0);
    op.delete(in_quota_tree(parent.0), kind::QGROUP_RELATION, child.0);
}

fn put_relation(op: &Op<'_>, child: QgroupId, parent: QgroupId) {
    op.put(in_quota_tree(child.0), kind::QGROUP_RELATION, parent.0, Box::default());
    op.put(in_quota_tree(parent.0), kind::QGROUP_RELATION, child.0, Box::default());
}

/// Makes a group a member of another; false: the numbers are not right any more, and a rescan mends
/// that. EINVAL: one of them is not there, or the other's level is not higher.
pub(crate) fn assign(engine: &Engine, child: QgroupId, parent: QgroupId) -> Result<bool> {
    relate(engine, child, parent, true)
}

/// The opposite, also where one of the groups is gone, or only one of them names the other. ENOENT: it is no
/// member.
pub(crate) fn remove(engine: &Engine, child: QgroupId, parent: QgroupId) -> Result<bool> {
    relate(engine, child, parent, false)
}

fn relate(engine: &Engine, child: QgroupId, parent: QgroupId, comes: bool) -> Result<bool> {
    engine.core.health.changeable().fs()?;
    let _one_at_a_time = engine.lock_subvolumes()?;
    with_new_subvolumes(engine)?;
    let view = engine.core.view();
    let may_come = || -> Result<bool> {
        Ok(child.level() < parent.level() && exists(&view, child)? && exists(&view, parent)?)
    };
    if comes && !may_come()? {
        return Err(Errno::EINVAL.into());
    }
    let down = related(&view, parent)?.contains(&child);
    let up = related(&view, child)?.contains(&parent);
    let there = if comes { up && down } else { up || down };
    if there == comes {
        return Err(FsError::Posix(if comes { Errno::EEXIST } else { Errno::ENOENT }));
    }
    drop(view);
    let cost = cost::quota_relations(1);
    let room = match comes {
        true => engine.reserver.reserve(cost)?,
        false => engine.reserver.reserve_removal(cost)?,
    };
    let op = engine.core.begin();
    match comes {
        true => put_relation(&op, child, parent),
        false => delete_relation(&op, child, parent),
    }
    drop((op, room));
    engine.committer.commit_written_back()?;
    Ok(status(engine)?.is_none_or(|status| !status.inconsistent || status.rescan.is_some()))
}

/// ENOENT: there is no such group. It holds when this returns.
pub(crate) fn limit(engine: &Engine, id: QgroupId, change: &LimitChange) -> Result<()> {
    engine.core.health.changeable().fs()?;
    let _one_at_a_time = engine.lock_subvolumes()?;
    let view = view_with(engine, id)?;
    let mut limit: QgroupLimit = item(&view, kind::QGROUP_LIMIT, id)?.unwrap_or_default();
    let mut set =
        |flag: u64, field: fn(&mut QgroupLimit) -> &mut u64, change: Option<Option<u64>>| {
            let Some(most) = change else { return };
            *field(&mut limit) = most.unwrap_or(0);
            limit.flags = limit.flags & !flag | if most.is_some() { flag } else { 0 };
        };
    set(qgroup_limit::MAX_REFERENCED, |limit| &mut limit.max_referenced, change.referenced);
    set(qgroup_limit::MAX_EXCLUSIVE, |limit| &mut limit.max_exclusive, change.exclusive);
    drop(view);
    let room = engine.reserver.reserve(cost::quota_groups(1))?;
    let op = engine.core.begin();
    op.put(in_quota_tree(0), kind::QGROUP_LIMIT, id.0, limit.to_vec().into());
    drop((op, room));
    // Limits are held as commits have them.
    engine.committer.commit_written_back()
}

/// Groups that a new subvolume is put into, which is made in `dir`: those that are named. Without any, and with simple
/// quotas, those that the subvolume around it is in. ENOENT: there is no such group. EINVAL: a group of a
/// subvolume. Where there are no quotas nobody looks at what is named, as the kernel does not.
pub(crate) fn inherited(
    engine: &Engine,
    dir: TreeId,
    groups: &[QgroupId],
) -> Result<Vec<QgroupId>> {
    let Some(status) = status(engine)? else { return Ok(Vec::new()) };
    let view = engine.core.view();
    if groups.is_empty() && status.simple {
        return related(&view, QgroupId(dir.0));
    }
    for group in groups {
        if group.level() == 0 {
            return Err(Errno::EINVAL.into());
        }
        if !exists(&view, *group)? {
            return Err(Errno::ENOENT.into());
        }
    }
    Ok(groups.to_vec())
}

/// As [`inherited`] found them: the new subvolume is in them.
pub(crate) fn put_inherited(op: &Op<'_>, tree: TreeId, groups: &[QgroupId]) -> Result<()> {
    // Where quotas ended meanwhile, there is nothing to be in.
    if op.view.get(TreeId::QUOTA, &QuotaStatus::KEY).fs()?.is_some() {
        groups.iter().for_each(|group| put_relation(op, QgroupId(tree.0), *group));
    }
    Ok(())
}
