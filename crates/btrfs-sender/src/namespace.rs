//! Where the receiver has which directory, at every moment of the stream.
//!
//! A directory of the parent is where the parent has it until it is moved; a new one is where
//! the new tree has it, from when it is made on.

use crate::error::{Error, Result};
use crate::inherited::Inherited;
use crate::tree::Tree;
use btrfs_disk::ids::{FIRST_FREE_OBJECTID as ROOT, MAX_PATH_NAMES};
use btrfs_disk::items::{InodeItem, inode_flags, mode};
use std::collections::{HashMap, HashSet};

/// A directory of the receiver's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Dir {
    /// Of the parent's number; it may be gone in the new tree, or somebody else.
    Old(u64),
    /// Only the new tree has it.
    New(u64),
}

pub(crate) struct Namespace<'s> {
    pub(crate) left: Option<Tree<'s>>,
    pub(crate) right: Tree<'s>,
    /// Those that are no more where the parent has them.
    moved: HashMap<Dir, (Dir, Vec<u8>)>,
    made: HashSet<u64>,
    paths: HashMap<Dir, Vec<u8>>,
    kept: HashMap<u64, bool>,
    /// What a directory of the parent hands down: of the last one that was asked for.
    inherited: (u64, Inherited),
}

/// Entries of a cache, at most.
/// Chosen, not measured.
const CACHED: usize = 1 << 16;

impl<'s> Namespace<'s> {
    pub(crate) fn new(left: Option<Tree<'s>>, right: Tree<'s>) -> Namespace<'s> {
        let made = HashSet::from([ROOT]);
        let (moved, paths, kept) = (HashMap::new(), HashMap::new(), HashMap::new());
        let inherited = (0, Inherited::default());
        Namespace { left, right, moved, made, paths, kept, inherited }
    }

    /// Whether both trees have the inode, and it is the same one. The root directory is always: no other can be made.
    pub(crate) fn is_kept(&mut self, ino: u64) -> Result<bool> {
        if let Some(known) = self.kept.get(&ino) {
            return Ok(*known);
        }
        let kept = match &self.left {
            Some(_) if ino == ROOT => true,
            Some(left) => is_same(left, &self.right, ino)?,
            None => false,
        };
        if self.kept.len() >= CACHED {
            self.kept.clear();
        }
        self.kept.insert(ino, kept);
        Ok(kept)
    }

    /// The directory that the new tree has by this number.
    pub(crate) fn dir(&mut self, ino: u64) -> Result<Dir> {
        Ok(if self.is_kept(ino)? { Dir::Old(ino) } else { Dir::New(ino) })
    }

    /// New directories hand nothing down yet.
    pub(crate) fn inherited(&mut self, dir: Dir) -> Result<Inherited> {
        let (Dir::Old(ino), Some(left)) = (dir, &self.left) else {
            return Ok(Inherited::default());
        };
        if self.inherited.0 != ino {
            let names = left.xattrs(ino)?.into_iter().map(|(name, _)| name);
            let flags = left.inode(ino)?.map_or(0, |item| item.flags);
            self.inherited = (ino, Inherited::of(flags, names));
        }
        Ok(self.inherited.1)
    }

    pub(crate) fn is_made(&self, ino: u64) -> bool {
        self.made.contains(&ino)
    }

    pub(crate) fn note_made(&mut self, ino: u64) {
        self.made.insert(ino);
    }

    pub(crate) fn note_moved(&mut self, dir: Dir, to: Dir, name: &[u8]) {
        self.moved.insert(dir, (to, name.to_vec()));
        self.paths.clear();
    }

    /// The directory above, and the name in it; `None` for the root.
    pub(crate) fn place(&mut self, dir: Dir) -> Result<Option<(Dir, Vec<u8>)>> {
        if let Some(place) = self.moved.get(&dir) {
            return Ok(Some(place.clone()));
        }
        let found = match (dir, &self.left) {
            (Dir::Old(ROOT) | Dir::New(ROOT), _) => return Ok(None),
            (Dir::Old(ino), Some(left)) => left.any_name(ino)?.map(|n| (Dir::Old(n.dir), n.name)),
            (Dir::Old(_), None) => None,
            (Dir::New(ino), _) => match self.right.any_name(ino)? {
                Some(name) => Some((self.dir(name.dir)?, name.name)),
                None => None,
            },
        };
        found.map(Some).ok_or_else(|| lost(dir))
    }

    /// Its path, as the receiver has it now.
    pub(crate) fn path(&mut self, dir: Dir) -> Result<Vec<u8>> {
        let (mut at, mut names) = (dir, Vec::new());
        let front = loop {
            if let Some(known) = self.paths.get(&at) {
                break known.clone();
            }
            match self.place(at)? {
                None => break Vec::new(),
                Some((above, name)) => {
                    names.push(name);
                    at = above;
                }
            }
            if names.len() > MAX_PATH_NAMES {
                return Err(Error::Refused(format!("{dir:?} lies deeper than any path leads")));
            }
        };
        let path = names.iter().rev().fold(front, |path, name| join(&path, name));
        if self.paths.len() >= CACHED {
            self.paths.clear();
        }
        self.paths.insert(dir, path.clone());
        Ok(path)
    }

    pub(crate) fn path_in(&mut self, dir: Dir, name: &[u8]) -> Result<Vec<u8>> {
        Ok(join(&self.path(dir)?, name))
    }
}

fn lost(dir: Dir) -> Error {
    Error::Refused(format!("no name leads to {dir:?}"))
}

pub(crate) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Whether content is written in place.
pub(crate) fn is_nocow(item: &InodeItem) -> bool {
    item.flags & inode_flags::NODATACOW != 0
}

/// Whether every read of the file is verified (fs-verity).
pub(crate) fn is_verified(item: &InodeItem) -> bool {
    item.flags & inode_flags::RO_VERITY != 0
}

/// A number is given again after its inode is gone: then the generation is another, unless that was
/// within a commit or each tree has an inode of its own of it.
fn is_same(left: &Tree<'_>, right: &Tree<'_>, ino: u64) -> Result<bool> {
    let (Some(old), Some(new)) = (left.inode(ino)?, right.inode(ino)?) else { return Ok(false) };
    let kind = |item: &InodeItem| item.mode & mode::S_IFMT;
    let device = |item: &InodeItem| match kind(item) {
        mode::S_IFCHR | mode::S_IFBLK => item.rdev,
        _ => 0,
    };
    if old.generation != new.generation || kind(&old) != kind(&new) || device(&old) != device(&new)
    {
        return Ok(false);
    }
    match kind(&old) {
        mode::S_IFLNK => Ok(left.content_begins(ino)? == right.content_begins(ino)?),
        // That changes as long as a file is empty, and the receiver's has the parent's content.
        mode::S_IFREG if is_nocow(&old) != is_nocow(&new) => Ok(false),
        // Of what is verified nothing changes, nor what it is verified by.
        mode::S_IFREG if is_verified(&old) => {
            Ok(is_verified(&new) && left.verity(ino)? == right.verity(ino)?)
        }
        _ => Ok(true),
    }
}
