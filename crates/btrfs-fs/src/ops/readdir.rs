//! Listing a directory in DIR_INDEX order, which is stable while names come and go.

use super::lookup::{Place, entry_of, parent_id, place_of};
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::ino::{InodeId, id_of, is_stand_in, number};
use crate::names::{self, Target};
use btrfs_disk::Key;
use btrfs_disk::items::{DirItem, dir_type};
use btrfs_disk::key::kind;
use vfs::{DirEntry, Entry, Errno, FileKind, Ino, Result};

/// Names read from the layers at once; inodes are loaded between batches, unlocked.
const BATCH: usize = 256;

/// Listed where a number cannot be told; no inode has it.
const UNNUMBERED: Ino = Ino(u64::MAX);

struct Name {
    index: u64,
    kind: u8,
    /// `None`: it cannot be told.
    place: Option<Place>,
    name: Vec<u8>,
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

/// `plus`: load each inode and hand its entry over with a lookup reference.
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
    let (mut from, mut stop) = (offset.max(2), None);
    loop {
        let (batch, end) = {
            let state = inode.read()?;
            if !state.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            read_batch(engine, inode.id, from)?
        };
        let Some(last) = batch.last() else { return Ok(()) };
        let next = last.index + 1;
        for name in &batch {
            if stop.is_some_and(|stop| name.index >= stop) {
                return Ok(());
            }
            if !emit_one(engine, name, plus, emit)? {
                return Ok(());
            }
        }
        if end {
            return Ok(());
        }
        // What moves goes to the end: without one, a storm of renames would be followed.
        stop = stop.or_else(|| dir_end(engine, dir).ok());
        from = next;
    }
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

/// Some names in order, and whether there are no more. What is damaged fails the batch that
/// begins with it, so that everything in front has been delivered.
fn read_batch(engine: &Engine, dir: InodeId, from: u64) -> Result<(Vec<Name>, bool)> {
    let view = engine.core.view();
    let mut scan = view.scan(dir.tree, Key::new(dir.objectid, kind::DIR_INDEX, from));
    let mut batch = Vec::new();
    while batch.len() < BATCH {
        match scan.next().fs()? {
            Some((key, bytes)) if key.kind == kind::DIR_INDEX => {
                match names::check_index(dir, key.offset) {
                    Err(_) if !batch.is_empty() => return Ok((batch, false)),
                    other => other?,
                }
                for item in DirItem::iter(&bytes) {
                    let item = item.fs()?;
                    let target = Target { location: item.location, kind: item.kind };
                    let place = place_of(engine, dir, item.name, target).ok();
                    let (kind, name) = (item.kind, item.name.to_vec());
                    batch.push(Name { index: key.offset, kind, place, name });
                }
            }
            _ => return Ok((batch, true)),
        }
    }
    Ok((batch, false))
}

fn number_of(place: Place) -> Result<Ino> {
    match place {
        Place::Inode(id) | Place::Root(id) => number(id),
        Place::StandIn(ino) => Ok(ino),
    }
}

/// Each name is listed: what is wrong with what it leads to is for who asks for that.
fn emit_one(engine: &Engine, name: &Name, plus: bool, emit: Emit<'_>) -> Result<bool> {
    let number = name.place.and_then(|place| number_of(place).ok());
    let entry = DirEntry {
        ino: number.unwrap_or(UNNUMBERED),
        kind: kind_of_type(name.kind),
        name: &name.name,
        next: name.index + 1,
    };
    let (true, Some(place), Some(ino)) = (plus, name.place, number) else {
        return Ok(emit(&entry, None));
    };
    match entry_of(engine, place) {
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
