//! Listing a directory in DIR_INDEX order, which is stable while names come and go.
//!
//! A leaf that cannot be read takes its own names away and no others: a listing goes on behind it,
//! and ends with the error.

use super::lookup::{Destination, entry_of_listed, parent_id, place_of};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::{InodeId, id_of, is_stand_in, number};
use crate::inode::Inode;
use crate::names::{self, Target};
use btrfs_disk::Key;
use btrfs_disk::items::{DirItem, dir_type};
use btrfs_disk::key::kind;
use btrfs_txn::View;
use btrfs_txn::view::Finder;
use vfs::{DirEntry, Entry, Errno, FileKind, FsError, Ino, Result};

/// Names read from the layers at once; inodes are looked at between batches, unlocked.
/// Chosen, not measured.
const BATCH: usize = 256;

/// Listed where a number cannot be told; no inode has it.
const UNNUMBERED: Ino = Ino(u64::MAX);

struct Name {
    index: u64,
    kind: u8,
    /// `None`: it cannot be told.
    place: Option<Destination>,
    name: Vec<u8>,
}

/// Some names in order.
struct Batch {
    names: Vec<Name>,
    /// Where it goes on; `None` if there are no more.
    next: Option<u64>,
    /// Why names between these and the next are not told.
    lost: Option<FsError>,
}

fn kind_of_type(kind: u8) -> FileKind {
    match kind {
        dir_type::DIR => FileKind::Dir,
        dir_type::CHRDEV => FileKind::CharDevice,
        dir_type::BLKDEV => FileKind::BlockDevice,
        dir_type::FIFO => FileKind::Fifo,
        dir_type::SOCK => FileKind::Socket,
        dir_type::SYMLINK => FileKind::Symlink,
        _ => FileKind::File,
    }
}

type Emit<'a> = &'a mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool;

/// `plus`: hand the entry of each inode over with a lookup reference.
pub(crate) fn readdir(
    engine: &Engine,
    dir: Ino,
    offset: u64,
    plus: bool,
    emit: Emit<'_>,
) -> Result<()> {
    if !dots(engine, dir, offset, emit)? || is_stand_in(dir) {
        return Ok(());
    }
    let inode = engine.inodes.get(dir)?;
    let read = |from| read_held(engine, &inode, from);
    let (mut from, mut stop, mut lost) = (offset.max(2), None, None);
    let mut finder = plus.then(|| Finder::new(engine.core.view().store));
    loop {
        let batch = read(from)?;
        for name in &batch.names {
            if stop.is_some_and(|stop| name.index >= stop) {
                return ended(engine, inode.id, offset, lost, read);
            }
            if !emit_one(engine, name, finder.as_mut(), emit)? {
                return Ok(());
            }
        }
        lost = lost.or(batch.lost);
        let Some(next) = batch.next else {
            return ended(engine, inode.id, offset, lost, read);
        };
        // What moves goes to the end: without one, a storm of renames would be followed.
        stop = stop.or_else(|| dir_end(engine, dir).ok());
        from = next;
    }
}

fn read_held(engine: &Engine, inode: &Inode, from: u64) -> Result<Batch> {
    let state = inode.read()?;
    if !state.is_dir() {
        return Err(FsError::from(Errno::ENOTDIR));
    }
    read_batch(engine, inode.id, from)
}

/// A listing of which the caller has had enough at `end`, where names have come since it began.
pub(crate) fn listing_ended(engine: &Engine, dir: Ino, end: u64) -> Result<()> {
    if is_stand_in(dir) {
        return Ok(());
    }
    let inode = engine.inodes.get(dir)?;
    ended(engine, inode.id, end, None, |from| read_held(engine, &inode, from))
}

/// What a listing ends with whose last piece began at `offset` and passed over what is `lost`.
fn ended(
    engine: &Engine,
    dir: InodeId,
    offset: u64,
    lost: Option<FsError>,
    read: impl Fn(u64) -> Result<Batch>,
) -> Result<()> {
    if let Some(error) = lost {
        return Err(error);
    }
    // Earlier pieces may have passed over something, which may be there again.
    let Some(mut at) = engine.lost_names.first(dir).filter(|at| *at < offset) else {
        return Ok(());
    };
    while at < offset {
        let batch = read(at)?;
        if let Some(error) = batch.lost {
            return Err(error);
        }
        let Some(next) = batch.next else { break };
        at = next;
    }
    engine.lost_names.found(dir);
    Ok(())
}

