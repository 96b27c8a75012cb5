//! What a workload may do to a file system, whichever way it is reached.
//!
//! Handles are plain numbers so that a target adds next to nothing to what is
//! measured; `OpenFile` and `OpenDir` give them back in time, also on an error (a
//! leaked descriptor would keep a mount busy). Names are `CStr`: system calls want
//! the NUL, and the library just leaves it off.

mod library;
mod posix;
mod tracking;

use std::ffi::CStr;
use std::io;
use std::path::Path;

pub use library::VfsTarget;
pub use posix::PosixDir;
pub use tracking::{Tracked, Tracking};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirId(pub u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileId(pub u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    ReadWrite,
}

pub trait Target: Send + Sync {
    /// Where other programs find the root of this target; `None` in the library.
    fn host_path(&self) -> Option<&Path>;
    /// Stays valid as long as the target; never closed by the caller.
    fn root(&self) -> DirId;

    fn open_dir(&self, parent: DirId, name: &CStr) -> io::Result<DirId>;
    fn close_dir(&self, dir: DirId);
    fn mkdir(&self, parent: DirId, name: &CStr) -> io::Result<()>;
    fn rmdir(&self, parent: DirId, name: &CStr) -> io::Result<()>;
    fn symlink(&self, parent: DirId, name: &CStr, to: &CStr) -> io::Result<()>;
    fn unlink(&self, parent: DirId, name: &CStr) -> io::Result<()>;
    /// Replaces what the new name stands for.
    fn rename(&self, from: DirId, name: &CStr, to: DirId, new_name: &CStr) -> io::Result<()>;
    /// The size of what `name` stands for.
    fn stat(&self, parent: DirId, name: &CStr) -> io::Result<u64>;
    /// Calls `emit` with each name and whether it is a directory.
    fn list(
        &self,
        dir: DirId,
        emit: &mut dyn FnMut(&CStr, bool) -> io::Result<()>,
    ) -> io::Result<()>;
    /// As `ls -l`: reads the directory with the attributes of every entry, and returns
    /// the number of entries.
    fn list_long(&self, dir: DirId) -> io::Result<u64>;

    /// Makes a new file, open for reading and writing.
    fn create(&self, parent: DirId, name: &CStr) -> io::Result<FileId>;
    /// As `creat(2)`: a new file, or an existing one cut to nothing; open for both.
    fn create_or_truncate(&self, parent: DirId, name: &CStr) -> io::Result<FileId>;
    fn open(&self, parent: DirId, name: &CStr, access: Access) -> io::Result<FileId>;
    fn close(&self, file: FileId);
    /// May return less than asked only at the end of the file.
    fn read_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `data`.
    fn write_at(&self, file: FileId, offset: u64, data: &[u8]) -> io::Result<()>;
    fn truncate(&self, file: FileId, size: u64) -> io::Result<()>;
    fn size(&self, file: FileId) -> io::Result<u64>;
    /// Sets both times to now.
    fn touch(&self, file: FileId) -> io::Result<()>;
    fn fsync(&self, file: FileId) -> io::Result<()>;
    /// Asks for sizes and free space of the whole, and looks at nothing in the answer.
    fn stat_fs(&self) -> io::Result<()> {
        self.used_bytes().map(drop)
    }
    /// Bytes of the volume that are not free.
    fn used_bytes(&self) -> io::Result<u64>;
    /// Everything done so far is durable.
    fn sync(&self) -> io::Result<()>;
}

/// An open file that closes itself.
pub struct OpenFile<'a> {
    target: &'a dyn Target,
    id: FileId,
}

impl<'a> OpenFile<'a> {
    pub fn create(target: &'a dyn Target, dir: DirId, name: &CStr) -> io::Result<OpenFile<'a>> {
        Ok(OpenFile { target, id: target.create(dir, name)? })
    }

    pub fn create_or_truncate(
        target: &'a dyn Target,
        dir: DirId,
        name: &CStr,
    ) -> io::Result<OpenFile<'a>> {
        Ok(OpenFile { target, id: target.create_or_truncate(dir, name)? })
    }

    pub fn open(
        target: &'a dyn Target,
        dir: DirId,
        name: &CStr,
        access: Access,
    ) -> io::Result<OpenFile<'a>> {
        Ok(OpenFile { target, id: target.open(dir, name, access)? })
    }

    /// Fills `buf` wholly or fails.
    pub fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let n = self.target.read_at(self.id, offset, buf)?;
        if n == buf.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// May return less than asked only at the end of the file.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.target.read_at(self.id, offset, buf)
    }

    pub fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.target.write_at(self.id, offset, data)
    }

    pub fn truncate(&self, size: u64) -> io::Result<()> {
        self.target.truncate(self.id, size)
    }

    pub fn size(&self) -> io::Result<u64> {
        self.target.size(self.id)
    }

    pub fn touch(&self) -> io::Result<()> {
        self.target.touch(self.id)
    }

    pub fn fsync(&self) -> io::Result<()> {
        self.target.fsync(self.id)
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        self.target.close(self.id);
    }
}

/// An open directory that closes itself.
pub struct OpenDir<'a> {
    target: &'a dyn Target,
    pub id: DirId,
}

impl<'a> OpenDir<'a> {
    pub fn open(target: &'a dyn Target, parent: DirId, name: &CStr) -> io::Result<OpenDir<'a>> {
        Ok(OpenDir { target, id: target.open_dir(parent, name)? })
    }

    pub fn make(target: &'a dyn Target, parent: DirId, name: &CStr) -> io::Result<OpenDir<'a>> {
        target.mkdir(parent, name)?;
        OpenDir::open(target, parent, name)
    }
}

impl Drop for OpenDir<'_> {
    fn drop(&mut self) {
        self.target.close_dir(self.id);
    }
}

/// Removes everything in `dir`.
pub fn remove_children(target: &dyn Target, dir: DirId) -> io::Result<()> {
    let mut names = Vec::new();
    target.list(dir, &mut |name, is_dir| {
        names.push((name.to_owned(), is_dir));
        Ok(())
    })?;
    for (name, is_dir) in names {
        if is_dir {
            let child = OpenDir::open(target, dir, &name)?;
            remove_children(target, child.id)?;
            drop(child);
            target.rmdir(dir, &name)?;
        } else {
            target.unlink(dir, &name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
