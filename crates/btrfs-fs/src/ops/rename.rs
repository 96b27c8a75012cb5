//! `renameat2` in all its modes.
//!
//! A directory that moves to another parent must not end up below itself; `rename_lock`
//! keeps the shape of the tree still while that is checked and done.

use super::create::{
    check_parent, look_index_up, look_source_up, make_whiteout, touch_dir, writable_dir,
};
use super::lookup::{is_gone, looked_up, parent_id};
use super::remove::{check_last, child_of, drop_link, may_unname};
use super::subvolume;
use crate::engine::Engine;
use crate::ino::InodeId;
use crate::inode::Locked;
use crate::inode::{Inode, Inodes, change, put_inode};
use crate::names::{self, MAX_DEPTH, Target};
use crate::reserve::cost;
use btrfs_txn::Op;
use inode_index::Ref;
use vfs::{Context, Errno, FsError, Ino, RenameMode, Result};

/// What the old name stands for, and the new one.
type Found = (Target, Option<Target>);

/// Everything a rename touches, resolved.
struct Rename<'a> {
    from: &'a Ref<Inode>,
    name: &'a [u8],
    to: &'a Ref<Inode>,
    new_name: &'a [u8],
    source: Target,
    child: Ref<Inode>,
    /// What the new name stands for now.
    victim: Option<(Target, Ref<Inode>)>,
    mode: RenameMode,
}

pub(crate) fn rename(
    engine: &Engine,
    cx: &Context,
    parent: Ino,
    name: &[u8],
    new_parent: Ino,
    new_name: &[u8],
    mode: RenameMode,
) -> Result<()> {
    names::check_form(name)?;
    names::check_form(new_name)?;
    let from = writable_dir(engine, parent)?;
    let to = writable_dir(engine, new_parent)?;
    if subvolume::rename(engine, cx, (&from, name), (&to, new_name), mode)?.is_some() {
        return Ok(());
    }
    if from.id.tree != to.id.tree {
        return Err(Errno::EXDEV.into());
    }
    let cost = cost::rename(name.len(), new_name.len());
    let _reservation = engine.reserver.reserve(cost)?;
    let _still = (from.id != to.id).then(|| engine.rename_lock.lock());
    let (from, to) = ((&from, name), (&to, new_name));
    loop {
        let found = look(engine, from, to)?;
        let done = resolve(engine, from, to, found, mode).and_then(|rename| {
            land_first(engine, &rename).and_then(|()| attempt(engine, cx, &rename))
        });
        match done {
            Ok(Some(victim)) => {
                victim.into_iter().for_each(|victim| engine.orphans.release(victim));
                return Ok(());
            }
            Ok(None) => {}
            // What a name stood for went, and another has it by now.
            Err(error) if is_gone(&error) && look(engine, from, to)? != found => {}
            Err(error) => return Err(error),
        }
    }
}

/// In this order: a name that is not there is told before one that cannot be.
fn look(
    engine: &Engine,
    (from, name): (&Ref<Inode>, &[u8]),
    (to, new_name): (&Ref<Inode>, &[u8]),
) -> Result<Found> {
    let source = looked_up(engine, from, name)?.ok_or(FsError::Posix(Errno::ENOENT))?;
    Ok((source, looked_up(engine, to, new_name)?))
}

/// Who replaces a file by a new one without an fsync finds the old or the new content after a
/// crash, never an empty file: the content lands before the name can be committed.
fn land_first(engine: &Engine, rename: &Rename<'_>) -> Result<()> {
    if rename.mode == RenameMode::Exchange || rename.victim.is_none() {
        return Ok(());
    }
    match engine.writeback.flush_unasked(&rename.child) {
        // It stays in memory, as it would without a rename.
        Err(error) if error.errno() == libc::ENOSPC => Ok(()),
        other => other,
    }
}

fn resolve<'a>(
    engine: &Engine,
    (from, name): (&'a Ref<Inode>, &'a [u8]),
    (to, new_name): (&'a Ref<Inode>, &'a [u8]),
    (source, victim): Found,
    mode: RenameMode,
) -> Result<Rename<'a>> {
    let child = child_of(engine, from, source)?;
    let victim = match victim {
        Some(target) => Some((target, child_of(engine, to, target)?)),
        None => None,
    };
    match mode {
        RenameMode::Exchange if victim.is_none() => return Err(Errno::ENOENT.into()),
        RenameMode::NoReplace | RenameMode::NoReplaceWhiteout if victim.is_some() => {
            return Err(Errno::EEXIST.into());
        }
        _ => {}
    }
    Ok(Rename { from, name, to, new_name, source, child, victim, mode })
}