/// Where the directory ends now: no name that comes later has a smaller index.
pub(crate) fn dir_end(engine: &Engine, dir: Ino) -> Result<u64> {
    if is_stand_in(dir) {
        return Ok(2);
    }
    let inode = engine.inodes.get(dir)?;
    let state = inode.read()?;
    match state.dir.next_index() {
        None => names::next_index(&engine.core.view(), inode.id),
        Some(next) => Ok(next),
    }
}

/// `.` at offset 0 and `..` at offset 1; false if `emit` has had enough.
fn dots(engine: &Engine, dir: Ino, offset: u64, emit: Emit<'_>) -> Result<bool> {
    let dot = |ino, name, next| DirEntry { ino, kind: FileKind::Dir, name, next };
    if offset == 0 && !emit(&dot(dir, b".", 1), None) {
        return Ok(false);
    }
    if offset <= 1 {
        let up = if is_stand_in(dir) {
            dir
        } else {
            let id = id_of(dir);
            parent_id(engine, id).and_then(number).unwrap_or(dir)
        };
        return Ok(emit(&dot(up, b"..", 2), None));
    }
    Ok(true)
}

/// What is damaged within a leaf fails the batch that begins with it, so that everything in front
/// has been delivered.
fn read_batch(engine: &Engine, dir: InodeId, from: u64) -> Result<Batch> {
    let view = engine.core.view();
    let at = |index| Key::new(dir.objectid, kind::DIR_INDEX, index);
    let end = Key::new(dir.objectid, kind::DIR_INDEX + 1, 0);
    let mut scan = view.scan_below(dir.tree, at(from), end);
    let (mut names, mut next) = (Vec::new(), from);
    while names.len() < BATCH {
        let (key, bytes) = match scan.next() {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Batch { names, next: None, lost: None }),
            Err(error) => {
                let behind = behind_lost(&view, dir, next)?;
                if !engine.lost_names.passed(dir, next) {
                    return Err(error).fs();
                }
                return Ok(Batch { names, next: behind, lost: Err::<(), _>(error).fs().err() });
            }
        };
        match names::check_index(dir, key.offset) {
            Err(_) if !names.is_empty() => break,
            other => other?,
        }
        for item in DirItem::iter(&bytes) {
            let item = item.fs()?;
            let target = Target { location: item.location, kind: item.kind };
            let place = place_of(engine, dir, item.name, target).ok();
            let (kind, name) = (item.kind, item.name.to_vec());
            names.push(Name { index: key.offset, kind, place, name });
        }
        next = key.offset + 1;
    }
    Ok(Batch { names, next: Some(next), lost: None })
}

/// The first index that does not lie in the leaf where `from` belongs, which cannot be read.
fn behind_lost(view: &View<'_>, dir: InodeId, from: u64) -> Result<Option<u64>> {
    let at = Key::new(dir.objectid, kind::DIR_INDEX, from);
    let next = view.behind_lost(dir.tree, &at).fs()?;
    let mine = |key: &Key| (key.objectid, key.kind) == (dir.objectid, kind::DIR_INDEX);
    Ok(next.filter(|key| mine(key) && key.offset > from).map(|key| key.offset))
}

fn number_of(place: Destination) -> Result<Ino> {
    match place {
        Destination::Inode(id) | Destination::Root(id) => number(id),
        Destination::StandIn(ino) => Ok(ino),
    }
}

/// Each name is listed: what is wrong with what it leads to is for who asks for that.
fn emit_one(
    engine: &Engine,
    name: &Name,
    finder: Option<&mut Finder<'_>>,
    emit: Emit<'_>,
) -> Result<bool> {
    let number = name.place.and_then(|place| number_of(place).ok());
    let entry = DirEntry {
        ino: number.unwrap_or(UNNUMBERED),
        kind: kind_of_type(name.kind),
        name: &name.name,
        next: name.index + 1,
    };
    let (Some(finder), Some(place), Some(ino)) = (finder, name.place, number) else {
        return Ok(emit(&entry, None));
    };
    match entry_of_listed(engine, place, finder) {
        Ok(full) => {
            let taken = emit(&entry, Some(&full));
            if !taken && !is_stand_in(ino) {
                engine.orphans.forget(id_of(ino), 1);
            }
            Ok(taken)
        }
        // A damaged or missing inode is still listed: whoever asks for it hears of it. So
        // is, now and then, one that was removed since the batch was read.
        Err(_) => Ok(emit(&entry, None)),
    }
}
