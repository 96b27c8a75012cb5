//! What a subvolume is told to have been received as, and the end of receiving.

use super::closed::{Closed, close_to_writers};
use super::info::settle;
use super::uuids::{Note, notable};
use super::{commit_unknown, lock_own};
use crate::engine::Engine;
use crate::inode::change;
use crate::reserve::cost;
use crate::subvol::{Caller, ReceivedFrom};
use btrfs_disk::TreeId;
use btrfs_disk::items::{ROOT_SUBVOL_RDONLY, Timespec};
use btrfs_txn::Op;
use btrfs_txn::delta::{ActionCost, ReceivedForm, TreeAction};
use vfs::{Errno, FsError, Result};

/// Durable when it returns, with all that was written before. With `completes` it is read-only from
/// then on, by the same commit: so no crash leaves one that is received and can be written.
pub(crate) fn set_received(
    engine: &Engine,
    caller: &Caller,
    tree: TreeId,
    from: &ReceivedFrom,
    completes: bool,
) -> Result<()> {
    let (subvolume, _one_at_a_time) = lock_own(engine, caller, tree)?;
    if subvolume.is_read_only() {
        return Err(Errno::EROFS.into());
    }
    let before = known_as(engine, tree)?.uuid;
    let form = received_now(engine, from);
    let action = cost::root_item();
    let cost = cost::with(cost::with(cost::subvolume_name(0), action), action);
    let room = engine.reserver.reserve(cost)?;
    let closed = completes.then(|| close_to_writers(engine, &subvolume, tree)).transpose()?;
    change(&engine.core, |op| {
        become_known(op, tree, (&before, form), action)?;
        if completes {
            op.act(TreeAction::Flags { id: tree, set: ROOT_SUBVOL_RDONLY, clear: 0 }, action);
        }
        Ok(())
    })?;
    // Where this commit fails, both go with a later one.
    closed.into_iter().for_each(Closed::stays);
    drop(room);
    engine.committer.commit_written_back()
}

fn received_now(engine: &Engine, from: &ReceivedFrom) -> ReceivedForm {
    ReceivedForm {
        uuid: from.uuid,
        stransid: from.stransid,
        stime: Timespec { sec: from.stime.0, nsec: from.stime.1 },
        rtransid: None,
        rtime: engine.core.now(),
    }
}

/// What it was received as. The last commit says it: what one that failed left in the epoch is committed first.
pub(super) fn known_as(engine: &Engine, tree: TreeId) -> Result<ReceivedForm> {
    commit_unknown(engine, tree)?;
    settle(engine, |action| matches!(action, TreeAction::Received { id, .. } if *id == tree))?;
    let roots = engine.core.roots();
    let item = roots.get(tree).ok_or(FsError::Posix(Errno::ESTALE))?.item;
    Ok(ReceivedForm {
        uuid: item.received_uuid,
        stransid: item.stransid,
        stime: item.stime,
        rtransid: Some(item.rtransid),
        rtime: item.rtime,
    })
}

/// It is listed under what it was received as, and no more under what it was `before`.
pub(super) fn become_known(
    op: &Op<'_>,
    tree: TreeId,
    (before, form): (&[u8; 16], ReceivedForm),
    action: ActionCost,
) -> Result<()> {
    let notes = [Note::received(*before, tree, false), Note::received(form.uuid, tree, true)];
    notable(op, &notes)?.put(op)?;
    op.act(TreeAction::Received { id: tree, form: Box::new(form) }, action);
    Ok(())
}