/// Locks, checks and does it. `None`: the names changed meanwhile, resolve again.
#[allow(clippy::type_complexity)]
fn attempt(engine: &Engine, cx: &Context, r: &Rename<'_>) -> Result<Option<Option<Ref<Inode>>>> {
    let mut inodes = vec![r.from, r.to, &r.child];
    inodes.extend(r.victim.iter().map(|(_, inode)| inode));
    let mut locked = Locked::new(&inodes)?;
    engine.still_writable(r.to.id.tree)?;
    let view = engine.core.view();
    if names::lookup(&view, r.from.id, r.name)? != Some(r.source)
        || names::lookup(&view, r.to.id, r.new_name)? != r.victim.as_ref().map(|v| v.0)
    {
        return Ok(None);
    }
    drop(view);
    if r.victim.as_ref().is_some_and(|(_, v)| v.id == r.child.id) {
        // Two names of one inode, or one name onto itself: nothing happens.
        return Ok(Some(None));
    }
    check(engine, r, &locked)?;
    prepare_indexes(engine, &mut locked, r)?;
    if r.mode == RenameMode::Exchange {
        exchange(engine, r, &mut locked)?;
        return Ok(Some(None));
    }
    replace(engine, cx, r, &mut locked)?;
    Ok(Some(r.victim.as_ref().map(|(_, inode)| inode.clone())))
}

fn check(engine: &Engine, r: &Rename<'_>, locked: &Locked<'_>) -> Result<()> {
    may_unname(locked.get(r.from), locked.get(&r.child))?;
    check_parent(locked.get(r.to))?;
    let moves_dir = locked.get(&r.child).is_dir();
    if moves_dir && r.from.id != r.to.id && is_below(engine, r.to.id, r.child.id)? {
        return Err(Errno::EINVAL.into());
    }
    if let Some((_, victim)) = &r.victim {
        check_victim(engine, r, locked, victim)?;
    }
    check_fits(engine, r, locked)
}

/// Nothing may fail for want of room, or for damage, once the first name is gone.
fn check_fits(engine: &Engine, r: &Rename<'_>, locked: &Locked<'_>) -> Result<()> {
    let view = engine.core.view();
    // Where one name goes the removal itself finds damage in time.
    if let Some((target, _)) = &r.victim {
        names::check_removal(&view, (r.from.id, locked.get(r.from).dir.given()), r.name, r.source)?;
        names::check_removal(&view, (r.to.id, locked.get(r.to).dir.given()), r.new_name, *target)?;
    }
    names::check_room(&view, r.to.id, r.new_name, engine.core.geometry.max_item_size())?;
    names::check_ref(&engine.core, &view, r.child.id, r.to.id.objectid, r.new_name)?;
    match &r.victim {
        Some((_, victim)) if r.mode == RenameMode::Exchange => {
            names::check_ref(&engine.core, &view, victim.id, r.from.id.objectid, r.name)
        }
        _ => Ok(()),
    }
}

fn check_victim(
    engine: &Engine,
    r: &Rename<'_>,
    locked: &Locked<'_>,
    victim: &Ref<Inode>,
) -> Result<()> {
    may_unname(locked.get(r.to), locked.get(victim))?;
    let moves_dir = locked.get(&r.child).is_dir();
    let over_dir = locked.get(victim).is_dir();
    if r.mode == RenameMode::Exchange {
        if over_dir && r.from.id != r.to.id && is_below(engine, r.from.id, victim.id)? {
            return Err(Errno::EINVAL.into());
        }
        return Ok(());
    }
    if over_dir && is_below(engine, r.from.id, victim.id)? {
        return Err(Errno::ENOTEMPTY.into());
    }
    match (moves_dir, over_dir) {
        (true, false) => return Err(Errno::ENOTDIR.into()),
        (false, true) => return Err(Errno::EISDIR.into()),
        _ => {}
    }
    if over_dir && !names::is_empty(&engine.core.view(), victim.id)? {
        return Err(Errno::ENOTEMPTY.into());
    }
    check_last(engine, victim, locked.get(victim))
}

