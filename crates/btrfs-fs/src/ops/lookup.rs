//! Names to inodes, and the way into subvolumes.

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::{InodeId, is_stand_in, number, stand_in};
use crate::inode::{Inode, attr_of, time_of};
use crate::names::{self, Target};
use crate::subvol;
use btrfs_disk::TreeId;
use btrfs_disk::ids::FIRST_FREE_OBJECTID;
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
    let state = dir.read()?;
    if !state.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    let lacks = name.len() <= vfs::NAME_MAX && state.dir.surely_lacks(name);
    drop(state);
    if name == b".." {
        return entry_by_id(engine, parent_id(engine, dir.id)?);
    }
    if lacks {
        return Err(Errno::ENOENT.into());
    }
    let view = engine.core.view();
    let target = names::lookup(&view, dir.id, name)?.ok_or(FsError::Posix(Errno::ENOENT))?;
    drop(view);
    entry_of(engine, dir.id, name, target)
}

/// The entry of a name that was just found, with one lookup reference.
pub(crate) fn entry_of(
    engine: &Engine,
    dir: InodeId,
    name: &[u8],
    target: Target,
) -> Result<Entry> {
    if !target.is_subvolume() {
        return entry_by_id(engine, InodeId::new(dir.tree, target.location.objectid));
    }
    match subvolume_root(engine, dir, name, target)? {
        SubvolumeEntry::Root(id) => {
            if engine.subvols.is_coming(id.tree) {
                // A snapshot that the next commit makes.
                engine.committer.commit_written_back()?;
            }
            entry_by_id(engine, id)
        }
        SubvolumeEntry::StandIn(ino) => {
            Ok(Entry { attr: stand_in_attr(engine, ino), generation: 0 })
        }
    }
}

pub(crate) enum SubvolumeEntry {
    Root(InodeId),
    StandIn(Ino),
}

/// Where an entry that names a subvolume leads.
pub(crate) fn subvolume_root(
    engine: &Engine,
    dir: InodeId,
    name: &[u8],
    target: Target,
) -> Result<SubvolumeEntry> {
    let child = TreeId(target.location.objectid);
    if engine.subvols.is_coming(child) {
        return Ok(SubvolumeEntry::Root(InodeId::new(child, FIRST_FREE_OBJECTID)));
    }
    if let Some(subvolume) = engine.subvols.get(child)
        && subvol::hangs_here(&engine.core.view(), dir, name, child)?
    {
        return Ok(SubvolumeEntry::Root(InodeId::new(child, subvolume.root_dir)));
    }
    Ok(SubvolumeEntry::StandIn(stand_in(dir.tree, child)?))
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
    match entry(engine, &inode) {
        Ok(entry) => Ok(entry),
        Err(error) => {
            engine.orphans.forget(id, 1);
            Err(error)
        }
    }
}

/// The entry of an inode on which the caller took a lookup reference.
pub(crate) fn entry(engine: &Engine, inode: &Ref<Inode>) -> Result<Entry> {
    let state = inode.read()?;
    let pending = engine.writeback.pending(inode.id, &state);
    let attr = attr_of(inode.ino, &state, engine.core.geometry.sector_size, pending).fs()?;
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
    match names::any_parent(&view, dir)? {
        Some((parent, _)) => Ok(InodeId::new(dir.tree, parent)),
        None => Err(Errno::ENOENT.into()),
    }
}
