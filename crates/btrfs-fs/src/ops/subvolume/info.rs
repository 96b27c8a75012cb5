//! What subvolumes there are, as the last commit and what came since say it.

use crate::engine::Engine;
use crate::ino::{InodeId, id_of, number};
use crate::names::{self, MAX_DEPTH};
use crate::subvol::{self, SubvolId, SubvolumeInfo, Time};
use btrfs_disk::TreeId;
use btrfs_disk::items::{ROOT_SUBVOL_RDONLY, RootItem, Timespec};
use btrfs_txn::View;
use btrfs_txn::delta::TreeAction;
use std::collections::{HashMap, HashSet};
use vfs::{Errno, FsError, Ino, Result};

/// A directory's way from its subvolume's root; `None`: none leads there.
type Ways = HashMap<InodeId, Option<Vec<u8>>>;

/// Bytes of a path that is told with others: four times what a program may say at once. A crafted volume could have
/// paths whose lengths together are the square of its own. Longer ones are looked for one by one ...
const LONGEST: usize = 16 << 10;
/// ... as long as all those that are told at once have no more bytes together.
const LONG_ONES: usize = 64 << 20;

pub(crate) fn default(engine: &Engine) -> Result<TreeId> {
    subvol::default_subvolume(&engine.core.view())
}

/// The subvolume of an inode, and whether it is its root directory.
pub(crate) fn of(engine: &Engine, ino: Ino) -> Result<(TreeId, bool)> {
    let inode = engine.inodes.get(ino)?;
    let id = id_of(ino);
    drop(inode.read()?);
    let subvolume = engine.subvols.get(id.tree).ok_or(FsError::Posix(Errno::ESTALE))?;
    Ok((id.tree, subvolume.root_dir == id.objectid))
}

pub(crate) fn one(engine: &Engine, tree: TreeId) -> Result<SubvolumeInfo> {
    // That others go says nothing of this one; who deletes many asks of each before.
    settle(engine, |action| match action {
        TreeAction::Kill { id } => *id == tree,
        TreeAction::Drop { trees, .. } => trees.iter().any(|dropped| dropped.id == tree),
        _ => true,
    })?;
    let view = engine.core.view();
    let root = view.layers.roots.get(tree).filter(|_| tree.is_subvolume());
    let item = root.ok_or(FsError::Posix(Errno::ENOENT))?.item;
    let mut info = describe(engine, &view, tree, &item)?;
    info.path = long_path(engine, &view, tree, LONG_ONES)?;
    Ok(info)
}

/// As the last commit and what came since have it; `None`: none leads there.
pub(crate) fn path(engine: &Engine, tree: TreeId) -> Result<Option<Vec<u8>>> {
    long_path(engine, &engine.core.view(), tree, LONG_ONES)
}

pub(crate) fn all(engine: &Engine) -> Result<Vec<SubvolumeInfo>> {
    behind(engine, 0, usize::MAX)
}

/// The first `most` whose number is above `behind`: to tell of many in parts costs no more than
/// to tell of all at once.
pub(crate) fn behind(engine: &Engine, behind: u64, most: usize) -> Result<Vec<SubvolumeInfo>> {
    settle(engine, |_| true)?;
    let view = engine.core.view();
    let Some(from) = behind.checked_add(1) else { return Ok(Vec::new()) };
    let rest = view.layers.roots.trees.range_from(TreeId(from)).filter(|(id, _)| id.is_subvolume());
    let (mut ways, mut known) = (Ways::new(), HashMap::new());
    let (mut all, mut room) = (Vec::new(), LONG_ONES);
    for (id, root) in rest.take(most) {
        let mut info = describe(engine, &view, id, &root.item)?;
        info.path = path_up(engine, &view, &mut ways, &mut known, &info)?;
        if info.path.is_none() && !info.deleted {
            info.path = long_path(engine, &view, id, room)?;
            // What is looked for in vain was as long a way.
            room -= info.path.as_ref().map_or(room / 2, Vec::len);
        }
        all.push(info);
    }
    Ok(all)
}

/// The path of a subvolume; those above it that are not `known` yet become so. None has one that lies in
/// itself, by whatever way: who is met again is known, and has none yet.
fn path_up(
    engine: &Engine,
    view: &View<'_>,
    ways: &mut Ways,
    known: &mut HashMap<SubvolId, Option<Vec<u8>>>,
    info: &SubvolumeInfo,
) -> Result<Option<Vec<u8>>> {
    let (mut above, mut at) = (Vec::new(), info.parent);
    while let Some(parent) = at.filter(|parent| !known.contains_key(parent)) {
        let root = view.layers.roots.get(TreeId(parent.0));
        let Some(item) = root.map(|root| root.item).filter(|_| above.len() < MAX_DEPTH) else {
            above.iter().for_each(|info: &SubvolumeInfo| _ = known.remove(&info.id));
            return Ok(None);
        };
        let info = describe(engine, view, TreeId(parent.0), &item)?;
        at = info.parent;
        known.insert(parent, None);
        above.push(info);
    }
    for info in above.iter().rev() {
        let front = info.parent.and_then(|parent| known.get(&parent).cloned().flatten());
        known.insert(info.id, path_of(ways, engine, info, front));
    }
    let front = info.parent.and_then(|parent| known.get(&parent).cloned().flatten());
    Ok(path_of(ways, engine, info, front))
}

