//! Which files with several names were copied, so that their other names become links.
//!
//! Several copies may share one of these. Who writes over what is there asks `is_copy` first
//! and replaces such files, so that a link is only made to what was copied.
//!
//! Into a volume a link is made for what has several names, and is what it was when it was copied. The number of a
//! host's inode alone does not say that: who removes a file sets its number free, and the next file has it.

use super::host::{HostDir, HostStat};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use vfs::{FileKind, FileSystem, Ino, Result, Timestamp};

/// Into a volume. Keeps a reference on each inode until the last of its names was seen.
pub struct ImportLinks<'f> {
    fs: &'f dyn FileSystem,
    /// By the host's device and inode number.
    known: RefCell<HashMap<(u64, u64), Imported>>,
    copies: RefCell<HashSet<Ino>>,
}

struct Imported {
    ino: Ino,
    names_left: u64,
    was: Content,
}

/// What another file with the same inode number has otherwise, or is no other to who reads it. Owner, permissions
/// and ctime are not of it: they change with what is done to one of the names.
type Content = (Option<FileKind>, u64, u64, Timestamp);

fn content(meta: &HostStat) -> Content {
    (meta.kind(), meta.rdev, meta.size, meta.mtime)
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
    pub(super) fn insert(&self, meta: &HostStat, ino: Ino) {
        let names_left = meta.nlink.saturating_sub(1);
        if names_left == 0 {
            return self.fs.forget(ino, 1);
        }
        self.remove(meta);
        self.copies.borrow_mut().insert(ino);
        let imported = Imported { ino, names_left, was: content(meta) };
        self.known.borrow_mut().insert(meta.key, imported);
    }

    /// The copy of `meta`, if there is one.
    pub(super) fn get(&self, meta: &HostStat) -> Result<Option<Ino>> {
        let Some((ino, is_same)) = self
            .known
            .borrow()
            .get(&meta.key)
            .map(|imported| (imported.ino, meta.nlink > 1 && imported.was == content(meta)))
        else {
            return Ok(None);
        };
        let is_there = is_same && self.fs.getattr(ino)?.nlink > 0;
        if !is_there {
            self.remove(meta);
        }
        Ok(is_there.then_some(ino))
    }

    /// One more name was seen.
    pub(super) fn seen(&self, meta: &HostStat) {
        let last = self.known.borrow_mut().get_mut(&meta.key).is_some_and(|imported| {
            imported.names_left -= 1;
            imported.names_left == 0
        });
        if last {
            self.remove(meta);
        }
    }

    fn remove(&self, meta: &HostStat) {
        if let Some(Imported { ino, .. }) = self.known.borrow_mut().remove(&meta.key) {
            self.copies.borrow_mut().remove(&ino);
            self.fs.forget(ino, 1);
        }
    }
}

impl Drop for ImportLinks<'_> {
    fn drop(&mut self) {
        self.known.borrow().values().for_each(|imported| self.fs.forget(imported.ino, 1));
    }
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
    pub fn is_copy(&self, stat: &HostStat) -> bool {
        self.copies.borrow().contains_key(&stat.key)
    }

    /// The name `path` of a file is gone.
    pub fn removed(&self, path: &Path, stat: &HostStat) {
        let copy = self.copies.borrow().get(&stat.key).copied();
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

    /// `file` was just made at `path` as a copy of `ino`.
    pub(super) fn insert(&self, ino: Ino, path: &Path, file: (u64, u64), names_left: u32) {
        let copied = Copied { path: path.to_owned(), file, names_left };
        self.forget(ino);
        self.copies.borrow_mut().insert(file, ino);
        self.known.borrow_mut().insert(ino, copied);
    }

    /// Makes `name` in `dir` another name of the copy of `ino`; false if there is none.
    pub(super) fn link(&self, ino: Ino, dir: &HostDir, name: &[u8]) -> io::Result<bool> {
        let (there, last) = match self.known.borrow_mut().get_mut(&ino) {
            None => return Ok(false),
            Some(copied) => {
                let there = dir.link(&copied.path, copied.file, name)?;
                if there {
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

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::RefFs;
    use testkit::oracle::TempDir;
    use vfs::Context;

    /// As when both names of the copied file went, and another file was made with its inode number.
    #[test]
    fn another_file_with_the_number_of_a_copied_one_is_no_copy() {
        let top = TempDir::new("reused").unwrap();
        let dir = HostDir::open(top.path()).unwrap();
        drop(dir.make_file(b"a").unwrap());
        let file = HostStat { nlink: 3, ..dir.stat(b"a", false).unwrap().unwrap() };
        let (fs, cx) = (RefFs::new(), Context::default());
        let later = Timestamp { secs: file.mtime.secs + 1, ..file.mtime };
        let others = [
            HostStat { nlink: 1, ..file },
            HostStat { size: 1, ..file },
            HostStat { mtime: later, ..file },
            HostStat { mode: libc::S_IFIFO | 0o644, ..file },
        ];
        for (number, other) in others.iter().enumerate() {
            let (links, name) = (ImportLinks::new(&fs), [b'0' + number as u8]);
            let ino = fs.mknod(&cx, fs.root(), &name, FileKind::File, 0o600, 0).unwrap().attr.ino;
            links.insert(&file, ino);
            let same = HostStat { nlink: 2, ctime: later, mode: file.mode ^ 0o111, ..file };
            assert_eq!(links.get(&same).unwrap(), Some(ino));
            assert_eq!(links.get(other).unwrap(), None, "{number}");
            // Nor is it asked again.
            assert!(!links.is_copy(ino) && links.get(&file).unwrap().is_none());
        }
    }
}
