//! A subvolume's name goes, and with it all that is in it.

use super::permission::{may_change_names, may_lose_name, must_own_one};
use super::uuids::{Note, notable};
use super::{commit_unknown, delete_refs, in_root_tree};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::{InodeId, id_of, number};
use crate::inode::{ClosedTree, Inode, change};
use crate::names::{self, Target};
use crate::ops::create::{touch_dir, writable_dir};
use crate::ops::remove::may_unname;
use crate::reserve::cost;
use crate::subvol::{self, Caller, Delete, Subvolume};
use btrfs_disk::ids::ORPHAN_OBJECTID;
use btrfs_disk::items::{RootRef, dir_type};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::delta::TreeAction;
use btrfs_txn::{Defect, Op};
use inode_index::Ref;
use std::sync::Arc;
use vfs::{Errno, FsError, Ino, Result};

/// What is gone, and the name that it had.
pub(crate) struct Deleted {
    pub(crate) tree: TreeId,
    pub(crate) dir: Ino,
    pub(crate) name: Vec<u8>,
}

pub(crate) fn delete(engine: &Engine, caller: &Caller, which: Delete<'_>) -> Result<Deleted> {
    let rules = Rules { caller: Some(caller), empty: false };
    let _one_at_a_time = engine.lock_subvolumes()?;
    // Now that no name changes any more.
    let (dir, name) = match which {
        Delete::Name(dir, name) => (dir, name.to_vec()),
        Delete::Id(_) if !caller.privileged => return Err(Errno::EPERM.into()),
        Delete::Id(id) => place_of(engine, TreeId(id.0))?,
    };
    let tree = take_away(engine, &rules, dir, &name)?;
    Ok(Deleted { tree, dir, name })
}

/// As `rmdir`, whose permissions the kernel has looked at: anybody's who may remove the name.
pub(crate) fn rmdir(engine: &Engine, dir: Ino, name: &[u8]) -> Result<()> {
    let _one_at_a_time = engine.lock_subvolumes()?;
    take_away(engine, &Rules { caller: None, empty: true }, dir, name).map(drop)
}

struct Rules<'a> {
    /// Whose permissions count.
    caller: Option<&'a Caller>,
    /// Nothing may be in it.
    empty: bool,
}

fn place_of(engine: &Engine, tree: TreeId) -> Result<(Ino, Vec<u8>)> {
    if engine.subvols.get(tree).is_none() {
        return Err(Errno::ENOENT.into());
    }
    let view = engine.core.view();
    let parent = subvol::parent_of(&view, tree)?.ok_or(FsError::Posix(Errno::EPERM))?;
    let found = subvol::root_ref(&view, parent.tree, tree)?;
    let (_, name) = found.ok_or(FsError::Posix(Errno::ENOENT))?;
    Ok((number(parent)?, name))
}

/// Its caller holds `Engine::subvolume_lock`.
fn take_away(engine: &Engine, rules: &Rules<'_>, dir: Ino, name: &[u8]) -> Result<TreeId> {
    let dir = writable_dir(engine, dir)?;
    let target = target_of(engine, &dir, name)?;
    if engine.subvols.is_coming(target) {
        commit_unknown(engine, target)?;
    }
    let gone = cost::with(cost::subvolume_name(name.len()), cost::root_item());
    let room = engine.reserver.reserve_removal(gone)?;
    let (target, subvolume) = check(engine, rules, &dir, name)?;
    // From here on nobody comes in, and who is inside is waited for.
    subvolume.set_dead(true);
    let closed = engine.inodes.close_tree(target);
    // Who was inside may have made something since it was looked at.
    let removed = check_empty(engine, rules, target, &subvolume)
        .and_then(|()| remove(engine, &dir, name, (target, &subvolume)));
    if let Err(error) = removed {
        let opened = open_again(engine, &subvolume, closed);
        drop(room);
        // Who let go of one without a name meanwhile could not have it erased.
        opened.into_iter().for_each(|inode| engine.orphans.release(inode));
        return Err(error);
    }
    engine.reservations.forget_dirty(closed.drop_content());
    drop(room);
    Ok(target)
}

/// The name is there still, and so is what was written: it is to be written back after all.
fn open_again(engine: &Engine, subvolume: &Subvolume, closed: ClosedTree) -> Vec<Ref<Inode>> {
    let inodes = engine.inodes.open_tree(closed);
    inodes.iter().for_each(|inode| engine.writeback.queue().add(inode));
    subvolume.set_dead(false);
    inodes
}

/// The subvolume that a name stands for. EINVAL, and ENOTDIR where it is no directory's either: it is none's.
fn target_of(engine: &Engine, dir: &Inode, name: &[u8]) -> Result<TreeId> {
    let _unchanged = dir.read()?;
    let view = engine.core.view();
    let found = names::lookup(&view, dir.id, name)?.ok_or(FsError::Posix(Errno::ENOENT))?;
    if found.kind != dir_type::DIR {
        return Err(Errno::ENOTDIR.into());
    }
    let tree = TreeId(found.location.objectid);
    if !found.is_subvolume() || !subvol::hangs_here(&view, dir.id, name, tree)? {
        return Err(Errno::EINVAL.into());
    }
    Ok(tree)
}

