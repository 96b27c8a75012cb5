//! The library, in this process: `dyn vfs::FileSystem` without kernel or FUSE.
//!
//! A handle is an inode number on which one lookup reference is held; closing gives
//! the reference back. That is what an embedding program would do, and it is all
//! the state there is.

use super::{Access, DirId, FileId, Target, Tracked, Tracking};
use std::ffi::{CStr, CString};
use std::io;
use std::path::Path;
use std::sync::Arc;
use vfs::{Context, FileKind, FileSystem, FsError, Ino, RenameMode, SetAttr, SetTime, WriteFlags};

pub struct VfsTarget {
    fs: Arc<dyn FileSystem>,
    cx: Context,
    tracking: Tracking,
}

impl VfsTarget {
    pub fn new(fs: Arc<dyn FileSystem>) -> VfsTarget {
        VfsTarget::tracked(fs, Tracked::Off)
    }

    /// As `new`; truncations are tracked in one more way than the engine's own.
    pub fn tracked(fs: Arc<dyn FileSystem>, how: Tracked) -> VfsTarget {
        let cx = Context { umask: 0o022, ..Context::default() };
        VfsTarget { fs, cx, tracking: Tracking::new(how) }
    }

    fn lookup(&self, parent: DirId, name: &CStr) -> io::Result<vfs::Entry> {
        self.fs.lookup(&self.cx, Ino(parent.0), name.to_bytes()).map_err(to_io)
    }
}

fn to_io(error: FsError) -> io::Error {
    match error {
        FsError::Posix(errno) => io::Error::from_raw_os_error(errno.code()),
        other => io::Error::other(other.to_string()),
    }
}

impl Target for VfsTarget {
    fn host_path(&self) -> Option<&Path> {
        None
    }

    fn root(&self) -> DirId {
        DirId(self.fs.root().0)
    }

    fn open_dir(&self, parent: DirId, name: &CStr) -> io::Result<DirId> {
        let entry = self.lookup(parent, name)?;
        if entry.attr.kind != FileKind::Dir {
            self.fs.forget(entry.attr.ino, 1);
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        Ok(DirId(entry.attr.ino.0))
    }

    fn close_dir(&self, dir: DirId) {
        self.fs.forget(Ino(dir.0), 1);
    }

    fn mkdir(&self, parent: DirId, name: &CStr) -> io::Result<()> {
        let made = self.fs.mkdir(&self.cx, Ino(parent.0), name.to_bytes(), 0o755);
        self.fs.forget(made.map_err(to_io)?.attr.ino, 1);
        Ok(())
    }

    fn rmdir(&self, parent: DirId, name: &CStr) -> io::Result<()> {
        self.fs.rmdir(&self.cx, Ino(parent.0), name.to_bytes()).map_err(to_io)
    }

    fn symlink(&self, parent: DirId, name: &CStr, to: &CStr) -> io::Result<()> {
        let made = self.fs.symlink(&self.cx, Ino(parent.0), name.to_bytes(), to.to_bytes());
        self.fs.forget(made.map_err(to_io)?.attr.ino, 1);
        Ok(())
    }

    fn unlink(&self, parent: DirId, name: &CStr) -> io::Result<()> {
        self.fs.unlink(&self.cx, Ino(parent.0), name.to_bytes()).map_err(to_io)
    }

    fn rename(&self, from: DirId, name: &CStr, to: DirId, new_name: &CStr) -> io::Result<()> {
        let (old, new, mode) = (name.to_bytes(), new_name.to_bytes(), RenameMode::Replace);
        self.fs.rename(&self.cx, Ino(from.0), old, Ino(to.0), new, mode).map_err(to_io)
    }

    fn stat(&self, parent: DirId, name: &CStr) -> io::Result<u64> {
        let entry = self.lookup(parent, name)?;
        self.fs.forget(entry.attr.ino, 1);
        Ok(entry.attr.size)
    }

    fn list(
        &self,
        dir: DirId,
        emit: &mut dyn FnMut(&CStr, bool) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut result = Ok(());
        let listing = self.fs.readdir(Ino(dir.0), 0, &mut |entry| {
            if matches!(entry.name, b"." | b"..") {
                return true;
            }
            result = CString::new(entry.name)
                .map_err(io::Error::from)
                .and_then(|name| emit(&name, entry.kind == FileKind::Dir));
            result.is_ok()
        });
        listing.map_err(to_io).and(result)
    }

    fn list_long(&self, dir: DirId) -> io::Result<u64> {
        let mut entries = 0;
        let mut held = Vec::with_capacity(1024);
        self.fs
            .readdir_plus(Ino(dir.0), 0, &mut |_, entry| {
                if let Some(entry) = entry {
                    entries += 1;
                    held.push(entry.attr.ino);
                }
                true
            })
            .map_err(to_io)?;
        // Not from inside the callback: an engine may hold the directory's lock there.
        for ino in held {
            self.fs.forget(ino, 1);
        }
        Ok(entries)
    }

    fn create(&self, parent: DirId, name: &CStr) -> io::Result<FileId> {
        let made =
            self.fs.mknod(&self.cx, Ino(parent.0), name.to_bytes(), FileKind::File, 0o644, 0);
        Ok(FileId(made.map_err(to_io)?.attr.ino.0))
    }

    fn create_or_truncate(&self, parent: DirId, name: &CStr) -> io::Result<FileId> {
        match self.lookup(parent, name) {
            Ok(entry) => {
                let file = FileId(entry.attr.ino.0);
                self.truncate(file, 0).inspect_err(|_| self.close(file))?;
                Ok(file)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.create(parent, name),
            Err(e) => Err(e),
        }
    }

    fn open(&self, parent: DirId, name: &CStr, _access: Access) -> io::Result<FileId> {
        Ok(FileId(self.lookup(parent, name)?.attr.ino.0))
    }

    fn close(&self, file: FileId) {
        self.fs.forget(Ino(file.0), 1);
    }

    fn read_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.fs.read(Ino(file.0), offset, buf).map_err(to_io)
    }

    fn write_at(&self, file: FileId, offset: u64, data: &[u8]) -> io::Result<()> {
        let flags = WriteFlags::default();
        let n = self.fs.write(&self.cx, Ino(file.0), offset, data, flags).map_err(to_io)?;
        if n == data.len() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOSPC)) }
    }

    fn truncate(&self, file: FileId, size: u64) -> io::Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let cut = || self.fs.setattr(&self.cx, Ino(file.0), &set);
        self.tracking.during(file.0, cut).map(drop).map_err(to_io)
    }

    fn size(&self, file: FileId) -> io::Result<u64> {
        self.fs.getattr(Ino(file.0)).map(|attr| attr.size).map_err(to_io)
    }

    fn touch(&self, file: FileId) -> io::Result<()> {
        let now = Some(SetTime::Now);
        let set = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
        self.fs.setattr(&self.cx, Ino(file.0), &set).map(drop).map_err(to_io)
    }

    fn used_bytes(&self) -> io::Result<u64> {
        let of = self.fs.statfs().map_err(to_io)?;
        Ok(of.blocks.saturating_sub(of.blocks_free) * u64::from(of.block_size))
    }

    fn fsync(&self, file: FileId) -> io::Result<()> {
        self.fs.fsync(Ino(file.0), false).map_err(to_io)
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.sync().map_err(to_io)
    }
}
