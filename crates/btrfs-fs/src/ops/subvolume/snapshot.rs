//! A snapshot: of the moment at which its epoch is sealed.

use super::create::{check_place, forget, name_within_limits, put_name};
use super::permission::must_own;
use super::uuids::{Note, notable};
use super::{commit_unknown, must_live};
use crate::engine::Engine;
use crate::ino::{InodeId, number};
use crate::inode::{Inode, change};
use crate::names;
use crate::ops::create::writable_dir;
use crate::ops::lookup::entry_by_id;
use crate::ops::quota::groups;
use crate::reserve::cost;
use crate::subvol::{Caller, NewSubvolume, Snapshotting, Subvolume};
use btrfs_disk::ids::FIRST_FREE_OBJECTID;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::delta::{OwnEntry, SnapshotForm, TreeAction};
use std::sync::Arc;
use vfs::{Entry, Errno, FsError, Ino, Result};

pub(crate) fn snapshot(
    engine: &Engine,
    caller: &Caller,
    source: Ino,
    at: &NewSubvolume<'_>,
    read_only: bool,
) -> Result<(TreeId, Entry)> {
    names::check_name(at.name)?;
    let dir = writable_dir(engine, at.parent)?;
    let (from, subvolume) = source_of(engine, caller, source)?;
    commit_unknown(engine, from)?;
    let _promise = name_within_limits(engine, dir.id)?;
    let to = {
        let _one_at_a_time = engine.lock_subvolumes()?;
        must_live(&subvolume)?;
        land_in_own(engine, from)?;
        let guard = subvolume.snapshotting();
        let above = groups::inherited(engine, dir.id.tree, at.groups)?;
        let at = &NewSubvolume { groups: &above, ..*at };
        flush(engine, from)?;
        let form = (from, read_only);
        let to = enter(engine, caller, form, &dir, at)?;
        commit(engine, to, guard).inspect_err(|_| tell_of_name(engine, at))?;
        engine.core.injection.entered();
        // What had no name in the source has none here, and nobody who has it open.
        if let Err(error) = engine.orphans.clean_tree(to) {
            tracing::warn!(%to, %error, "inodes without a name are left in a snapshot");
        }
        to
    };
    let entry = entry_by_id(engine, InodeId::new(to, FIRST_FREE_OBJECTID));
    Ok((to, entry.inspect_err(|_| tell_of_name(engine, at))?))
}

/// EPERM unless the subvolume with this root directory is the caller's. EINVAL: it is none's.
pub(crate) fn may_be_source(engine: &Engine, caller: &Caller, source: Ino) -> Result<()> {
    source_of(engine, caller, source).map(drop)
}

fn source_of(engine: &Engine, caller: &Caller, source: Ino) -> Result<(TreeId, Arc<Subvolume>)> {
    let root = engine.inodes.get(source)?;
    must_own(caller, &*root.read()?)?;
    let subvolume = engine.subvols.get(root.id.tree).ok_or(FsError::Posix(Errno::ESTALE))?;
    match subvolume.root_dir == root.id.objectid {
        true => Ok((root.id.tree, subvolume)),
        false => Err(Errno::EINVAL.into()),
    }
}

/// The content of the source lands. Each inode is locked for that: who began to write in
/// place before the snapshot was announced is done behind this.
fn flush(engine: &Engine, tree: TreeId) -> Result<()> {
    for inode in engine.inodes.table().of_tree(tree) {
        engine.writeback.flush_unasked(&inode)?;
        engine.inodes.table().evict(inode);
    }
    Ok(())
}

/// Content for which nothing is held, since its file has space for it, lands there while it may: behind the announcement
/// it would take what is held for others.
fn land_in_own(engine: &Engine, tree: TreeId) -> Result<()> {
    match engine.reservations.is_any_unpaid() {
        true => flush(engine, tree),
        false => Ok(()),
    }
}

