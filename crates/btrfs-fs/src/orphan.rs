//! Inodes without a name: kept while somebody refers to them, erased then, and erased at
//! the next mount if a crash came between.
//!
//! Invariant: an inode with link count 0 has an ORPHAN_ITEM in its subvolume from the
//! operation that took its last name until the operation that removes its INODE_ITEM.
//! Erasing goes in steps, each of them one operation that leaves a consistent inode.

use crate::engine::{Engine, Op};
use crate::error::IntoFs;
use crate::extents::{Mapped, drop_range};
use crate::ino::InodeId;
use crate::inode::{Inode, State};
use crate::reserve::SMALL_STEP;
use btrfs_disk::ids::ORPHAN_OBJECTID;
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use std::sync::Arc;
use vfs::{FsError, Result};

/// Items that one step of erasing removes at most.
const STEP: usize = 512;
/// Items of the first step: enough for most inodes, and even a full volume has the room
/// that this asks for.
const FIRST_STEP: usize = SMALL_STEP as usize;

fn orphans_of(tree: TreeId) -> InodeId {
    InodeId::new(tree, ORPHAN_OBJECTID)
}

pub fn mark(op: &Op<'_>, id: InodeId, state: &mut State) {
    state.orphan = true;
    op.put_new(orphans_of(id.tree), kind::ORPHAN_ITEM, id.objectid, Box::new([]));
}

/// The inode got a name again (`linkat` of an `O_TMPFILE`).
pub fn unmark(op: &Op<'_>, id: InodeId, state: &mut State) {
    state.orphan = false;
    op.delete(orphans_of(id.tree), kind::ORPHAN_ITEM, id.objectid);
}

/// Gives `count` lookup references back; erases or evicts what nobody needs.
pub fn forget(engine: &Engine, id: InodeId, count: u64) {
    if let Some(inode) = engine.inodes.forget(id, count) {
        release(engine, inode);
    }
}

/// Called when an inode may have become unused.
pub fn release(engine: &Engine, inode: Arc<Inode>) {
    if inode.is_looked_up() {
        return;
    }
    let unnamed = inode.read().is_ok_and(|state| state.item.nlink == 0 && state.orphan);
    if unnamed && engine.writable().is_ok() && engine.changeable().is_err() {
        engine.unerased.lock().push(inode);
        return;
    }
    if unnamed
        && engine.writable().is_ok()
        && let Err(error) = erase(engine, &inode)
    {
        if error.errno() == libc::ENOSPC {
            engine.unerased.lock().push(inode);
            return;
        }
        // The ORPHAN_ITEM stays; the next mount tries again.
        tracing::warn!(inode = inode.id.objectid, %error, "erasing an unnamed inode failed");
    }
    engine.inodes.evict(inode);
}

/// After a commit: erases what found no room to be erased.
pub fn retry(engine: &Engine) {
    if engine.changeable().is_err() {
        return;
    }
    let inodes = std::mem::take(&mut *engine.unerased.lock());
    for inode in inodes {
        release(engine, inode);
    }
}

/// Removes all items of an inode without names. Reserves before it locks: a reservation
/// may wait for a commit, which locks inodes.
pub fn erase(engine: &Engine, inode: &Arc<Inode>) -> Result<()> {
    let mut step = FIRST_STEP;
    loop {
        let (_room, room_for) = engine.reserve_removal_of(step as u64)?;
        step = room_for as usize;
        let Ok(mut state) = inode.write() else { return Ok(()) };
        if state.item.nlink != 0 || !state.orphan {
            return Ok(());
        }
        let op = engine.begin();
        if erase_step(engine, &op, inode.id, &mut state, step)? {
            state.erased = true;
            return Ok(());
        }
        step = (step * 4).min(STEP);
    }
}

