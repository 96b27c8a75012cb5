//! The tree actions of a sealed delta, in their order: see `delta/actions.rs`.
//!
//! Invariants: a snapshot comes behind all items of its source and before any of its own; a tree
//! is dropped only in a commit that edits none of its items (who killed it saw to that).
//!
//! What it does not know: names, but that a snapshot does not have its own.

use crate::delta::{Delta, Dropping, Move, OwnEntry, ReceivedForm, SnapshotForm, TreeAction};
use btrfs_disk::checksum::name_hash;
use btrfs_disk::ids::{ORPHAN_OBJECTID, incompat};
use btrfs_disk::items::{
    DirItem, InodeItem, ROOT_SUBVOL_DEAD, ROOT_SUBVOL_RDONLY, RootItem, inode_flags,
};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, FixedSize, Generation, Key, Result, TreeId};
use btrfs_space::{DropState, Settle};
use btrfs_tree::{Edit, NodeStore};
use std::collections::BTreeSet;
use std::sync::Arc;

type Settling<'a> = Settle<'a, NodeStore>;

/// What the drops of a commit have found, to be remembered once it has succeeded.
#[derive(Default)]
pub(super) struct Drops(Vec<(Dropping, DropState)>);

impl Drops {
    pub(super) fn remember(self) {
        for (dropping, state) in self.0 {
            *dropping.state.lock() = state;
        }
    }
}

/// Quotas are given up, whatever their tree says.
pub(super) fn forgets_quotas(sealed: &Delta) -> bool {
    sealed.trees.list().iter().any(|action| matches!(action, TreeAction::ForgetQuotas))
}

/// New trees, before any items.
pub(super) fn create(settle: &mut Settling<'_>, sealed: &Delta) -> Result<()> {
    let actions = sealed.trees.list();
    for action in &actions {
        if let TreeAction::FreeSpaceTree(caches) = action {
            settle.make_free_space_tree(caches)?;
        }
    }
    for action in actions {
        match action {
            TreeAction::Create { id, mut item } => {
                let now = settle.generation().0;
                (item.ctransid, item.otransid) = (now, now);
                settle.create_tree(id, Key::new(id.0, kind::ROOT_ITEM, 0), *item)?;
            }
            TreeAction::MakeUuidTree(entries) => settle.make_uuid_tree(&entries)?,
            _ => {}
        }
    }
    Ok(())
}

/// Without this bit, which no mkfs sets, the kernel takes the flags of a root item for 0 when it
/// reads it: what is read-only would be writable.
fn let_flags_count(item: &mut RootItem) {
    item.inode.flags |= inode_flags::ROOT_ITEM_INIT;
}

fn received(settle: &mut Settling<'_>, id: TreeId, form: &ReceivedForm) -> Result<()> {
    let now = settle.generation().0;
    let item = settle.root_item(id)?;
    item.received_uuid = form.uuid;
    (item.stransid, item.stime) = (form.stransid, form.stime);
    (item.rtransid, item.rtime) = (form.rtransid.unwrap_or(now), form.rtime);
    Ok(())
}

/// All others, behind all items.
pub(super) fn finish(settle: &mut Settling<'_>, sealed: &Delta) -> Result<Drops> {
    let actions = sealed.trees.list();
    for action in &actions {
        if let TreeAction::Snapshot { source, to, form } = action {
            snapshot(settle, *source, *to, form)?;
        }
    }
    for action in &actions {
        match action {
            TreeAction::Flags { id, set, clear } => {
                let item = settle.root_item(*id)?;
                item.flags = item.flags & !clear | set;
                let_flags_count(item);
            }
            TreeAction::Received { id, form } => received(settle, *id, form)?,
            TreeAction::Kill { id } => kill(settle.root_item(*id)?),
            TreeAction::ForgetUuidTree => settle.forget_uuid_tree()?,
            TreeAction::UuidTreeLags => settle.uuid_tree_lags(),
            TreeAction::ForgetQuotas => settle.forget_quotas()?,
            TreeAction::OtherDefault => settle.set_incompat(incompat::DEFAULT_SUBVOL),
            _ => {}
        }
    }
    let mut drops = Drops::default();
    let mut seen = BTreeSet::new();
    for action in &actions {
        let TreeAction::Drop { trees, budget } = action else { continue };
        let mut left = *budget;
        for tree in trees.iter().filter(|tree| seen.insert(tree.id)) {
            if left == 0 {
                break;
            }
            drop_some(settle, tree, &mut left, &mut drops)?;
        }
    }
    for wanted in moves(sealed) {
        settle.move_nodes(wanted.what.clone());
    }
    Ok(drops)
}