/// The snapshot and its name enter the epoch.
fn enter(
    engine: &Engine,
    caller: &Caller,
    (from, read_only): (TreeId, bool),
    dir: &Inode,
    at: &NewSubvolume<'_>,
) -> Result<TreeId> {
    let (tree, uuid) = engine.subvols.new_tree(engine.core.now())?;
    number(InodeId::new(tree, FIRST_FREE_OBJECTID))?;
    if !engine.subvols.share_nodes() && engine.reservations.sharing_would_outgrow() {
        match engine.committer.commit_written_back() {
            // While commits are held, what is refused leaves room.
            Err(FsError::Posix(Errno::EBUSY)) => {}
            committed => committed?,
        }
    }
    // In this order: a commit that ends in between leaves both.
    engine.subvols.expect(tree);
    engine.subvols.will_share();
    engine.reservations.limits.joins(tree, at.groups.iter().map(|group| group.0), Some(from));
    let new = New { from, tree, uuid, read_only };
    put(engine, caller, &new, dir, at).inspect_err(|_| forget(engine, tree))?;
    Ok(tree)
}

struct New {
    from: TreeId,
    tree: TreeId,
    uuid: [u8; 16],
    read_only: bool,
}

fn put(
    engine: &Engine,
    caller: &Caller,
    new: &New,
    dir: &Inode,
    at: &NewSubvolume<'_>,
) -> Result<()> {
    let (name, copies) = (at.name, cost::copy_tree(&engine.core.geometry));
    let items = cost::subvolume_name(name.len()) + cost::quota_relations(at.groups.len() as u64);
    let _room = engine.reserver.reserve(cost::with(items, copies))?;
    let mut dir_state = engine.write(dir)?;
    check_place(engine, caller, dir.id, &mut dir_state, name)?;
    let source = engine.core.roots().get(new.from).map(|root| root.item);
    let source = source.filter(|item| !item.is_deleted());
    let source: RootItem = source.ok_or(FsError::Posix(Errno::ESTALE))?;
    let before = (dir_state.item.mtime, dir_state.item.ctime);
    change(&engine.core, |op| {
        let own = Note::own(new.uuid, new.tree, true);
        let received = Note::received(source.received_uuid, new.tree, true);
        let notable = notable(op, &[own, received][..1 + usize::from(new.read_only)])?;
        let index = put_name(op, dir.id, &mut dir_state, name, location(new.tree))?;
        notable.put(op)?;
        groups::put_inherited(op, new.tree, at.groups)?;
        let (dir, behind) = (dir.id, dir_state.item.mtime);
        let own = || OwnEntry { dir: dir.objectid, name: name.to_vec(), index, before, behind };
        let entry = (dir.tree == new.from).then(own);
        let (uuid, read_only) = (new.uuid, new.read_only);
        let form = Box::new(SnapshotForm { uuid, read_only, otime: op.core.now(), entry });
        op.act(TreeAction::Snapshot { source: new.from, to: new.tree, form }, copies);
        Ok(())
    })
}

/// Who remembers that there is no such name hears of it from no call that failed.
fn tell_of_name(engine: &Engine, at: &NewSubvolume<'_>) {
    if let Some(observer) = engine.writeback.observer() {
        observer.name_changed(at.parent, at.name);
    }
}

/// What a snapshot's entry says, as the kernel writes it.
fn location(tree: TreeId) -> Key {
    Key::new(tree.0, kind::ROOT_ITEM, u64::MAX)
}

/// Where a commit finds no room the snapshot comes with a later one, and until then nothing is
/// written in place. Its name is in the directory by then.
fn commit(engine: &Engine, tree: TreeId, guard: Snapshotting) -> Result<()> {
    let committed = engine.committer.commit_written_back();
    if engine.core.roots().get(tree).is_none() {
        engine.subvols.comes_late(tree, guard);
        committed?;
        return Err(Errno::ENOSPC.into());
    }
    committed
}