/// True if `dir` is `ancestor` or lies below it.
fn is_below(engine: &Engine, dir: InodeId, ancestor: InodeId) -> Result<bool> {
    let mut at = dir;
    // A damaged volume may hold a circle of directories.
    for _ in 0..MAX_DEPTH {
        if at == ancestor {
            return Ok(true);
        }
        let up = parent_id(engine, at)?;
        if up == at || up.tree != ancestor.tree {
            return Ok(false);
        }
        at = up;
    }
    Err(Errno::ELOOP.into())
}

fn prepare_indexes(engine: &Engine, locked: &mut Locked<'_>, r: &Rename<'_>) -> Result<()> {
    let view = engine.core.view();
    look_source_up(engine, &view, r.from.id, locked.state(r.from), r.mode)?;
    look_index_up(engine, &view, r.to.id, locked.state(r.to))
}

fn exchange(engine: &Engine, r: &Rename<'_>, locked: &mut Locked<'_>) -> Result<()> {
    let (other, victim) = r.victim.as_ref().expect("checked");
    let old_index = locked.state(r.from).dir.take_index(r.name);
    let new_index = locked.state(r.to).dir.take_index(r.new_name);
    change(&engine.core, |op| {
        // The kernel, too, commits then when the directory is synced.
        let commits = r.from.id == r.to.id && op.is_first();
        names::remove(op, (r.from.id, locked.get(r.from).dir.given()), r.name, r.source)?;
        names::remove(op, (r.to.id, locked.get(r.to).dir.given()), r.new_name, *other)?;
        names::add(op, r.to.id, r.new_name, r.source, new_index)?;
        names::add(op, r.from.id, r.name, *other, old_index)?;
        touch_child(op, locked, &r.child);
        touch_child(op, locked, victim);
        op.edit(victim.id, |o| o.follow(r.child.id.objectid));
        op.edit(r.child.id, |o| o.follow(victim.id.objectid));
        op.moved(r.from.id, r.to.id, r.child.id);
        op.moved(r.to.id, r.from.id, victim.id);
        if commits {
            op.edit(r.from.id, |o| o.moved());
        }
        touch_dir(op, r.from.id, locked.state(r.from), 0);
        touch_dir(op, r.to.id, locked.state(r.to), 0);
        Ok(())
    })
}

fn touch_child(op: &Op<'_>, locked: &mut Locked<'_>, inode: &Ref<Inode>) {
    let state = locked.state(inode);
    state.item.ctime = op.core.now();
    put_inode(op, inode.id, state);
}

fn replace(engine: &Engine, cx: &Context, r: &Rename<'_>, locked: &mut Locked<'_>) -> Result<()> {
    let whiteout = match r.mode {
        RenameMode::Whiteout | RenameMode::NoReplaceWhiteout => {
            Some(make_whiteout(engine, cx, r.from, locked.state(r.from))?)
        }
        _ => None,
    };
    let new_index = locked.state(r.to).dir.take_index(r.new_name);
    change(&engine.core, |op| {
        let grown = move_name(&engine.inodes, op, r, locked, new_index)?;
        let mut shrunk = r.name.len() as i64;
        if let Some(whiteout) = whiteout {
            let index = locked.state(r.from).dir.take_index(r.name);
            let made = whiteout.insert(op, r.from.id, r.name, index)?;
            op.edit(r.child.id, |o| o.follow(made.objectid));
            shrunk = 0;
        }
        touch_dir(op, r.from.id, locked.state(r.from), -shrunk);
        touch_dir(op, r.to.id, locked.state(r.to), grown);
        Ok(())
    })
}

/// Takes the victim's name and the old one away and gives the new one; answers by how many
/// bytes the names of the new directory grew.
fn move_name(
    inodes: &Inodes,
    op: &Op<'_>,
    r: &Rename<'_>,
    locked: &mut Locked<'_>,
    new_index: u64,
) -> Result<i64> {
    let mut grown = r.new_name.len() as i64;
    if let Some((target, victim)) = &r.victim {
        names::remove(op, (r.to.id, locked.get(r.to).dir.given()), r.new_name, *target)?;
        grown = 0;
        op.edit(victim.id, |o| o.follow(r.child.id.objectid));
        drop_link(inodes, op, victim.id, locked.state(victim));
    }
    names::remove(op, (r.from.id, locked.get(r.from).dir.given()), r.name, r.source)?;
    names::add(op, r.to.id, r.new_name, r.source, new_index)?;
    op.moved(r.from.id, r.to.id, r.child.id);
    touch_child(op, locked, &r.child);
    Ok(grown)
}