/// The path of a subvolume, of at most so many bytes.
fn long_path(
    engine: &Engine,
    view: &View<'_>,
    tree: TreeId,
    most: usize,
) -> Result<Option<Vec<u8>>> {
    let (mut at, mut parts, mut len) = (tree, Vec::new(), 0);
    // Those of a damaged volume may lie in each other.
    let mut passed = HashSet::new();
    while at != TreeId::FS {
        let Some((dir, name)) = subvol::place_of(view, at)? else { return Ok(None) };
        let Some(way) = way_to(engine, dir, most) else { return Ok(None) };
        len += way.len() + name.len() + 2;
        if len > most || !passed.insert(at) {
            return Ok(None);
        }
        parts.push(name);
        parts.extend((!way.is_empty()).then_some(way));
        at = dir.tree;
    }
    parts.reverse();
    Ok(Some(parts.join(&b'/')))
}

/// What the root tree does not say yet is committed, where it `matters`.
pub(super) fn settle(engine: &Engine, matters: impl Fn(&TreeAction) -> bool) -> Result<()> {
    let layers = engine.core.layers();
    let pending = layers.current.trees.any(&matters)
        || layers.sealed.as_ref().is_some_and(|sealed| sealed.trees.any(&matters));
    drop(layers);
    match pending {
        true => engine.committer.commit_written_back(),
        false => Ok(()),
    }
}

/// All but the path.
fn describe(
    engine: &Engine,
    view: &View<'_>,
    tree: TreeId,
    item: &RootItem,
) -> Result<SubvolumeInfo> {
    let time = |t: Timespec| -> Time { (t.sec, t.nsec) };
    // One item says both: who renames it meanwhile puts another in its place.
    let (parent, name) = subvol::place_of(view, tree)?.unzip();
    let dead = item.is_deleted() || engine.subvols.get(tree).is_none();
    Ok(SubvolumeInfo {
        id: SubvolId(tree.0),
        parent: parent.map(|parent| SubvolId(parent.tree.0)),
        directory: parent.map_or(0, |parent| parent.objectid),
        name: name.unwrap_or_default(),
        path: None,
        root: number(InodeId::new(tree, item.root_dirid))?,
        generation: item.generation.0,
        created: item.otransid,
        uuid: item.uuid,
        parent_uuid: item.parent_uuid,
        received_uuid: item.received_uuid,
        read_only: item.flags & ROOT_SUBVOL_RDONLY != 0,
        flags: item.flags,
        ctime: time(item.ctime),
        otime: time(item.otime),
        stime: time(item.stime),
        rtime: time(item.rtime),
        ctransid: item.ctransid,
        otransid: item.otransid,
        stransid: item.stransid,
        rtransid: item.rtransid,
        last_snapshot: item.last_snapshot.0,
        deleted: dead,
    })
}

/// The path of a subvolume, `above` being that of its parent.
fn path_of(
    ways: &mut Ways,
    engine: &Engine,
    info: &SubvolumeInfo,
    above: Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let Some(parent) = info.parent else {
        return (info.id == SubvolId::TOP_LEVEL).then(Vec::new);
    };
    let mut path = above?;
    let dir = InodeId::new(TreeId(parent.0), info.directory);
    let way = ways.entry(dir).or_insert_with(|| way_to(engine, dir, LONGEST)).clone()?;
    if path.len() + way.len() + info.name.len() + 2 > LONGEST {
        return None;
    }
    for part in [&way, &info.name] {
        if !path.is_empty() && !part.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    Some(path)
}

/// From the subvolume's root directory to `dir`, in at most so many bytes.
fn way_to(engine: &Engine, dir: InodeId, most: usize) -> Option<Vec<u8>> {
    let top = engine.subvols.get(dir.tree)?.root_dir;
    let (mut at, mut names, mut len) = (dir, Vec::new(), 0);
    let mut passed = HashSet::new();
    while at.objectid != top {
        if len > most || !passed.insert(at.objectid) {
            return None;
        }
        let (parent, name) = names::parent(&engine.core, at).ok()??;
        len += name.len() + 1;
        names.push(name);
        at = InodeId::new(dir.tree, parent);
    }
    names.reverse();
    Some(names.join(&b'/'))
}