fn check(
    engine: &Engine,
    rules: &Rules<'_>,
    dir: &Ref<Inode>,
    name: &[u8],
) -> Result<(TreeId, Arc<Subvolume>)> {
    let tree = target_of(engine, dir, name)?;
    let subvolume = engine.subvols.get(tree).ok_or(FsError::Posix(Errno::ENOENT))?;
    let root = engine.inodes.by_id(InodeId::new(tree, subvolume.root_dir), 0)?;
    if let Some(caller) = rules.caller {
        check_caller(engine, caller, dir, &root)?;
    }
    may_lose_name(engine, dir, tree)?;
    check_empty(engine, rules, tree, &subvolume)?;
    let view = engine.core.view();
    if id_of(engine.begin.ino).tree == tree {
        return Err(Errno::EBUSY.into());
    }
    if subvol::default_subvolume(&view)? == tree || subvolume.is_sent() {
        return Err(Errno::EPERM.into());
    }
    let nested = view.next(TreeId::ROOT, &Key::new(tree.0, kind::ROOT_REF, 0)).fs()?;
    if nested.is_some_and(|(key, _)| key.kind == kind::ROOT_REF) {
        return Err(Errno::ENOTEMPTY.into());
    }
    Ok((tree, subvolume))
}

fn check_empty(
    engine: &Engine,
    rules: &Rules<'_>,
    tree: TreeId,
    subvolume: &Subvolume,
) -> Result<()> {
    let root = InodeId::new(tree, subvolume.root_dir);
    if rules.empty && !names::is_empty(&engine.core.view(), root)? {
        return Err(Errno::ENOTEMPTY.into());
    }
    Ok(())
}

/// Of who is no administrator the kernel wants more than of who takes a name away: he must be one who could
/// take away all that is in the subvolume, which nobody can where it is read-only.
fn may_empty(engine: &Engine, caller: &Caller, root: &Ref<Inode>) -> Result<()> {
    if !engine.options.user_subvol_rm_allowed {
        return Err(Errno::EPERM.into());
    }
    if engine.subvols.is_read_only(root.id.tree) {
        return Err(Errno::EROFS.into());
    }
    may_change_names(engine, caller, root.id, &*root.read()?)
}

fn check_caller(
    engine: &Engine,
    caller: &Caller,
    dir: &Ref<Inode>,
    root: &Ref<Inode>,
) -> Result<()> {
    if !caller.privileged {
        may_empty(engine, caller, root)?;
    }
    // In their order: a directory may be of a younger subvolume than what lies in it.
    let [first, second] = if dir.id < root.id { [dir, root] } else { [root, dir] };
    let states = [first.read()?, second.read()?];
    let [dir_state, root_state] =
        if dir.id < root.id { [0, 1] } else { [1, 0] }.map(|at| &*states[at]);
    may_change_names(engine, caller, dir.id, dir_state)?;
    must_own_one(caller, dir_state, root_state)
}

/// That the subvolume is no more listed under its UUID, nor under that of what it was received as: as the last commit
/// has it, or as it is since, if no commit brought that to its end.
fn notes(op: &Op<'_>, tree: TreeId, subvolume: &Subvolume) -> [Note; 2] {
    let layers = &op.view.layers;
    let (uuid, mut received) = match layers.roots.get(tree) {
        Some(root) => (root.item.uuid, root.item.received_uuid),
        None => (subvolume.new_uuid, [0; 16]),
    };
    let mut hear = |action: &TreeAction| {
        if let TreeAction::Received { id, form } = action
            && *id == tree
        {
            received = form.uuid;
        }
        false
    };
    for delta in layers.sealed.iter().chain([&layers.current]) {
        delta.trees.any(&mut hear);
    }
    [Note::own(uuid, tree, false), Note::received(received, tree, false)]
}

fn remove(
    engine: &Engine,
    dir: &Inode,
    name: &[u8],
    (tree, subvolume): (TreeId, &Subvolume),
) -> Result<()> {
    let mut dir_state = engine.write(dir)?;
    if engine.core.injection.has(Defect::NamesStay) {
        return Err(Errno::EIO.into());
    }
    change(&engine.core, |op| {
        let key = Key::new(dir.id.tree.0, kind::ROOT_REF, tree.0);
        let bytes = op.view.get(TreeId::ROOT, &key).fs()?;
        let bytes = bytes.ok_or(FsError::Posix(Errno::ENOENT))?;
        let index = RootRef::parse(&bytes).fs()?.sequence;
        let notable = notable(op, &notes(op, tree, subvolume))?;
        names::remove_entry(op, dir.id, name, index)?;
        delete_refs(op, tree, dir.id.tree);
        let orphans = in_root_tree(ORPHAN_OBJECTID);
        op.put_new(orphans, kind::ORPHAN_ITEM, tree.0, Box::new([]));
        notable.put(op)?;
        touch_dir(op, dir.id, &mut dir_state, -(name.len() as i64));
        op.act(TreeAction::Kill { id: tree }, cost::root_item());
        Ok(())
    })
}

/// In a snapshot, the name of a subvolume that was nested in the source and that is not here.
pub(crate) fn remove_stand_in(
    engine: &Engine,
    dir: &Ref<Inode>,
    name: &[u8],
    target: Target,
) -> Result<()> {
    let _room = engine.reserver.reserve_removal(cost::unlink())?;
    let mut dir_state = engine.write(dir)?;
    may_unname(&dir_state, &dir_state)?;
    if names::lookup(&engine.core.view(), dir.id, name)? != Some(target) {
        return Err(Errno::ENOENT.into());
    }
    // What was not here has come meanwhile.
    if subvol::hangs_here(&engine.core.view(), dir.id, name, TreeId(target.location.objectid))? {
        return Err(Errno::ENOTEMPTY.into());
    }
    let index = names::index_of(&engine.core.view(), dir.id, name)?;
    change(&engine.core, |op| {
        names::remove_entry(op, dir.id, name, index)?;
        touch_dir(op, dir.id, &mut dir_state, -(name.len() as i64));
        Ok(())
    })
}