/// The moves that the commit is to make.
pub(super) fn moves(sealed: &Delta) -> Vec<Arc<Move>> {
    let moves = sealed.trees.list().into_iter().filter_map(|action| match action {
        TreeAction::Move(wanted) if wanted.is_wanted() => Some(wanted),
        _ => None,
    });
    moves.collect()
}

fn kill(item: &mut RootItem) {
    item.refs = 0;
    item.flags |= ROOT_SUBVOL_DEAD;
    (item.drop_progress, item.drop_level) = (Key::MIN, 0);
}

fn drop_some(
    settle: &mut Settling<'_>,
    tree: &Dropping,
    budget: &mut usize,
    drops: &mut Drops,
) -> Result<()> {
    let mut state = tree.state.lock().clone();
    if tree.id == TreeId::RELOC {
        settle.drop_relocations(&mut state, budget)?;
    } else if settle.drop_tree_within(tree.id, &mut state, budget)? {
        let orphan = Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, tree.id.0);
        settle.apply_tree(TreeId::ROOT, [(orphan, Edit::Delete)])?;
    }
    drops.0.push((tree.clone(), state));
    Ok(())
}

fn snapshot(
    settle: &mut Settling<'_>,
    source: TreeId,
    to: TreeId,
    form: &SnapshotForm,
) -> Result<()> {
    let generation = settle.generation();
    let item = snapshot_item(settle.root_item(source)?, form, generation);
    // Who drops the tree takes nodes of this generation and older ones for the source's (the
    // kernel, too). Where the copy is edited at once, it has some of its own.
    let origin = generation.0 - u64::from(form.entry.is_some());
    settle.snapshot(source, to, Key::new(to.0, kind::ROOT_ITEM, origin), item)?;
    match &form.entry {
        Some(entry) => forget_entry(settle, to, entry),
        None => Ok(()),
    }
}

fn snapshot_item(source: &RootItem, form: &SnapshotForm, generation: Generation) -> RootItem {
    let read_only = if form.read_only { ROOT_SUBVOL_RDONLY } else { 0 };
    let mut item = RootItem {
        refs: 1,
        flags: source.flags & !(ROOT_SUBVOL_RDONLY | ROOT_SUBVOL_DEAD) | read_only,
        uuid: form.uuid,
        parent_uuid: source.uuid,
        otime: form.otime,
        otransid: generation.0,
        drop_progress: Key::MIN,
        drop_level: 0,
        ..*source
    };
    let_flags_count(&mut item);
    if !form.read_only {
        // It will be another than what was received.
        let none = RootItem::default();
        item.received_uuid = none.received_uuid;
        (item.stransid, item.rtransid) = (0, 0);
        (item.stime, item.rtime) = (none.stime, none.rtime);
    }
    item
}

/// The copy is of the moment before its own entry came.
fn forget_entry(settle: &mut Settling<'_>, tree: TreeId, entry: &OwnEntry) -> Result<()> {
    let root = settle.root(tree)?;
    let reader = settle.reader();
    let hash = Key::new(entry.dir, kind::DIR_ITEM, name_hash(&entry.name));
    let dir = Key::new(entry.dir, kind::INODE_ITEM, 0);
    let (Some(old), Some(inode)) =
        (btrfs_tree::get(&reader, &root, &hash)?, btrfs_tree::get(&reader, &root, &dir)?)
    else {
        return Err(Corrupt::new("a snapshot's name is not in its directory").key(hash).into());
    };
    let mut rest = Vec::new();
    for other in DirItem::iter(old.data()) {
        let other = other?;
        if other.name != entry.name {
            other.append_to(&mut rest);
        }
    }
    let mut inode = InodeItem::read(inode.data())?;
    inode.size = inode.size.saturating_sub(2 * entry.name.len() as u64);
    if inode.mtime == entry.behind {
        (inode.mtime, inode.ctime) = entry.before;
    }
    let index = Key::new(entry.dir, kind::DIR_INDEX, entry.index);
    let hashed = if rest.is_empty() { Edit::Delete } else { Edit::Put(rest.into()) };
    let edits = [(dir, Edit::Put(inode.to_boxed())), (hash, hashed), (index, Edit::Delete)];
    settle.apply_tree(tree, edits).map(|_| ())
}
