//! What a subvolume is told to be: read-only, or where mounts begin.

use super::closed::close_to_writers;
use super::received::{become_known, known_as};
use super::{commit_unknown, in_root_tree, lock_own};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::inode::change;
use crate::reserve::cost;
use crate::subvol::{self, Caller};
use btrfs_disk::checksum::name_hash;
use btrfs_disk::items::{DirItem, ROOT_SUBVOL_RDONLY, RootItem, dir_type, inode_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_txn::delta::{ReceivedForm, TreeAction};
use vfs::{Errno, Result};

const DEFAULT: &[u8] = b"default";

/// What came before is in it; what comes behind hears EROFS. What was received and can be written from now on is
/// not what was sent any more: by the same commit nothing says that it was received. EPERM: a stream is made of it,
/// and it would become writable.
pub(crate) fn set_read_only(
    engine: &Engine,
    caller: &Caller,
    tree: TreeId,
    read_only: bool,
) -> Result<()> {
    let (subvolume, _one_at_a_time) = lock_own(engine, caller, tree)?;
    if subvolume.is_read_only() == read_only {
        return Ok(());
    }
    if !read_only && subvolume.is_sent() {
        return Err(Errno::EPERM.into());
    }
    let received = if read_only { ReceivedForm::nothing() } else { known_as(engine, tree)? };
    let forgets = received.uuid != [0; 16];
    let cost = cost_of(forgets);
    let room = engine.reserver.reserve(cost)?;
    let closed = read_only.then(|| close_to_writers(engine, &subvolume, tree)).transpose()?;
    let forget = forgets.then(|| (received.uuid, ReceivedForm::nothing()));
    turn(engine, tree, read_only, forget)?;
    drop(room);
    if let Err(error) = engine.committer.commit_written_back() {
        turn_back(engine, tree, !read_only, forgets.then_some(received), cost)?;
        return Err(error);
    }
    match closed {
        Some(closed) => closed.stays(),
        None => subvolume.set_read_only(false),
    }
    Ok(())
}

fn cost_of(forgets: bool) -> cost::Cost {
    let flag = cost::with(cost::Cost::default(), cost::root_item());
    match forgets {
        true => cost::with(flag + cost::subvolume_name(0), cost::root_item()),
        false => flag,
    }
}

/// The flag, and what it was received as before and is from now on, if that changes.
fn turn(
    engine: &Engine,
    tree: TreeId,
    read_only: bool,
    received: Option<([u8; 16], ReceivedForm)>,
) -> Result<()> {
    let action = cost::root_item();
    let (set, clear) = match read_only {
        true => (ROOT_SUBVOL_RDONLY, 0),
        false => (0, ROOT_SUBVOL_RDONLY),
    };
    change(&engine.core, |op| {
        if let Some((before, form)) = received {
            become_known(op, tree, (&before, form), action)?;
        }
        op.act(TreeAction::Flags { id: tree, set, clear }, action);
        Ok(())
    })
}

/// The epoch of a failed commit goes with a later one, which is to leave it as it was.
fn turn_back(
    engine: &Engine,
    tree: TreeId,
    read_only: bool,
    received: Option<ReceivedForm>,
    cost: cost::Cost,
) -> Result<()> {
    // Not `changeable`: who refuses changes waits for this one.
    if engine.core.health.writable().is_err() {
        return Ok(());
    }
    let _room = engine.reservations.hold_anyway(cost);
    let again = received.map(|form| ([0; 16], form));
    turn(engine, tree, read_only, again).or_else(|_| turn(engine, tree, read_only, None))
}

/// Read-only snapshots of a top level that the kernel had not written yet were made without the
/// bit that lets it heed their flags: they get it.
///
/// Spinney alone made such, before it had a version (64fe0ee5, 2026-11): the kernel sets the bit in
/// memory when it first reads a subvolume's item, with the flags at 0, so what it makes read-only
/// has it, and `mkfs.btrfs --subvol ro:` sets both. What no release has made needs no mending for ever.
pub(crate) fn mend_flags(engine: &Engine) -> Result<()> {
    let mute = |item: &RootItem| {
        let heeded = item.inode.flags & inode_flags::ROOT_ITEM_INIT != 0;
        !item.is_deleted() && item.flags & ROOT_SUBVOL_RDONLY != 0 && !heeded
    };
    let roots = engine.core.roots();
    let trees = roots.trees.iter().filter(|(id, root)| id.is_subvolume() && mute(&root.item));
    for (id, _) in trees {
        let change = cost::root_item();
        let _room = engine.reserver.reserve(cost::with(cost::Cost::default(), change))?;
        let action = TreeAction::Flags { id, set: ROOT_SUBVOL_RDONLY, clear: 0 };
        engine.core.begin().act(action, change);
    }
    Ok(())
}

pub(crate) fn set_default(engine: &Engine, caller: &Caller, tree: TreeId) -> Result<()> {
    engine.core.health.changeable().fs()?;
    if !caller.privileged {
        return Err(Errno::EPERM.into());
    }
    let _one_at_a_time = engine.lock_subvolumes()?;
    if engine.subvols.get(tree).is_none() {
        return Err(Errno::ENOENT.into());
    }
    commit_unknown(engine, tree)?;
    if subvol::default_subvolume(&engine.core.view())? == tree {
        return Ok(());
    }
    let action = cost::root_item();
    let named = cost::with(cost::subvolume_name(DEFAULT.len()), action);
    let _room = engine.reserver.reserve(named)?;
    change(&engine.core, |op| {
        let hash = name_hash(DEFAULT);
        let key = Key::new(TreeId::ROOT_DIR.0, kind::DIR_ITEM, hash);
        let old = op.view.get(TreeId::ROOT, &key).fs()?;
        let mut bytes = Vec::new();
        for entry in old.iter().flat_map(|old| DirItem::iter(old)) {
            let entry = entry.fs()?;
            if entry.name != DEFAULT {
                entry.append_to(&mut bytes);
            }
        }
        let location = Key::new(tree.0, kind::ROOT_ITEM, u64::MAX);
        let entry =
            DirItem { location, transid: 0, kind: dir_type::DIR, name: DEFAULT, value: &[] };
        entry.append_to(&mut bytes);
        op.put(in_root_tree(TreeId::ROOT_DIR.0), kind::DIR_ITEM, hash, bytes.into());
        op.act(TreeAction::OtherDefault, action);
        Ok(())
    })
}
