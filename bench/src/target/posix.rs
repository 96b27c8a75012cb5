//! A directory of the host, by system calls: the way applications come.

use super::{Access, DirId, FileId, Target};
use crate::sys::{self, Fd};
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub struct PosixDir {
    path: PathBuf,
    root: Fd,
}

impl PosixDir {
    pub fn open(path: &Path) -> io::Result<PosixDir> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let root = sys::open(libc::AT_FDCWD, &name, libc::O_RDONLY | libc::O_DIRECTORY)?;
        Ok(PosixDir { path: path.to_owned(), root })
    }
}

impl Drop for PosixDir {
    fn drop(&mut self) {
        sys::close(self.root);
    }
}

fn fd(id: u64) -> Fd {
    id as Fd
}

const DT_DIR: u8 = libc::DT_DIR;

impl Target for PosixDir {
    fn host_path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn root(&self) -> DirId {
        DirId(self.root as u64)
    }

    fn open_dir(&self, parent: DirId, name: &CStr) -> io::Result<DirId> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        Ok(DirId(sys::open(fd(parent.0), name, flags)? as u64))
    }

    fn close_dir(&self, dir: DirId) {
        sys::close(fd(dir.0));
    }

    fn mkdir(&self, parent: DirId, name: &CStr) -> io::Result<()> {
        sys::mkdir(fd(parent.0), name)
    }

    fn rmdir(&self, parent: DirId, name: &CStr) -> io::Result<()> {
        sys::unlink(fd(parent.0), name, libc::AT_REMOVEDIR)
    }

    fn symlink(&self, parent: DirId, name: &CStr, to: &CStr) -> io::Result<()> {
        sys::symlink(fd(parent.0), name, to)
    }

    fn unlink(&self, parent: DirId, name: &CStr) -> io::Result<()> {
        sys::unlink(fd(parent.0), name, 0)
    }

    fn rename(&self, from: DirId, name: &CStr, to: DirId, new_name: &CStr) -> io::Result<()> {
        sys::rename(fd(from.0), name, fd(to.0), new_name)
    }

    fn stat(&self, parent: DirId, name: &CStr) -> io::Result<u64> {
        sys::stat_size(fd(parent.0), name)
    }

    fn list(
        &self,
        dir: DirId,
        emit: &mut dyn FnMut(&CStr, bool) -> io::Result<()>,
    ) -> io::Result<()> {
        // A descriptor of its own, so that every listing starts at the first entry.
        let own = self.open_dir(dir, c".")?;
        let result = sys::list(fd(own.0), &mut |name, kind| emit(name, kind == DT_DIR));
        self.close_dir(own);
        result
    }

    fn list_long(&self, dir: DirId) -> io::Result<u64> {
        let mut entries = 0;
        self.list(dir, &mut |name, _| {
            entries += 1;
            sys::stat_size(fd(dir.0), name).map(drop)
        })?;
        Ok(entries)
    }

    fn create(&self, parent: DirId, name: &CStr) -> io::Result<FileId> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        Ok(FileId(sys::open(fd(parent.0), name, flags)? as u64))
    }

    fn create_or_truncate(&self, parent: DirId, name: &CStr) -> io::Result<FileId> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
        Ok(FileId(sys::open(fd(parent.0), name, flags)? as u64))
    }

    fn open(&self, parent: DirId, name: &CStr, access: Access) -> io::Result<FileId> {
        let flags = match access {
            Access::Read => libc::O_RDONLY,
            Access::ReadWrite => libc::O_RDWR,
        };
        Ok(FileId(sys::open(fd(parent.0), name, flags)? as u64))
    }

    fn close(&self, file: FileId) {
        sys::close(fd(file.0));
    }

    fn read_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match sys::read_at(fd(file.0), &mut buf[done..], offset + done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn write_at(&self, file: FileId, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            match sys::write_at(fd(file.0), &data[done..], offset + done as u64)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    fn truncate(&self, file: FileId, size: u64) -> io::Result<()> {
        sys::truncate(fd(file.0), size)
    }

    fn size(&self, file: FileId) -> io::Result<u64> {
        sys::size(fd(file.0))
    }

    fn touch(&self, file: FileId) -> io::Result<()> {
        sys::touch(fd(file.0))
    }

    fn used_bytes(&self) -> io::Result<u64> {
        sys::used_bytes(self.root)
    }

    fn fsync(&self, file: FileId) -> io::Result<()> {
        sys::fsync(fd(file.0))
    }

    fn sync(&self) -> io::Result<()> {
        sys::syncfs(self.root)
    }
}
