//! Names that the parent has and the new subvolume has not: moved, linked and removed in an
//! order that works for who does one step after the other.
//!
//! Each inode is settled by itself: its new names are made, by renames of old ones as long as
//! there are some. What has the place of a new name is settled first; where that goes round in a
//! circle, or is not to be moved but removed later, it is put aside under a name that nobody has
//! (`oINODE-GENERATION-N`, at the top). A directory that is to go into one that lies in itself
//! waits in the same way for what must come out first.
//!
//! Invariants: `pending` has all names that the receiver has and the new tree has not, and no
//! others; a name that is free in it is free. What was settled stays.

use crate::changes::Change;
use crate::error::{Error, Result};
use crate::namespace::{Dir, Namespace};
use crate::out::Out;
use crate::take_back::take_back;
use crate::tree::{Name, is_dir, names_of};
use btrfs_disk::ids::{FIRST_FREE_OBJECTID as ROOT, MAX_PATH_NAMES};
use btrfs_send::Command;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// How many wait for each other at most before something is put aside.
/// Chosen, not measured.
const PATIENCE: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Busy,
    Done,
}

struct Entity {
    kept: bool,
    dir: bool,
    generation: u64,
    state: State,
    /// Names that must go, as the receiver has them.
    removed: Vec<Name>,
    /// Names to be made, as the new tree has them.
    added: Vec<Name>,
    /// A name that stays; of directories none.
    stays: Option<(Dir, Vec<u8>)>,
}

pub(crate) struct Moves<'s> {
    pub(crate) space: Namespace<'s>,
    entities: BTreeMap<u64, Entity>,
    pending: HashMap<Name, u64>,
    /// Pending names in a directory.
    inside: HashMap<u64, usize>,
    /// Directories whose number belongs to another inode now.
    replaced: Vec<u64>,
}

