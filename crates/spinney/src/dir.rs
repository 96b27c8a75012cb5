//! Listing directories and trees.

use crate::error::{Error, Result};
use crate::metadata::{FileType, Metadata};
use crate::tree::walk;
use crate::volume::{At, Volume, bytes};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One name of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    name: OsString,
    path: PathBuf,
    file_type: FileType,
    ino: u64,
}

impl DirEntry {
    /// The name.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The name behind the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What kind of file it is.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// The number of the inode.
    pub fn ino(&self) -> u64 {
        self.ino
    }
}

/// Something that a [`Walk`] came by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WalkEntry {
    path: PathBuf,
    depth: usize,
    metadata: Metadata,
}

impl WalkEntry {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How far below the top; that itself is 0.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// What it is; symbolic links are not followed.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Everything below a directory: see [`Volume::walk`].
pub struct Walk(walk::Walk);

impl Walk {
    /// Does not go into the directory that came last.
    pub fn skip_dir(&mut self) {
        self.0.skip();
    }
}

impl Iterator for Walk {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Result<WalkEntry>> {
        self.0.step().map(|step| {
            step.map(|seen| WalkEntry {
                path: OsString::from_vec(seen.path.to_vec()).into(),
                depth: seen.depth,
                metadata: Metadata::of(seen.node.attr),
            })
        })
    }
}

impl Volume {
    /// The names in a directory without `.` and `..`, in byte order.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>> {
        let path = bytes(&path);
        let node = self.find(path, true).at(self, path)?;
        let mut entries = Vec::new();
        let listed = self.fs().readdir(node.ino(), 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                entries.push(DirEntry {
                    name: OsString::from_vec(entry.name.to_vec()),
                    path: Volume::below(path, entry.name),
                    file_type: FileType::of(entry.kind),
                    ino: entry.ino.0,
                });
            }
            true
        });
        listed.at(self, path)?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// `path` and everything below it, directories before what is in them, names in byte
    /// order; symbolic links are not followed. What cannot be read comes as an error, and the
    /// walk goes on behind it.
    pub fn walk(&self, path: impl AsRef<Path>) -> Result<Walk> {
        let path = bytes(&path);
        let top = self.find(path, true).at(self, path)?;
        Ok(Walk(walk::Walk::new(self, top, path.to_vec())))
    }
}

impl std::fmt::Debug for Walk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walk").finish_non_exhaustive()
    }
}

// A walk may go on in another thread, as every handle.
const _: fn() = || {
    fn everywhere<T: Send + Sync>() {}
    everywhere::<Volume>();
    everywhere::<Walk>();
    everywhere::<crate::File>();
    everywhere::<crate::Transaction>();
    everywhere::<Error>();
};
