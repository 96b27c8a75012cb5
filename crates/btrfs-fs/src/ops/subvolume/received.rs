//! What a subvolume is told to have been received as, and the end of receiving.

use super::permission::must_own;
use super::property::{Closed, close_to_writers};
use super::{can_note, commit_unknown, must_live, note_uuid};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::inode::change;
use crate::reserve::cost;
use crate::subvol::{Caller, ReceivedFrom};
use btrfs_disk::TreeId;
use btrfs_disk::items::{ROOT_SUBVOL_RDONLY, Timespec};
use btrfs_disk::key::kind::UUID_KEY_RECEIVED_SUBVOL;
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
    engine.core.health.changeable().fs()?;
    let subvolume = engine.subvols.get(tree).ok_or(FsError::Posix(Errno::ENOENT))?;
    let root = engine.inodes.by_id(InodeId::new(tree, subvolume.root_dir), 0)?;
    must_own(caller, &*root.read()?)?;
    let _one_at_a_time = engine.subvolume_lock.lock();
    must_live(&subvolume)?;
    if subvolume.is_read_only() {
        return Err(Errno::EROFS.into());
    }
    commit_unknown(engine, tree)?;
    let before = engine.core.roots().get(tree).map(|root| root.item.received_uuid);
    let before = before.ok_or(FsError::Posix(Errno::ESTALE))?;
    let action = cost::root_item();
    let cost = cost::with(cost::with(cost::subvolume_name(0), action), action);
    let room = engine.reserver.reserve(cost)?;
    let closed = completes.then(|| close_to_writers(engine, &subvolume, tree)).transpose()?;
    change(&engine.core, |op| {
        become_known(op, tree, (&before, from), action)?;
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

/// It is listed under what it was received as, and no more under what it was `before`.
fn become_known(
    op: &Op<'_>,
    tree: TreeId,
    (before, from): (&[u8; 16], &ReceivedFrom),
    action: ActionCost,
) -> Result<()> {
    can_note(op, &from.uuid, UUID_KEY_RECEIVED_SUBVOL)?;
    note_uuid(op, before, UUID_KEY_RECEIVED_SUBVOL, tree, false)?;
    note_uuid(op, &from.uuid, UUID_KEY_RECEIVED_SUBVOL, tree, true)?;
    let form = Box::new(ReceivedForm {
        uuid: from.uuid,
        stransid: from.stransid,
        stime: Timespec { sec: from.stime.0, nsec: from.stime.1 },
        rtime: op.core.now(),
    });
    op.act(TreeAction::Received { id: tree, form }, action);
    Ok(())
}
