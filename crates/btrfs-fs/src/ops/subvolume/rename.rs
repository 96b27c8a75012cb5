//! Renames of which one side is a subvolume.
//!
//! A subvolume's name may go to any directory, of other subvolumes as well; nothing else leaves
//! its own. The kernel's answers: ENOTEMPTY where a subvolume would be replaced or a stand-in
//! moved, EXDEV where an inode would have to change its tree. A stand-in is an empty directory to who
//! takes its place, and a whiteout stays where a subvolume was as where a file was.

use super::permission::may_lose_name;
use super::{ParentLink, commit_unknown, delete_refs, put_refs};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::inode::{Inode, Locked, change, put_inode};
use crate::names::{self, MAX_DEPTH, Target};
use crate::ops::create::{
    Whiteout, check_parent, look_index_up, look_source_up, make_whiteout, touch_dir,
};
use crate::ops::lookup::{looked_up, parent_id};
use crate::ops::remove::{check_last, drop_link, may_unname};
use crate::reserve::cost;
use crate::subvol;
use btrfs_disk::items::RootRef;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::{Op, View};
use inode_index::Ref;
use vfs::{Context, Errno, FsError, RenameMode, Result};

/// One of the two names.
struct Side<'a> {
    dir: &'a Ref<Inode>,
    name: &'a [u8],
    target: Target,
    /// `None`: a subvolume, or what stands in for one.
    inode: Option<Ref<Inode>>,
    /// The index of the entry, where no subvolume hangs here.
    stand_in: Option<u64>,
}

impl Side<'_> {
    fn tree(&self) -> TreeId {
        TreeId(self.target.location.objectid)
    }

    fn take(&self, op: &Op<'_>) -> Result<()> {
        if self.inode.is_some() {
            return names::remove(op, (self.dir.id, u64::MAX), self.name, self.target);
        }
        names::remove_entry(op, self.dir.id, self.name, self.index(&op.view)?)
    }

    /// Where the entry of a subvolume, or of what stands in for one, is in the order of its directory.
    fn index(&self, view: &View<'_>) -> Result<u64> {
        if let Some(index) = self.stand_in {
            return Ok(index);
        }
        let key = Key::new(self.dir.id.tree.0, kind::ROOT_REF, self.tree().0);
        let bytes = view.get(TreeId::ROOT, &key).fs()?;
        let bytes = bytes.ok_or(FsError::Posix(Errno::ENOENT))?;
        Ok(RootRef::parse(&bytes).fs()?.sequence)
    }

    /// Whether `take` can read all that it needs.
    fn can_be_taken(&self, view: &View<'_>) -> Result<()> {
        match &self.inode {
            Some(_) => names::check_removal(view, (self.dir.id, u64::MAX), self.name, self.target),
            None => names::can_read_index(view, self.dir.id, self.index(view)?),
        }
    }

    /// It has another name by now, in the tree `to`: nobody ever finds it without one.
    fn leave(&self, op: &Op<'_>, to: TreeId) {
        let from = self.dir.id.tree;
        if self.inode.is_none() && self.stand_in.is_none() && from != to {
            delete_refs(op, self.tree(), from);
        }
    }

    /// It gets another name.
    fn put(&self, op: &Op<'_>, dir: InodeId, name: &[u8], index: u64) -> Result<()> {
        names::add(op, dir, name, self.target, index)?;
        if self.inode.is_none() {
            put_refs(op, self.tree(), &ParentLink { dir, name, index });
            op.renamed_subvolume();
        }
        Ok(())
    }

    fn touch(&self, op: &Op<'_>, locked: &mut Locked<'_>) {
        if let Some(inode) = &self.inode {
            let state = locked.state(inode);
            state.item.ctime = op.core.now();
            put_inode(op, inode.id, state);
        }
    }
}