impl<'s> Moves<'s> {
    pub(crate) fn new(space: Namespace<'s>) -> Moves<'s> {
        let (entities, pending, inside) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Moves { space, entities, pending, inside, replaced: Vec::new() }
    }

    /// Takes in what a change says of names.
    pub(crate) fn collect(&mut self, change: &Change) -> Result<()> {
        if change.ino == ROOT {
            return Ok(());
        }
        let Some(left) = &self.space.left else { return Ok(()) };
        let Some(item) = left.inode(change.ino)? else { return Ok(()) };
        let was = left.names(change.ino)?;
        let kept = self.space.is_kept(change.ino)?;
        let (removed, added, stays) = match kept {
            false => (was, Vec::new(), None),
            true => {
                let (removed, added) = renamed(change)?;
                let gone: HashSet<&Name> = removed.iter().collect();
                let stays = was.into_iter().find(|name| !gone.contains(name));
                (removed, added, stays.map(|name| (Dir::Old(name.dir), name.name)))
            }
        };
        if !kept && is_dir(&item) && self.space.right.inode(change.ino)?.is_some() {
            self.replaced.push(change.ino);
        }
        if removed.is_empty() && added.is_empty() {
            return Ok(());
        }
        for name in &removed {
            self.note(name.clone(), change.ino);
        }
        let (dir, generation, state) = (is_dir(&item), item.generation, State::Waiting);
        let entity = Entity { kept, dir, generation, state, removed, added, stays };
        self.entities.insert(change.ino, entity);
        Ok(())
    }

    fn note(&mut self, name: Name, ino: u64) {
        *self.inside.entry(name.dir).or_default() += 1;
        self.pending.insert(name, ino);
    }

    /// The receiver has that name no more.
    fn forget(&mut self, name: &Name) {
        if self.pending.remove(name).is_some()
            && let Some(count) = self.inside.get_mut(&name.dir)
        {
            *count -= 1;
        }
    }

    /// A name in a directory whose number has gone over to another looks as if it had stayed.
    fn find_replaced(&mut self) -> Result<()> {
        for dir in std::mem::take(&mut self.replaced) {
            let Some(left) = &self.space.left else { return Ok(()) };
            for (child, name) in left.entries(dir)? {
                let name = Name { dir, name };
                if !self.pending.contains_key(&name) {
                    self.move_over(child, name)?;
                }
            }
        }
        Ok(())
    }

    fn move_over(&mut self, child: u64, name: Name) -> Result<()> {
        let Some(left) = &self.space.left else { return Ok(()) };
        let Some(item) = left.inode(child)? else { return Ok(()) };
        let was = left.names(child)?;
        let is = self.space.right.names(child)?;
        let kept = self.space.is_kept(child)?;
        let (dir, generation) = (is_dir(&item), item.generation);
        let (state, removed, added) = (State::Waiting, Vec::new(), Vec::new());
        let new = Entity { kept, dir, generation, state, removed, added, stays: None };
        let entity = self.entities.entry(child).or_insert(new);
        entity.removed.push(name.clone());
        if kept && is.contains(&name) && !entity.added.contains(&name) {
            entity.added.push(name.clone());
        }
        let stays = was.into_iter().find(|name| !entity.removed.contains(name));
        entity.stays = stays.filter(|_| kept).map(|name| (Dir::Old(name.dir), name.name));
        self.note(name, child);
        Ok(())
    }

    /// Plays all of it.
    pub(crate) fn play(&mut self, out: &mut Out<'_>) -> Result<()> {
        self.find_replaced()?;
        let kept: Vec<u64> =
            self.entities.iter().filter(|(_, e)| e.kept).map(|(ino, _)| *ino).collect();
        for ino in kept {
            self.settle(ino, 0, out)?;
        }
        self.remove_gone(out)
    }

    fn entity(&mut self, ino: u64) -> Result<&mut Entity> {
        self.entities.get_mut(&ino).ok_or_else(|| puzzled(ino))
    }

    /// From here on the new tree's names of the inode are the receiver's.
    fn settle(&mut self, ino: u64, depth: usize, out: &mut Out<'_>) -> Result<()> {
        if self.entity(ino)?.state != State::Waiting {
            return Ok(());
        }
        self.entity(ino)?.state = State::Busy;
        while let Some(target) = self.entity(ino)?.added.last().cloned() {
            let dir = self.make_room(ino, &target, depth, out)?;
            let to = self.space.path_in(dir, &target.name)?;
            let entity = self.entity(ino)?;
            entity.added.pop();
            let (is_dir, old) = (entity.dir, entity.removed.pop());
            let stays = entity.stays.get_or_insert((dir, target.name.clone())).clone();
            match old {
                Some(old) => {
                    let path = self.space.path_in(Dir::Old(old.dir), &old.name)?;
                    out.put(&Command::Rename { path: &path, to: &to })?;
                    self.forget(&old);
                }
                None => {
                    let old = self.space.path_in(stays.0, &stays.1)?;
                    out.put(&Command::Link { path: &to, old: &old })?;
                }
            }
            if is_dir {
                self.space.note_moved(Dir::Old(ino), dir, &target.name);
            }
        }
        while let Some(old) = self.entity(ino)?.removed.pop() {
            self.unlink(&old, out)?;
        }
        self.entity(ino)?.state = State::Done;
        Ok(())
    }

    fn unlink(&mut self, name: &Name, out: &mut Out<'_>) -> Result<()> {
        let path = self.space.path_in(Dir::Old(name.dir), &name.name)?;
        out.put(&Command::Unlink { path: &path })?;
        self.forget(name);
        Ok(())
    }

    /// Until `target` is free, its directory there, and the inode not above it.
    fn make_room(
        &mut self,
        ino: u64,
        target: &Name,
        depth: usize,
        out: &mut Out<'_>,
    ) -> Result<Dir> {
        loop {
            let dir = self.space.dir(target.dir)?;
            if let Dir::New(new) = dir {
                self.make(new, depth, out)?;
            }
            if self.entity(ino)?.dir
                && let Some(between) = self.between(ino, dir)?
            {
                match self.entity(between)?.state == State::Waiting && depth < PATIENCE {
                    true => self.settle(between, depth + 1, out)?,
                    false => self.put_aside(between, out)?,
                }
                continue;
            }
            match self.occupant(dir, &target.name) {
                Some(other) => self.clear(other, dir, &target.name, depth, out)?,
                None => return Ok(dir),
            }
        }
    }

    fn occupant(&self, dir: Dir, name: &[u8]) -> Option<u64> {
        let Dir::Old(dir) = dir else { return None };
        self.pending.get(&Name { dir, name: name.to_vec() }).copied()
    }

    /// If `dir` lies in the directory `ino`: which one on the way is still to be moved.
    fn between(&mut self, ino: u64, dir: Dir) -> Result<Option<u64>> {
        let (mut at, mut movable) = (dir, None);
        for _ in 0..=MAX_PATH_NAMES {
            if at == Dir::Old(ino) {
                return movable.map(Some).ok_or_else(|| puzzled(ino));
            }
            if let Dir::Old(number) = at
                && self.entities.get(&number).is_some_and(|e| e.kept && !e.added.is_empty())
            {
                movable = Some(number);
            }
            match self.space.place(at)? {
                Some((above, _)) => at = above,
                None => return Ok(None),
            }
        }
        // Round in a circle, on a damaged volume.
        Err(puzzled(ino))
    }

    /// Takes the name from who has it.
    fn clear(
        &mut self,
        other: u64,
        dir: Dir,
        name: &[u8],
        depth: usize,
        out: &mut Out<'_>,
    ) -> Result<()> {
        let Dir::Old(dir) = dir else { return Ok(()) };
        let name = Name { dir, name: name.to_vec() };
        let empty = self.inside.get(&other).copied().unwrap_or(0) == 0;
        let entity = self.entity(other)?;
        if entity.kept && entity.state == State::Waiting && depth < PATIENCE {
            return self.settle(other, depth + 1, out);
        }
        let has_more = entity.stays.is_some() || entity.removed.len() > 1;
        match (entity.kept, entity.dir) {
            (true, false) if has_more => {
                entity.removed.retain(|old| *old != name);
                self.unlink(&name, out)
            }
            (false, false) => {
                entity.removed.retain(|old| *old != name);
                self.unlink(&name, out)
            }
            (false, true) if empty => self.rmdir(other, out).map(drop),
            _ => self.put_aside_as(other, &name, out),
        }
    }

    fn put_aside(&mut self, ino: u64, out: &mut Out<'_>) -> Result<()> {
        let name = self.entity(ino)?.removed.last().cloned().ok_or_else(|| puzzled(ino))?;
        self.put_aside_as(ino, &name, out)
    }

    /// Gives what has the name another one, at the top.
    fn put_aside_as(&mut self, ino: u64, name: &Name, out: &mut Out<'_>) -> Result<()> {
        let generation = self.entity(ino)?.generation;
        let mut number = 0;
        let aside = loop {
            let aside = format!("o{ino}-{generation}-{number}").into_bytes();
            if !self.is_taken(&aside)? {
                break Name { dir: ROOT, name: aside };
            }
            number += 1;
        };
        let path = self.space.path_in(Dir::Old(name.dir), &name.name)?;
        out.put(&Command::Rename { path: &path, to: &aside.name })?;
        self.forget(name);
        self.note(aside.clone(), ino);
        let entity = self.entity(ino)?;
        entity.removed.retain(|old| old != name);
        entity.removed.push(aside.clone());
        if entity.dir {
            self.space.note_moved(Dir::Old(ino), Dir::Old(ROOT), &aside.name);
        }
        Ok(())
    }

    fn is_taken(&self, name: &[u8]) -> Result<bool> {
        let aside = Name { dir: ROOT, name: name.to_vec() };
        let before = match &self.space.left {
            Some(left) => left.has_name(ROOT, name)?,
            None => false,
        };
        Ok(before || self.space.right.has_name(ROOT, name)? || self.pending.contains_key(&aside))
    }

    /// Makes a new directory, and those above it that are missing.
    pub(crate) fn make(&mut self, ino: u64, depth: usize, out: &mut Out<'_>) -> Result<()> {
        let (mut at, mut missing) = (ino, Vec::new());
        while !self.space.is_made(at) {
            let name = self.space.right.any_name(at)?.ok_or_else(|| puzzled(at))?;
            let above = self.space.dir(name.dir)?;
            missing.push((at, above, name.name));
            match above {
                Dir::New(above) if missing.len() < MAX_PATH_NAMES => at = above,
                Dir::New(_) => return Err(puzzled(ino)),
                Dir::Old(_) => break,
            }
        }
        for (ino, dir, name) in missing.into_iter().rev() {
            while let Some(other) = self.occupant(dir, &name) {
                self.clear(other, dir, &name, depth + 1, out)?;
            }
            // Who was in the way may have waited for this one.
            if !self.space.is_made(ino) {
                let path = self.space.path_in(dir, &name)?;
                let item = self.space.right.inode(ino)?.ok_or_else(|| puzzled(ino))?;
                out.put(&Command::MkDir { path: &path, ino })?;
                self.space.note_made(ino);
                take_back(&mut self.space, dir, &item, &path, out)?;
            }
        }
        Ok(())
    }

    /// What is left has no place in the new tree.
    fn remove_gone(&mut self, out: &mut Out<'_>) -> Result<()> {
        let gone: Vec<u64> =
            self.entities.iter().filter(|(_, e)| !e.kept).map(|(ino, _)| *ino).collect();
        let mut dirs = BTreeSet::new();
        for ino in gone {
            if self.entity(ino)?.dir {
                dirs.insert(ino);
                continue;
            }
            while let Some(name) = self.entity(ino)?.removed.pop() {
                self.unlink(&name, out)?;
            }
        }
        let is_empty = |moves: &Moves<'_>, ino: &u64| moves.inside.get(ino).is_none_or(|n| *n == 0);
        let mut ready: Vec<u64> = dirs.iter().copied().filter(|ino| is_empty(self, ino)).collect();
        while let Some(ino) = ready.pop() {
            let above = self.rmdir(ino, out)?;
            if let Some(above) = above.filter(|above| dirs.contains(above) && is_empty(self, above))
            {
                ready.push(above);
            }
        }
        match self.pending.values().next() {
            Some(ino) => Err(puzzled(*ino)),
            None => Ok(()),
        }
    }

    /// The directory that it lay in; `None` if it was removed before.
    fn rmdir(&mut self, ino: u64, out: &mut Out<'_>) -> Result<Option<u64>> {
        let Some(name) = self.entity(ino)?.removed.pop() else { return Ok(None) };
        let path = self.space.path_in(Dir::Old(name.dir), &name.name)?;
        out.put(&Command::RmDir { path: &path })?;
        self.forget(&name);
        Ok(Some(name.dir))
    }
}

/// Names that only the left side has, and that only the right side has.
fn renamed(change: &Change) -> Result<(Vec<Name>, Vec<Name>)> {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for both in &change.names {
        if let Some(data) = &both.left {
            names_of(both.key, data, &mut left)?;
        }
        if let Some(data) = &both.right {
            names_of(both.key, data, &mut right)?;
        }
    }
    // A file may have tens of thousands of names.
    let had: HashSet<Name> = left.iter().cloned().collect();
    let has: HashSet<&Name> = right.iter().collect();
    left.retain(|name| !has.contains(name));
    right.retain(|name| !had.contains(name));
    Ok((left, right))
}

fn puzzled(ino: u64) -> Error {
    Error::Refused(format!("the names of inode {ino} do not fit together; check the volume"))
}
