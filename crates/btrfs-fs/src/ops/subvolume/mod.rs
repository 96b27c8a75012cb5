//! Making, snapshotting, deleting and listing subvolumes.
//!
//! A subvolume is a tree, a ROOT_ITEM for it, a name: entry in a directory, ROOT_REF and
//! ROOT_BACKREF in the root tree; and an entry in the UUID tree. Items of the root tree and of the
//! UUID tree are changed in the delta like all others, the trees themselves by actions beside them
//! (`btrfs_txn::delta::TreeAction`), so all of it is in one epoch or not.
//!
//! Invariants: who changes a subvolume, or a name of one, holds `Engine::subvolume_lock` from its
//! checks until the change is in the epoch; so no name, no nested subvolume and no default
//! changes in between. What was looked up before is looked at again (`must_live`). It comes before inodes, and before a commit.

mod closed;
mod create;
mod delete;
mod info;
mod permission;
mod property;
mod received;
mod rename;
mod snapshot;
mod uuids;

pub(crate) use create::create;
pub(crate) use delete::{Deleted, delete, remove_stand_in, rmdir};
pub(crate) use info::{all, behind, default, of, one, path};
pub(crate) use permission::{may_list, may_write};
pub(crate) use property::{mend_flags, set_default, set_read_only};
pub(crate) use received::set_received;
pub(crate) use rename::rename;
pub(crate) use snapshot::{may_be_source, snapshot};

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::subvol::{Caller, Subvolume};
use btrfs_disk::TreeId;
use btrfs_disk::items::RootRef;
use btrfs_disk::key::kind;
use btrfs_txn::{ObjectId, Op};
use locks::MutexGuard;
use permission::must_own;
use std::sync::Arc;
use vfs::{Errno, FsError, Result};

/// ESTALE: it was deleted while its caller waited for his turn.
fn must_live(subvolume: &Subvolume) -> Result<()> {
    if subvolume.is_dead() { Err(Errno::ESTALE.into()) } else { Ok(()) }
}

/// A subvolume that the caller owns and that nobody deletes or changes while the guard is there.
fn lock_own<'e>(
    engine: &'e Engine,
    caller: &Caller,
    tree: TreeId,
) -> Result<(Arc<Subvolume>, MutexGuard<'e, ()>)> {
    engine.core.health.changeable().fs()?;
    let subvolume = engine.subvols.get(tree).ok_or(FsError::Posix(Errno::ENOENT))?;
    let root = engine.inodes.by_id(InodeId::new(tree, subvolume.root_dir), 0)?;
    must_own(caller, &*root.read()?)?;
    let one_at_a_time = engine.lock_subvolumes()?;
    must_live(&subvolume)?;
    Ok((subvolume, one_at_a_time))
}

fn in_root_tree(objectid: u64) -> ObjectId {
    ObjectId::new(TreeId::ROOT, objectid)
}

/// Where a subvolume hangs.
struct ParentLink<'a> {
    dir: InodeId,
    name: &'a [u8],
    index: u64,
}

/// Both references between the trees.
fn put_refs(op: &Op<'_>, child: TreeId, at: &ParentLink<'_>) {
    let item = RootRef { dirid: at.dir.objectid, sequence: at.index, name: at.name }.to_vec();
    let parent = at.dir.tree.0;
    op.put(in_root_tree(parent), kind::ROOT_REF, child.0, item.clone().into());
    op.put(in_root_tree(child.0), kind::ROOT_BACKREF, parent, item.into());
}

fn delete_refs(op: &Op<'_>, child: TreeId, parent: TreeId) {
    op.delete(in_root_tree(parent.0), kind::ROOT_REF, child.0);
    op.delete(in_root_tree(child.0), kind::ROOT_BACKREF, parent.0);
}

/// What no commit has yet is committed first: what follows reads root items.
fn commit_unknown(engine: &Engine, tree: TreeId) -> Result<()> {
    if engine.core.roots().get(tree).is_none() {
        engine.committer.commit_written_back()?;
    }
    Ok(())
}