/// `None`: neither side is one, it is not for here.
pub(crate) fn rename(
    engine: &Engine,
    cx: &Context,
    from: (&Ref<Inode>, &[u8]),
    to: (&Ref<Inode>, &[u8]),
    mode: RenameMode,
) -> Result<Option<()>> {
    if !concerns(engine, from, to)? {
        return Ok(None);
    }
    let names = cost::subvolume_name(from.1.len()) + cost::subvolume_name(to.1.len());
    let _one_at_a_time = engine.lock_subvolumes()?;
    let _room = engine.reserver.reserve(names + cost::rename(from.1.len(), to.1.len()))?;
    let _still = (from.0.id != to.0.id).then(|| engine.rename_lock.lock());
    if !concerns(engine, from, to)? {
        return Ok(None);
    }
    let source = side(engine, from)?.ok_or(FsError::Posix(Errno::ENOENT))?;
    if source.stand_in.is_some() {
        return Err(Errno::ENOTEMPTY.into());
    }
    let other = side(engine, to)?;
    check(engine, &source, to, other.as_ref(), mode)?;
    for side in [Some(&source), other.as_ref()].into_iter().flatten() {
        if side.inode.is_none() && side.stand_in.is_none() {
            may_lose_name(engine, side.dir, side.tree())?;
        }
    }
    match other {
        Some(other) if mode == RenameMode::Exchange => exchange(engine, &source, &other)?,
        other => replace(engine, cx, &source, to, other, mode)?,
    }
    Ok(Some(()))
}

fn concerns(engine: &Engine, from: (&Ref<Inode>, &[u8]), to: (&Ref<Inode>, &[u8])) -> Result<bool> {
    // In this order: a name that is not there is told before one that cannot be.
    let Some(source) = looked_up(engine, from.0, from.1)? else { return Ok(false) };
    if source.is_subvolume() {
        return Ok(true);
    }
    let other = looked_up(engine, to.0, to.1)?;
    Ok(other.is_some_and(|target| target.is_subvolume()))
}

fn side<'a>(engine: &Engine, (dir, name): (&'a Ref<Inode>, &'a [u8])) -> Result<Option<Side<'a>>> {
    let Some(target) = looked_up(engine, dir, name)? else { return Ok(None) };
    let objectid = target.location.objectid;
    let mut side = Side { dir, name, target, inode: None, stand_in: None };
    if !target.is_subvolume() {
        side.inode = Some(engine.inodes.by_id(InodeId::new(dir.id.tree, objectid), 0)?);
        return Ok(Some(side));
    }
    commit_unknown(engine, TreeId(objectid))?;
    let view = engine.core.view();
    if !subvol::hangs_here(&view, dir.id, name, TreeId(objectid))? {
        side.stand_in = Some(names::index_of(&view, dir.id, name)?);
    }
    Ok(Some(side))
}

