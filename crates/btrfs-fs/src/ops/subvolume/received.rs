//! What a subvolume is told to have been received as.

use super::permission::must_own;
use super::{commit_unknown, note_uuid};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::inode::change;
use crate::reserve::cost;
use crate::subvol::{Caller, ReceivedFrom};
use btrfs_disk::TreeId;
use btrfs_disk::items::Timespec;
use btrfs_disk::key::kind::UUID_KEY_RECEIVED_SUBVOL;
use btrfs_txn::delta::{ReceivedForm, TreeAction};
use vfs::{Errno, FsError, Result};

/// Durable when it returns, with all that was written before.
pub(crate) fn set_received(
    engine: &Engine,
    caller: &Caller,
    tree: TreeId,
    from: &ReceivedFrom,
) -> Result<()> {
    engine.core.health.changeable().fs()?;
    let subvolume = engine.subvols.get(tree).ok_or(FsError::Posix(Errno::ENOENT))?;
    let root = engine.inodes.by_id(InodeId::new(tree, subvolume.root_dir), 0)?;
    must_own(caller, &*root.read()?)?;
    let _one_at_a_time = engine.subvolume_lock.lock();
    if subvolume.is_read_only() {
        return Err(Errno::EROFS.into());
    }
    commit_unknown(engine, tree)?;
    let before = engine.core.roots().get(tree).map(|root| root.item.received_uuid);
    let before = before.ok_or(FsError::Posix(Errno::ESTALE))?;
    let action = cost::root_item();
    let room = engine.reserver.reserve(cost::with(cost::subvolume_name(0), action))?;
    change(&engine.core, |op| {
        note_uuid(op, &before, UUID_KEY_RECEIVED_SUBVOL, tree, false)?;
        note_uuid(op, &from.uuid, UUID_KEY_RECEIVED_SUBVOL, tree, true)?;
        let form = Box::new(ReceivedForm {
            uuid: from.uuid,
            stransid: from.stransid,
            stime: Timespec { sec: from.stime.0, nsec: from.stime.1 },
            rtime: op.core.now(),
        });
        op.act(TreeAction::Received { id: tree, form }, action);
        Ok(())
    })?;
    drop(room);
    engine.committer.commit_written_back()
}
