//! Which files with several names were copied, so that their other names become links.
//!
//! Several copies may share one of these. Who writes over what is there asks `is_copy` first
//! and replaces such files, so that a link is only made to what was copied.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vfs::{FileSystem, Ino, Result};

/// Into a volume. Keeps a reference on each inode until the last of its names was seen.
pub struct ImportLinks<'f> {
    fs: &'f dyn FileSystem,
    /// Copy and names still to come, by the host's device and inode number.
    known: RefCell<HashMap<(u64, u64), (Ino, u64)>>,
    copies: RefCell<HashSet<Ino>>,
}

impl<'f> ImportLinks<'f> {
    /// For copies into this volume.
    pub fn new(fs: &'f dyn FileSystem) -> ImportLinks<'f> {
        ImportLinks { fs, known: RefCell::default(), copies: RefCell::default() }
    }

    /// Whether other names may still become links to `ino`.
    pub fn is_copy(&self, ino: Ino) -> bool {
        self.copies.borrow().contains(&ino)
    }

    /// Takes over a reference on `ino`, the copy of `meta`.
    pub(super) fn insert(&self, meta: &Metadata, ino: Ino) {
        let left = meta.nlink() - 1;
        if left == 0 {
            return self.fs.forget(ino, 1);
        }
        self.remove(meta);
        self.copies.borrow_mut().insert(ino);
        self.known.borrow_mut().insert(key(meta), (ino, left));
    }

    /// The copy of `meta`, if there is one.
    pub(super) fn get(&self, meta: &Metadata) -> Result<Option<Ino>> {
        let Some(&(ino, _)) = self.known.borrow().get(&key(meta)) else { return Ok(None) };
        let named = self.fs.getattr(ino)?.nlink > 0;
        if !named {
            self.remove(meta);
        }
        Ok(named.then_some(ino))
    }

    /// One more name was seen.
    pub(super) fn seen(&self, meta: &Metadata) {
        let last = self.known.borrow_mut().get_mut(&key(meta)).is_some_and(|(_, left)| {
            *left -= 1;
            *left == 0
        });
        if last {
            self.remove(meta);
        }
    }

    fn remove(&self, meta: &Metadata) {
        if let Some((ino, _)) = self.known.borrow_mut().remove(&key(meta)) {
            self.copies.borrow_mut().remove(&ino);
            self.fs.forget(ino, 1);
        }
    }
}

impl Drop for ImportLinks<'_> {
    fn drop(&mut self) {
        self.known.borrow().values().for_each(|(ino, _)| self.fs.forget(*ino, 1));
    }
}

fn key(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Out of a volume.
#[derive(Default)]
pub struct ExportLinks {
    known: RefCell<HashMap<Ino, Copied>>,
    /// By device and inode number.
    copies: RefCell<HashMap<(u64, u64), Ino>>,
}

struct Copied {
    path: PathBuf,
    /// Which file it was that was made there.
    file: (u64, u64),
    names_left: u32,
}

impl ExportLinks {
    /// Whether other names may still become links to this file.
    pub fn is_copy(&self, meta: &Metadata) -> bool {
        self.copies.borrow().contains_key(&key(meta))
    }

    /// The name `path` of a file is gone.
    pub fn removed(&self, path: &Path, meta: &Metadata) {
        let copy = self.copies.borrow().get(&key(meta)).copied();
        if let Some(ino) = copy
            && self.known.borrow().get(&ino).is_some_and(|copied| copied.path == path)
        {
            self.forget(ino);
        }
    }

    /// The copy of `ino`, if it was made at `from`, is called `to` by now.
    pub fn moved(&self, ino: Ino, from: &Path, to: &Path) {
        if let Some(copied) = self.known.borrow_mut().get_mut(&ino)
            && copied.path == from
        {
            copied.path = to.to_owned();
        }
    }

    fn forget(&self, ino: Ino) {
        if let Some(copied) = self.known.borrow_mut().remove(&ino) {
            self.copies.borrow_mut().remove(&copied.file);
        }
    }

    /// `path` was just made as a copy of `ino`.
    pub(super) fn insert(&self, ino: Ino, path: &Path, names_left: u32) -> io::Result<()> {
        let file = key(&path.symlink_metadata()?);
        let copied = Copied { path: path.to_owned(), file, names_left };
        self.forget(ino);
        self.copies.borrow_mut().insert(file, ino);
        self.known.borrow_mut().insert(ino, copied);
        Ok(())
    }

    /// Makes `path` another name of the copy of `ino`; false if there is none.
    pub(super) fn link(&self, ino: Ino, path: &Path) -> io::Result<bool> {
        let (there, last) = match self.known.borrow_mut().get_mut(&ino) {
            None => return Ok(false),
            Some(copied) => {
                let found = copied.path.symlink_metadata();
                let there = found.is_ok_and(|meta| key(&meta) == copied.file);
                if there {
                    std::fs::hard_link(&copied.path, path)?;
                    copied.names_left = copied.names_left.saturating_sub(1);
                }
                (there, copied.names_left == 0)
            }
        };
        if last || !there {
            self.forget(ino);
        }
        Ok(there)
    }
}