fn check(
    engine: &Engine,
    source: &Side<'_>,
    to: (&Ref<Inode>, &[u8]),
    other: Option<&Side<'_>>,
    mode: RenameMode,
) -> Result<()> {
    let crosses = source.dir.id.tree != to.0.id.tree;
    if crosses && source.inode.is_some() {
        return Err(Errno::EXDEV.into());
    }
    match (mode, other) {
        (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
        (RenameMode::Exchange, Some(other)) => {
            if other.stand_in.is_some() {
                return Err(Errno::ENOTEMPTY.into());
            }
            if crosses && other.inode.is_some() {
                return Err(Errno::EXDEV.into());
            }
            not_below(engine, source.dir.id, other)?;
        }
        (RenameMode::NoReplace | RenameMode::NoReplaceWhiteout, Some(_)) => {
            return Err(Errno::EEXIST.into());
        }
        (_, Some(other)) if other.stand_in.is_some() => must_be_dir(source)?,
        (_, Some(other)) if other.inode.is_none() => return Err(Errno::ENOTEMPTY.into()),
        _ => {}
    }
    not_below(engine, to.0.id, source)
}

/// What takes the place of an empty directory.
fn must_be_dir(source: &Side<'_>) -> Result<()> {
    match &source.inode {
        Some(inode) if !inode.read()?.is_dir() => Err(Errno::EISDIR.into()),
        _ => Ok(()),
    }
}

/// Nothing may fail for want of room, nor for damage, once the first name is gone. All that it looks at is locked: a
/// name that came behind this could be the one too many.
fn check_fits(
    engine: &Engine,
    source: &Side<'_>,
    to: (&Ref<Inode>, &[u8]),
    (other, mode): (Option<&Side<'_>>, RenameMode),
) -> Result<()> {
    let view = engine.core.view();
    [Some(source), other].into_iter().flatten().try_for_each(|side| side.can_be_taken(&view))?;
    let max = engine.core.geometry.max_item_size();
    names::check_room(&view, to.0.id, to.1, max)?;
    names::check_room(&view, source.dir.id, source.name, max)?;
    let fits = |side: &Side<'_>, dir: InodeId, name: &[u8]| match &side.inode {
        Some(inode) => names::check_ref(&engine.core, &view, inode.id, dir.objectid, name),
        None => Ok(()),
    };
    fits(source, to.0.id, to.1)?;
    match other {
        Some(other) if mode == RenameMode::Exchange => fits(other, source.dir.id, source.name),
        _ => Ok(()),
    }
}

/// Nothing that moves comes to lie in itself.
fn not_below(engine: &Engine, dir: InodeId, moved: &Side<'_>) -> Result<()> {
    let mut at = dir;
    for _ in 0..MAX_DEPTH {
        let inside = match &moved.inode {
            Some(inode) => at == inode.id,
            None => at.tree == moved.tree(),
        };
        if inside {
            return Err(Errno::EINVAL.into());
        }
        let up = parent_id(engine, at)?;
        if up == at {
            return Ok(());
        }
        at = up;
    }
    Err(Errno::ELOOP.into())
}

fn lock<'a>(engine: &Engine, inodes: &[&'a Ref<Inode>], mode: RenameMode) -> Result<Locked<'a>> {
    let mut locked = Locked::new(inodes)?;
    let (from, to) = (inodes[0], inodes[1]);
    for dir in [from, to] {
        engine.still_writable(dir.id.tree)?;
        check_parent(locked.get(dir))?;
    }
    let view = engine.core.view();
    look_source_up(engine, &view, from.id, locked.state(from), mode)?;
    look_index_up(engine, &view, to.id, locked.state(to))?;
    Ok(locked)
}

fn still(engine: &Engine, side: &Side<'_>) -> Result<()> {
    let now = names::lookup(&engine.core.view(), side.dir.id, side.name)?;
    if now == Some(side.target) { Ok(()) } else { Err(Errno::ENOENT.into()) }
}

/// What is no subvolume; those were looked at before.
fn may_leave(locked: &Locked<'_>, side: &Side<'_>) -> Result<()> {
    let Some(inode) = &side.inode else { return Ok(()) };
    may_unname(locked.get(side.dir), locked.get(inode))
}

fn exchange(engine: &Engine, a: &Side<'_>, b: &Side<'_>) -> Result<()> {
    let mut inodes = vec![a.dir, b.dir];
    inodes.extend([a, b].into_iter().filter_map(|side| side.inode.as_ref()));
    let mut locked = lock(engine, &inodes, RenameMode::Exchange)?;
    still(engine, a)?;
    still(engine, b)?;
    [a, b].into_iter().try_for_each(|side| may_leave(&locked, side))?;
    check_fits(engine, a, (b.dir, b.name), (Some(b), RenameMode::Exchange))?;
    let in_a = locked.state(a.dir).dir.take_index(a.name);
    let in_b = locked.state(b.dir).dir.take_index(b.name);
    change(&engine.core, |op| {
        a.take(op)?;
        b.take(op)?;
        a.put(op, b.dir.id, b.name, in_b)?;
        b.put(op, a.dir.id, a.name, in_a)?;
        a.leave(op, b.dir.id.tree);
        b.leave(op, a.dir.id.tree);
        a.touch(op, &mut locked);
        b.touch(op, &mut locked);
        touch_dir(op, a.dir.id, locked.state(a.dir), 0);
        touch_dir(op, b.dir.id, locked.state(b.dir), 0);
        Ok(())
    })
}

