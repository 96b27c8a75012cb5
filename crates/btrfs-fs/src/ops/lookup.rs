//! Names to inodes, and the way into subvolumes.

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::{InodeId, is_stand_in, number, stand_in};
use crate::inode::{Inode, State, attr_of, time_of};
use crate::names::{self, Target};
use crate::subvol;
use btrfs_disk::TreeId;
use btrfs_disk::ids::FIRST_FREE_OBJECTID;
use btrfs_txn::view::Finder;
use inode_index::Ref;
use vfs::{Attr, Entry, Errno, FileKind, FsError, Ino, Result};

pub(crate) fn lookup(engine: &Engine, parent: Ino, name: &[u8]) -> Result<Entry> {
    if is_stand_in(parent) {
        return Err(Errno::ENOENT.into());
    }
    let dir = engine.inodes.get(parent)?;
    if name == b"." {
        // On files too: a FUSE kernel asks so for an inode that it has a handle of.
        return entry_by_id(engine, dir.id);
    }
    if name == b".." {
        must_be_dir(&*dir.read()?)?;
        return entry_by_id(engine, parent_id(engine, dir.id)?);
    }
    let mut before = None;
    loop {
        let (target, place) = find(engine, &dir, name)?;
        match entry_of(engine, place) {
            // It went since it was found: the name may be another's by now.
            Err(error) if is_gone(&error) && before != Some(target) => before = Some(target),
            done => return done,
        }
    }
}

/// An inode went that a name led to.
pub(crate) fn is_gone(error: &FsError) -> bool {
    matches!(error, FsError::Posix(Errno::ENOENT | Errno::ESTALE))
}

fn must_be_dir(state: &State) -> Result<()> {
    if state.is_dir() { Ok(()) } else { Err(Errno::ENOTDIR.into()) }
}

/// What a name stands for, and where it leads. The directory is held: a rename takes a name away and
/// gives it again.
pub(crate) fn find(engine: &Engine, dir: &Inode, name: &[u8]) -> Result<(Target, Destination)> {
    find_by(engine, dir, name, &mut Finder::new(engine.core.view().store))
}

/// The same, for who looks up more of the directory.
pub(crate) fn find_by(
    engine: &Engine,
    dir: &Inode,
    name: &[u8],
    finder: &mut Finder<'_>,
) -> Result<(Target, Destination)> {
    let state = dir.read()?;
    must_be_dir(&state)?;
    if name.len() <= vfs::NAME_MAX && state.dir.surely_lacks(name) {
        return Err(Errno::ENOENT.into());
    }
    let found = names::lookup(finder.over(&engine.core.view()), dir.id, name)?;
    let target = found.ok_or(FsError::Posix(Errno::ENOENT))?;
    Ok((target, place_of(engine, dir.id, name, target)?))
}

/// What a name stands for, for who does not hold the directory.
pub(crate) fn looked_up(engine: &Engine, dir: &Inode, name: &[u8]) -> Result<Option<Target>> {
    let _held = dir.read()?;
    names::lookup(&engine.core.view(), dir.id, name)
}

/// The entry of what a name leads to, with one lookup reference.
pub(crate) fn entry_of(engine: &Engine, place: Destination) -> Result<Entry> {
    match place {
        Destination::Inode(id) => entry_by_id(engine, id),
        Destination::Root(id) => {
            if engine.subvols.is_coming(id.tree) {
                // A snapshot that the next commit makes.
                engine.committer.commit_written_back()?;
            }
            entry_by_id(engine, id)
        }
        Destination::StandIn(ino) => Ok(Entry { attr: stand_in_attr(engine, ino), generation: 0 }),
    }
}

/// The same of a name that is listed.
pub(crate) fn entry_of_listed(
    engine: &Engine,
    place: Destination,
    finder: &mut Finder<'_>,
) -> Result<Entry> {
    match place {
        Destination::Inode(id) => entry_listed(engine, id, finder),
        Destination::Root(_) | Destination::StandIn(_) => entry_of(engine, place),
    }
}

/// Where a name leads.
#[derive(Clone, Copy)]
pub(crate) enum Destination {
    Inode(InodeId),
    /// A subvolume's root directory.
    Root(InodeId),
    /// The subvolume does not hang here.
    StandIn(Ino),
}

/// Where an entry leads. The caller holds the directory: to move a subvolume changes more than the entry.
pub(crate) fn place_of(
    engine: &Engine,
    dir: InodeId,
    name: &[u8],
    target: Target,
) -> Result<Destination> {
    if !target.is_subvolume() {
        return Ok(Destination::Inode(InodeId::new(dir.tree, target.location.objectid)));
    }
    let child = TreeId(target.location.objectid);
    if engine.subvols.is_coming(child) {
        return Ok(Destination::Root(InodeId::new(child, FIRST_FREE_OBJECTID)));
    }
    if let Some(subvolume) = engine.subvols.known(child)
        && subvol::hangs_here(&engine.core.view(), dir, name, child)?
    {
        return Ok(Destination::Root(InodeId::new(child, subvolume.root_dir)));
    }
    Ok(Destination::StandIn(stand_in(dir.tree, child)?))
}

/// An empty directory of the root user.
pub(crate) fn stand_in_attr(engine: &Engine, ino: Ino) -> Attr {
    let time = time_of(engine.core.now());
    Attr {
        ino,
        kind: FileKind::Dir,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        attributes: 0,
    }
}

pub(crate) fn entry_by_id(engine: &Engine, id: InodeId) -> Result<Entry> {
    let inode = engine.inodes.by_id(id, 1)?;
    entry(engine, &inode).inspect_err(|_| engine.orphans.forget(id, 1))
}

/// As `entry_by_id`, of one of many of which little more is asked: an inode that is not in memory does not come into
/// it. Who works with it has it loaded.
fn entry_listed(engine: &Engine, id: InodeId, finder: &mut Finder<'_>) -> Result<Entry> {
    let ino = number(id)?;
    // The reference first: who takes the last name away behind this finds it, and who did so before
    // has said it to the layers that are looked at.
    let entry = match engine.inodes.table().claim(id, 1)? {
        Some(inode) => entry(engine, &inode),
        None => engine.inodes.unloaded(id, finder).and_then(|state| told(engine, ino, &state, 0)),
    };
    entry.inspect_err(|_| engine.orphans.forget(id, 1))
}

/// The entry of an inode on which the caller took a lookup reference.
pub(crate) fn entry(engine: &Engine, inode: &Ref<Inode>) -> Result<Entry> {
    let state = inode.read()?;
    told(engine, inode.ino, &state, engine.writeback.pending(inode.id, &state))
}

fn told(engine: &Engine, ino: Ino, state: &State, pending: u64) -> Result<Entry> {
    let attr = attr_of(ino, state, engine.core.geometry.sector_size, pending).fs()?;
    Ok(Entry { attr, generation: state.item.generation })
}

/// The directory above a directory; the mount's root is its own parent.
pub(crate) fn parent_id(engine: &Engine, dir: InodeId) -> Result<InodeId> {
    if number(dir)? == engine.root {
        return Ok(dir);
    }
    let view = engine.core.view();
    if engine.subvols.get(dir.tree).is_some_and(|s| s.root_dir == dir.objectid) {
        return Ok(subvol::parent_of(&view, dir.tree)?.unwrap_or(dir));
    }
    drop(view);
    match names::parent(&engine.core, dir)? {
        Some((parent, _)) => Ok(InodeId::new(dir.tree, parent)),
        None => Err(Errno::ENOENT.into()),
    }
}