/// One operation's worth; true when nothing is left.
fn erase_step(
    engine: &Engine,
    op: &Op<'_>,
    id: InodeId,
    state: &mut State,
    step: usize,
) -> Result<bool> {
    let mut keys = Vec::new();
    let mut extents = Vec::new();
    {
        let mut scan = op.view.scan(id.tree, Key::new(id.objectid, kind::INODE_ITEM + 1, 0));
        while keys.len() < step {
            let Some((key, bytes)) = scan.next().fs()? else { break };
            check_unnamed(id, key.kind)?;
            if key.kind == kind::EXTENT_DATA {
                extents.push(Mapped::parse(&key, &bytes, engine.sector()).fs()?);
            }
            keys.push(key);
        }
    }
    if let Some(dirty) = state.dirty.take() {
        engine.forget_dirty(dirty.bytes());
    }
    op.run(|| {
        op.edit(id, |o| {
            for key in keys.iter().filter(|k| k.kind != kind::EXTENT_DATA) {
                o.delete(key.kind, key.offset);
            }
        });
        drop_range(op, id, state, &extents, 0, u64::MAX)
    })?;
    if keys.len() == step {
        op.put_inode(id, state);
        return Ok(false);
    }
    op.delete(id, kind::INODE_ITEM, 0);
    unmark(op, id, state);
    Ok(true)
}

/// The operation that takes the last name takes its reference too, and directories are
/// empty by then. Where the link count says otherwise it is wrong, and nothing is erased.
fn check_unnamed(id: InodeId, kind: u8) -> Result<()> {
    match kind {
        kind::INODE_REF | kind::INODE_EXTREF | kind::DIR_ITEM | kind::DIR_INDEX => {
            let what = format!("inode {} of tree {} has no links but names", id.objectid, id.tree);
            Err(FsError::Corrupt { what, data: false })
        }
        _ => Ok(()),
    }
}

/// At mount: finishes what a crash left.
pub fn clean_all(engine: &Engine) -> Result<u64> {
    let trees: Vec<TreeId> =
        engine.roots().trees.keys().copied().filter(|t| t.is_subvolume()).collect();
    let mut erased = 0;
    for tree in trees {
        if engine.subvols.is_read_only(tree) {
            continue;
        }
        match clean_tree(engine, tree) {
            Ok(count) => erased += count,
            // They stay: the rest of the volume can be used all the same.
            Err(error @ FsError::Corrupt { .. }) => {
                tracing::warn!(%tree, %error, "orphans cannot be read");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(erased)
}

fn clean_tree(engine: &Engine, tree: TreeId) -> Result<u64> {
    let mut erased = 0;
    for objectid in list(engine, tree)? {
        erased += u64::from(clean_one(engine, InodeId::new(tree, objectid))?);
    }
    Ok(erased)
}

fn list(engine: &Engine, tree: TreeId) -> Result<Vec<u64>> {
    let view = engine.view();
    let mut scan = view.scan(tree, Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, 0));
    let mut found = Vec::new();
    while let Some((key, _)) = scan.next().fs()? {
        if key.kind == kind::ORPHAN_ITEM {
            found.push(key.offset);
        }
    }
    Ok(found)
}

/// Erases the inode if it has no name; an ORPHAN_ITEM of a named inode (an interrupted
/// truncation of older kernels) or of nothing is just removed.
fn clean_one(engine: &Engine, id: InodeId) -> Result<bool> {
    let key = Key::new(id.objectid, kind::INODE_ITEM, 0);
    let item = engine.view().get(id.tree, &key).fs()?;
    let unnamed = match &item {
        Some(bytes) => btrfs_disk::items::InodeItem::read(bytes).fs()?.nlink == 0,
        None => false,
    };
    if !unnamed {
        let _room = engine.reserve_for_removal(1)?;
        engine.begin().delete(orphans_of(id.tree), kind::ORPHAN_ITEM, id.objectid);
        return Ok(false);
    }
    let inode = engine.inode_by_id(id, 0)?;
    inode.write()?.orphan = true;
    let erased = match erase(engine, &inode) {
        Err(error @ FsError::Corrupt { .. }) => {
            // Left as it is: the rest of the volume can be used all the same.
            tracing::warn!(inode = id.objectid, %error, "an inode without links stays");
            false
        }
        other => other.map(|()| true)?,
    };
    engine.inodes.evict(inode);
    Ok(erased)
}