/// What a subvolume takes the place of: an empty directory.
fn may_go(engine: &Engine, locked: &Locked<'_>, dir: &Ref<Inode>, gone: &Ref<Inode>) -> Result<()> {
    may_unname(locked.get(dir), locked.get(gone))?;
    if !locked.get(gone).is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    if !names::is_empty(&engine.core.view(), gone.id)? {
        return Err(Errno::ENOTEMPTY.into());
    }
    check_last(engine, gone, locked.get(gone))
}

fn replace(
    engine: &Engine,
    cx: &Context,
    source: &Side<'_>,
    (to, new_name): (&Ref<Inode>, &[u8]),
    victim: Option<Side<'_>>,
    mode: RenameMode,
) -> Result<()> {
    let gone = victim.as_ref().and_then(|side| side.inode.clone());
    {
        let inodes: Vec<_> =
            [source.dir, to].into_iter().chain(&source.inode).chain(&gone).collect();
        let mut locked = lock(engine, &inodes, mode)?;
        still(engine, source)?;
        may_leave(&locked, source)?;
        check_victim(engine, &locked, (to, new_name), victim.as_ref())?;
        check_fits(engine, source, (to, new_name), (victim.as_ref(), mode))?;
        let whiteout = whiteout(engine, cx, source.dir, &mut locked, mode)?;
        let index = locked.state(to).dir.take_index(new_name);
        change(&engine.core, |op| {
            let mut grown = new_name.len() as i64;
            if let Some(side) = &victim {
                side.take(op)?;
                grown = 0;
            }
            if let Some(gone) = &gone {
                drop_link(&engine.inodes, op, gone.id, locked.state(gone));
            }
            move_source(op, source, (to, new_name, index), &mut locked)?;
            let shrunk = leave(op, source, whiteout, &mut locked)?;
            touch_dir(op, source.dir.id, locked.state(source.dir), -shrunk);
            touch_dir(op, to.id, locked.state(to), grown);
            Ok(())
        })?;
    }
    if let Some(gone) = gone {
        engine.orphans.release(gone);
    }
    Ok(())
}

/// What is to stay at the old name, if the caller wants that.
fn whiteout<'e>(
    engine: &'e Engine,
    cx: &Context,
    dir: &Ref<Inode>,
    locked: &mut Locked<'_>,
    mode: RenameMode,
) -> Result<Option<Whiteout<'e>>> {
    let wanted = matches!(mode, RenameMode::Whiteout | RenameMode::NoReplaceWhiteout);
    wanted.then(|| make_whiteout(engine, cx, dir, locked.state(dir))).transpose()
}

fn check_victim(
    engine: &Engine,
    locked: &Locked<'_>,
    (to, new_name): (&Ref<Inode>, &[u8]),
    victim: Option<&Side<'_>>,
) -> Result<()> {
    match victim {
        Some(side) => {
            still(engine, side)?;
            may_unname(locked.get(to), locked.get(to))?;
            side.inode.as_ref().map_or(Ok(()), |gone| may_go(engine, locked, to, gone))
        }
        None if names::lookup(&engine.core.view(), to.id, new_name)?.is_some() => {
            Err(Errno::EEXIST.into())
        }
        None => Ok(()),
    }
}

fn move_source(
    op: &Op<'_>,
    source: &Side<'_>,
    (to, new_name, index): (&Ref<Inode>, &[u8], u64),
    locked: &mut Locked<'_>,
) -> Result<()> {
    source.take(op)?;
    source.put(op, to.id, new_name, index)?;
    source.leave(op, to.id.tree);
    if let Some(inode) = &source.inode {
        op.moved(source.dir.id, to.id, inode.id);
    }
    source.touch(op, locked);
    Ok(())
}

/// What stays where the source was; answers by how many bytes the names there became fewer.
fn leave(
    op: &Op<'_>,
    source: &Side<'_>,
    whiteout: Option<Whiteout<'_>>,
    locked: &mut Locked<'_>,
) -> Result<i64> {
    let Some(whiteout) = whiteout else { return Ok(source.name.len() as i64) };
    let index = locked.state(source.dir).dir.take_index(source.name);
    let made = whiteout.insert(op, source.dir.id, source.name, index)?;
    if let Some(inode) = &source.inode {
        op.edit(inode.id, |o| o.follow(made.objectid));
    }
    Ok(0)
}
